// SPDX-License-Identifier: Apache-2.0
#include "kernels/program/passes/sums.h"

#include <gtest/gtest.h>

#include <vector>

#include "kernels/program/cost.h"
#include "kernels/program/optimize.h"
#include "tests/kernels/program/draft.h"
#include "tests/kernels/program/same_meaning.h"

namespace deeppcr::program {
namespace {

// Values of each class, of six elements, the state's as the result of a layer.
struct Values {
  explicit Values(Draft& draft)
      : z(draft.State(6)),
        layer(draft.Linear(z, 6)),
        t(draft.Do(Op::kSin, {draft.Linear(draft.Time(), 6)})),
        c(draft.Condition(6)),
        mixed(draft.Do(Op::kCos, {draft.Multiply(t, c)})) {}
  ValueId z, layer, t, c, mixed;
};

constexpr double kOfLayer = 36;

TEST(RegroupSumTest, AddsLowerClassesAmongThemselvesFirst) {
  Draft draft;
  const Values v(draft);
  const Program before = draft.Finish(draft.Add(draft.Add(draft.Add(v.layer, v.t), v.c), v.mixed));
  const Program after = *Optimize(before);
  ExpectSameMeaning(before, after);
  EXPECT_EQ(InStep(before), kOfLayer + 3 * 6);
  EXPECT_EQ(InStep(after), kOfLayer + 6);
}

TEST(RegroupSumTest, KeepsSigns) {
  Draft draft;
  const Values v(draft);
  // (t - layer) - (c - (mixed - z))
  const ValueId right = draft.Subtract(v.c, draft.Subtract(v.mixed, v.z));
  const Program before = draft.Finish(draft.Subtract(draft.Subtract(v.t, v.layer), right));
  const Program after = *Optimize(before);
  ExpectSameMeaning(before, after);
  EXPECT_EQ(InStep(before), kOfLayer + 4 * 6);
  EXPECT_EQ(InStep(after), kOfLayer + 2 * 6);
}

TEST(RegroupSumTest, WritesASumOfNegativesAsADifference) {
  Draft draft;
  const Values v(draft);
  const ValueId zero = draft.Subtract(draft.Normal(6), v.layer);
  const Program before =
      draft.Finish(draft.Subtract(draft.Subtract(draft.Subtract(zero, v.t), v.z), v.c));
  const Program after = *Optimize(before);
  ExpectSameMeaning(before, after);
  EXPECT_EQ(InStep(after), kOfLayer + 2 * 6);
}

TEST(RegroupSumTest, AddsTimesBeforeConditions) {
  Draft draft;
  const Values v(draft);
  const ValueId other = draft.Do(Op::kExp, {v.t});
  const ValueId sum = draft.Add(draft.Add(v.t, v.c), other);
  const Program before = draft.Finish(draft.Multiply(v.z, sum));
  const Program after = *Optimize(before);
  ExpectSameMeaning(before, after);
  EXPECT_EQ(CostsOf(before).by_class[kOnTimeAndCondition], 2 * 6);
  EXPECT_EQ(CostsOf(after).by_class[kOnTimeAndCondition], 6);
}

TEST(RegroupSumTest, PutsConstantsIntoTheBias) {
  for (const bool bias : {false, true}) {
    Draft draft;
    const ValueId z = draft.State(6), layer = draft.Linear(z, 6, bias);
    const ValueId sum = draft.Add(draft.Add(draft.Normal(6), layer), z);
    const Program before = draft.Finish(draft.Subtract(sum, draft.Normal(6)));
    const Program after = *Optimize(before);
    ExpectSameMeaning(before, after, kInFloat);
    EXPECT_EQ(InStep(after), kOfLayer + 6);
  }
}

TEST(RegroupSumTest, PutsConstantsIntoTheBiasOfALayerThatIsTakenAway) {
  Draft draft;
  const ValueId z = draft.State(6), layer = draft.Linear(z, 6);
  const Program before = draft.Finish(draft.Subtract(draft.Normal(6), layer));
  const Program after = *Optimize(before);
  ExpectSameMeaning(before, after, kInFloat);
  EXPECT_EQ(CountOf(after, Op::kNegate), 1);
}

TEST(RegroupSumTest, PutsConstantsIntoABiasOnlyWhereTheyRepeat) {
  const std::vector<double> repeats = {1, 2, 3, 1, 2, 3}, other = {1, 2, 3, 1, 2, 4};
  for (const auto& constant : {repeats, other}) {
    Draft draft;
    const ValueId layer = draft.Linear(draft.State(6), draft.Layer(3, 3, true, 2));
    const Program before = draft.Finish(draft.Add(layer, draft.Constant(constant)));
    const Program after = *Optimize(before);
    ExpectSameMeaning(before, after, kInFloat);
    EXPECT_EQ(after.instructions.size(), constant == repeats ? 1u : 2u);
  }
}

TEST(RegroupSumTest, LeavesTheBiasOfALayerThatIsReadElsewhere) {
  Draft draft;
  const ValueId layer = draft.Linear(draft.State(6), 6);
  const ValueId sum = draft.Do(Op::kSin, {draft.Add(layer, draft.Normal(6))});
  const Program before = draft.Finish(draft.Multiply(sum, layer));
  const Program after = *Optimize(before);
  ExpectSameMeaning(before, after, 0);
  EXPECT_EQ(after.instructions.size(), before.instructions.size());
}

TEST(RegroupSumTest, LeavesASumWhoseInnerOneIsReadElsewhere) {
  Draft draft;
  const Values v(draft);
  const ValueId inner = draft.Add(v.layer, v.t);
  const ValueId outer = draft.Add(inner, v.c);
  const Program before = draft.Finish(draft.Multiply(outer, draft.Do(Op::kSin, {inner})));
  const Program after = *Optimize(before);
  ExpectSameMeaning(before, after, 0);
  EXPECT_EQ(InStep(after), InStep(before));
}

TEST(RegroupSumTest, LeavesWhatIsInOrder) {
  Draft draft;
  const Values v(draft);
  const ValueId other = draft.Do(Op::kExp, {v.z});
  const ValueId in_step = draft.Add(draft.Add(v.layer, draft.Add(v.t, v.c)), other);
  const Program before = draft.Finish(in_step);
  const Program after = *Optimize(before);
  ExpectSameMeaning(before, after, 0);
  EXPECT_EQ(after.instructions.size(), before.instructions.size());
}

// What a layer of a stack adds is added by its product.
TEST(RegroupSumTest, PutsWhatEachLayerAddsIntoItsProduct) {
  Draft draft;
  const ValueId z = draft.State(6);
  const ValueId product = draft.Product(z, draft.Stacked(3, 36, 6), kNoValue,
                                        {.rows = 6, .cols = 6, .transposed = true});
  const ValueId bias = draft.Stacked(3, 6, 1), other = draft.Stacked(3, 6, 1);
  const ValueId biased = draft.Subtract(draft.Add(bias, draft.Add(z, product)), other);
  const Program before = draft.Finish(draft.By(Op::kAdd, biased, 0.5));
  const Program after = *Optimize(before);
  ExpectSameMeaning(before, after);
  EXPECT_EQ(InStep(after), 36 + 6);
  EXPECT_EQ(CountOf(after, Op::kProduct), 1);
}

// Neither what is subtracted, nor what is repeated, nor what others read takes a bias.
TEST(RegroupSumTest, LeavesProductsThatCannotTakeABias) {
  for (const int form : {0, 1, 2}) {
    SCOPED_TRACE(form);
    Draft draft;
    const ValueId z = draft.State(6);
    const int64_t repeat = form == 1 ? 2 : 1, size = 6 / repeat;
    const ValueId product = draft.Product(z, draft.Stacked(3, size * size, size), kNoValue,
                                          {.rows = size, .cols = size, .repeat = repeat});
    const ValueId bias = draft.Stacked(3, 6, 1);
    ValueId sum = form == 0 ? draft.Subtract(bias, product) : draft.Add(product, bias);
    if (form == 2) sum = draft.Multiply(sum, product);
    const Program before = draft.Finish(sum);
    const Program after = *Optimize(before);
    ExpectSameMeaning(before, after);
    EXPECT_EQ(InStep(after), InStep(before));
  }
}

}  // namespace
}  // namespace deeppcr::program
