// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels/program/random_program.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/kernels/program/same_meaning.h"

namespace deeppcr::program {
namespace {

TEST(RandomProgramTest, DrawsEveryOperation) {
  std::set<Op> drawn;
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    for (const Instruction& instruction : RandomProgram(seed, {.layers = 2}).instructions)
      drawn.insert(instruction.op);
  }
  for (const OpRow& row : kOps) EXPECT_TRUE(drawn.contains(row.op)) << row.name;
}

TEST(RandomProgramTest, IsTheSameForTheSameSeedAndFinite) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(seed);
    ExpectSameMeaning(RandomProgram(seed), RandomProgram(seed), 0);
  }
}

TEST(RandomProgramTest, LeavesJumpsOutWhereAskedTo) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    const Program program = RandomProgram(seed, {.jumps = false});
    for (const Op op : {Op::kFloor, Op::kLess, Op::kEqual, Op::kSelect})
      EXPECT_EQ(CountOf(program, op), 0) << seed << " " << RowOf(op).name;
  }
}

}  // namespace
}  // namespace deeppcr::program
