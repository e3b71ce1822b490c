// SPDX-License-Identifier: Apache-2.0
#include "kernels/program/passes/program_index.h"

#include <gtest/gtest.h>

#include "tests/kernels/program/draft.h"

namespace deeppcr::program {
namespace {

TEST(ProgramIndexTest, KnowsWhoMakesAndWhoReadsAValue) {
  Draft draft;
  const ValueId z = draft.State(2), sine = draft.Do(Op::kSin, {z});
  const ValueId twice = draft.Add(sine, sine), end = draft.Do(Op::kTanh, {twice});
  const Program program = draft.Finish(end, end);
  const ProgramIndex index(program);
  EXPECT_EQ(index.Producer(z), nullptr);
  EXPECT_EQ(index.Producer(sine), &program.instructions[0]);
  EXPECT_EQ(index.Reads(sine), 2);
  EXPECT_EQ(index.OnlyReader(sine), nullptr);
  EXPECT_EQ(index.Inner(sine, Op::kSin), nullptr) << "read twice";
  EXPECT_EQ(index.OnlyReader(twice), &program.instructions[2]);
  EXPECT_EQ(index.Inner(twice, Op::kAdd), &program.instructions[1]);
  EXPECT_EQ(index.Inner(twice, Op::kSubtract), nullptr);
  EXPECT_EQ(index.Reads(end), 2) << "as output and as prediction";
}

TEST(ProgramIndexTest, KnowsConstantsThatAreOneNumber) {
  EXPECT_EQ(NumberOf({.size = 3, .constant = {2, 2, 2}}), 2.0);
  EXPECT_EQ(NumberOf({.size = 3, .constant = {2, 2, 3}}), std::nullopt);
  EXPECT_EQ(NumberOf({.size = 3}), std::nullopt);
}

}  // namespace
}  // namespace deeppcr::program
