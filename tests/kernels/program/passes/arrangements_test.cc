// SPDX-License-Identifier: Apache-2.0
#include "kernels/program/passes/arrangements.h"

#include <gtest/gtest.h>

#include "kernels/program/optimize.h"
#include "tests/kernels/program/draft.h"
#include "tests/kernels/program/same_meaning.h"

namespace deeppcr::program {
namespace {

TEST(ArrangementsTest, LeaveOutTheIdentity) {
  Draft draft;
  const ValueId x = draft.State(5);
  const ValueId parts = draft.Concatenate({draft.Slice(x, 0, 2), draft.Slice(x, 2, 5)});
  const Program before = draft.Finish(draft.Do(Op::kSin, {parts}));
  const Program after = *Optimize(before);
  ExpectSameMeaning(before, after, 0);
  EXPECT_EQ(after.instructions.size(), 1u);
}

TEST(ArrangementsTest, PutSeveralIntoOne) {
  Draft draft;
  const ValueId x = draft.State(4), c = draft.Condition(3);
  const ValueId both = draft.Concatenate({x, c, x});
  const ValueId turned = draft.Arrange({both}, {{0, 6}, {0, 1}, {0, 10}, {0, 4}});
  const Program before = draft.Finish(draft.Arrange({turned, c}, {{0, 3}, {1, 0}, {0, 2}, {0, 1}}));
  const Program after = *Optimize(before);
  ExpectSameMeaning(before, after, 0);
  ASSERT_EQ(after.instructions.size(), 1u);
  EXPECT_EQ(after.instructions[0].operands.size(), 2u) << "each value once";
}

TEST(ArrangementsTest, KeepOneThatOnlyTurns) {
  Draft draft;
  const Program before = draft.Finish(draft.Arrange({draft.State(3)}, {{0, 0}, {0, 2}, {0, 1}}));
  const Program after = *Optimize(before);
  ExpectSameMeaning(before, after, 0);
  EXPECT_EQ(CountOf(after, Op::kArrange), 1);
}

TEST(ArrangementsTest, LowerTheClassOfASliceOfAConcatenation) {
  Draft draft;
  const ValueId x = draft.State(4), c = draft.Condition(4);
  const ValueId slice = draft.Slice(draft.Concatenate({x, c}), 4, 8);
  ASSERT_EQ(draft.at(slice).depends & kOnState, kOnState);
  const Program before = draft.Finish(draft.Add(x, draft.Do(Op::kSin, {slice})));
  const Program after = *Optimize(before);
  ExpectSameMeaning(before, after, 0);
  ASSERT_EQ(after.instructions.size(), 2u);
  EXPECT_EQ(after.at(after.instructions[0].result).depends, kOnCondition);
}

}  // namespace
}  // namespace deeppcr::program
