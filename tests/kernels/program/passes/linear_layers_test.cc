// SPDX-License-Identifier: Apache-2.0
#include "kernels/program/passes/linear_layers.h"

#include <gtest/gtest.h>

#include "kernels/program/cost.h"
#include "kernels/program/optimize.h"
#include "tests/kernels/program/draft.h"
#include "tests/kernels/program/same_meaning.h"

namespace deeppcr::program {
namespace {

TEST(SplitByClassTest, LeavesTheStatesColumnsInTheStep) {
  Draft draft;
  const ValueId x = draft.State(6), t = draft.Linear(draft.Time(), 5), c = draft.Condition(7);
  const Program before = draft.Finish(draft.Linear(draft.Concatenate({t, x, c}), 6));
  const Program after = *Optimize(before);
  ExpectSameMeaning(before, after);
  EXPECT_EQ(InStep(after), 6 * 6 + 6);
  const Costs costs = CostsOf(after);
  EXPECT_EQ(costs.by_class[kOnTime], 5 + 6 * 5);
  EXPECT_EQ(costs.by_class[kOnCondition], 6 * 7);
  EXPECT_EQ(costs.by_class[kOnTimeAndCondition], 6) << "one sum of the tables";
}

TEST(SplitByClassTest, KeepsPiecesOfOneClassInOneLayer) {
  Draft draft;
  const ValueId x = draft.State(4), c = draft.Condition(3), y = draft.Do(Op::kSin, {x});
  const Program before = draft.Finish(draft.Linear(draft.Concatenate({x, c, y}), 4));
  const Program after = *Optimize(before);
  ExpectSameMeaning(before, after);
  EXPECT_EQ(CountOf(after, Op::kLinear), 2);
  EXPECT_EQ(InStep(after), 4 + 4 * 8 + 4);
}

TEST(SplitByClassTest, GivesTheBiasToTheLowestClass) {
  Draft draft;
  const ValueId x = draft.State(4), c = draft.Condition(3);
  const Program after = *Optimize(draft.Finish(draft.Linear(draft.Concatenate({x, c}), 4)));
  for (const Instruction& instruction : after.instructions) {
    if (instruction.op != Op::kLinear) continue;
    const bool has_bias = instruction.linear.bias != nullptr;
    EXPECT_EQ(has_bias, after.at(instruction.result).depends == kOnCondition);
  }
}

TEST(SplitByClassTest, PutsConstantsIntoTheBias) {
  for (const bool bias : {false, true}) {
    Draft draft;
    const ValueId x = draft.State(4), k = draft.Normal(3);
    const Program before =
        draft.Finish(draft.Linear(draft.Concatenate({k, x, draft.Normal(2)}), 4, bias));
    const Program after = *Optimize(before);
    ExpectSameMeaning(before, after, kInFloat);
    ASSERT_EQ(after.instructions.size(), 1u);
    EXPECT_EQ(after.instructions[0].linear.cols, 4);
  }
}

TEST(SplitByClassTest, AddsConstantsToATableInDouble) {
  Draft draft;
  const ValueId x = draft.State(4), t = draft.Time();
  const Program before = draft.Finish(draft.Linear(draft.Concatenate({t, x, draft.Normal(3)}), 4));
  const Program after = *Optimize(before);
  ExpectSameMeaning(before, after);
  EXPECT_EQ(InStep(after), 4 * 4 + 4);
}

TEST(SplitByClassTest, SplitsElementsInAnyOrder) {
  Draft draft;
  const ValueId x = draft.State(3), c = draft.Condition(2), t = draft.Time();
  const ValueId mixed = draft.Arrange({x, c, t}, {{2, 0}, {0, 2}, {1, 1}, {0, 0}, {1, 0}, {0, 2}});
  const Program before = draft.Finish(draft.Linear(mixed, 3));
  const Program after = *Optimize(before);
  ExpectSameMeaning(before, after);
  EXPECT_EQ(CountOf(after, Op::kLinear), 3);
  EXPECT_EQ(InStep(after), 3 * 3 + 3);
}

TEST(SplitByClassTest, KeepsTheBiasOfALayerOfConstantsAlone) {
  Draft draft;
  const ValueId x = draft.State(4), c = draft.Condition(3);
  const ValueId constants = draft.Arrange({draft.Normal(2), c}, {{0, 0}, {0, 1}, {0, 0}});
  const Program before = draft.Finish(draft.Multiply(x, draft.Linear(constants, 4)));
  const Program after = *Optimize(before);
  ExpectSameMeaning(before, after);
  EXPECT_EQ(after.instructions.size(), 1u);
}

TEST(SplitByClassTest, LeavesAConcatenationThatIsReadElsewhere) {
  Draft draft;
  const ValueId x = draft.State(4), c = draft.Condition(4);
  const ValueId both = draft.Concatenate({x, c});
  const ValueId norm = draft.Along(Op::kSoftmax, both, {1, 8, 1});
  const Program before = draft.Finish(draft.Add(draft.Linear(both, 4), draft.Slice(norm, 0, 4)));
  const Program after = *Optimize(before);
  ExpectSameMeaning(before, after);
  EXPECT_EQ(InStep(after), 4 * 4 + 3 * 8 + 4 + 4);
}

TEST(SplitByClassTest, LeavesLayersOfOneClassAndOfSeveralRows) {
  Draft draft;
  const ValueId x = draft.State(4), c = draft.Condition(4);
  const ValueId same = draft.Linear(draft.Concatenate({x, draft.Do(Op::kSin, {x})}), 4);
  const ValueId rows = draft.Linear(draft.Concatenate({x, c}), draft.Layer(2, 4, true, 2));
  const Program before = draft.Finish(draft.Add(same, rows));
  const Program after = *Optimize(before);
  ExpectSameMeaning(before, after);
  EXPECT_EQ(after.instructions.size(), before.instructions.size());
}

TEST(MergeLayersTest, MergesWhereOneLayerHasFewerWeights) {
  for (const int64_t repeat : {1, 3}) {
    Draft draft;
    const ValueId x = draft.State(4 * repeat);
    const ValueId inner = draft.Linear(x, draft.Layer(9, 4, true, repeat));
    const Program before = draft.Finish(draft.Linear(inner, draft.Layer(4, 9, false, repeat)));
    const Program after = *Optimize(before);
    ExpectSameMeaning(before, after, kInFloat);
    ASSERT_EQ(after.instructions.size(), 1u);
    EXPECT_EQ(InStep(after), 4 * 4 * repeat);
  }
}

TEST(MergeLayersTest, LeavesABottleneck) {
  Draft draft;
  const Program before = draft.Finish(draft.Linear(draft.Linear(draft.State(8), 2), 8));
  const Program after = *Optimize(before);
  ExpectSameMeaning(before, after, 0);
  EXPECT_EQ(CountOf(after, Op::kLinear), 2);
}

TEST(MergeLayersTest, LeavesALayerThatIsReadElsewhere) {
  Draft draft;
  const ValueId inner = draft.Linear(draft.State(4), 4);
  const ValueId outer = draft.Linear(inner, 4);
  const Program after = *Optimize(draft.Finish(draft.Add(outer, draft.Do(Op::kSin, {inner}))));
  EXPECT_EQ(CountOf(after, Op::kLinear), 2);
}

TEST(MergeLayersTest, LeavesWhatIsMadeOnceInDouble) {
  Draft draft;
  const ValueId z = draft.State(4), t = draft.Linear(draft.Linear(draft.Time(), 8), 4);
  const Program before = draft.Finish(draft.Add(z, draft.Add(t, draft.Normal(4))));
  const Program after = *Optimize(before);
  ExpectSameMeaning(before, after, 0);
  EXPECT_EQ(CountOf(after, Op::kLinear), 2);
}

TEST(MergeLayersTest, LeavesRowsOfAnotherLength) {
  Draft draft;
  const ValueId inner = draft.Linear(draft.State(4), draft.Layer(4, 2, true, 2));
  const Program before = draft.Finish(draft.Linear(inner, draft.Layer(4, 8)));
  const Program after = *Optimize(before);
  ExpectSameMeaning(before, after, 0);
  EXPECT_EQ(CountOf(after, Op::kLinear), 2);
}

}  // namespace
}  // namespace deeppcr::program
