// SPDX-License-Identifier: Apache-2.0
#include "kernels/program/passes/products.h"

#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <vector>

#include "kernels/program/optimize.h"
#include "tests/kernels/program/draft.h"
#include "tests/kernels/program/same_meaning.h"

namespace deeppcr::program {
namespace {

TEST(RewriteProductTest, MultipliesLowerClassesAmongThemselvesFirst) {
  Draft draft;
  const ValueId z = draft.State(6), t = draft.Linear(draft.Time(), 6), c = draft.Condition(6);
  const ValueId scaled = draft.Multiply(draft.Multiply(z, t), c);
  const Program before = draft.Finish(draft.By(Op::kMultiply, scaled, 3));
  const Program after = *Optimize(before);
  ExpectSameMeaning(before, after);
  EXPECT_EQ(InStep(before), 3 * 6);
  EXPECT_EQ(InStep(after), 6);
}

TEST(DistributeProductTest, TakesANormsWeightAndBiasIntoWhatModulatesIt) {
  for (const bool leading : {false, true}) {
    Draft draft;
    const ValueId z = draft.State(6), t = draft.Linear(draft.Time(), 6), c = draft.Condition(6);
    const ValueId weight = draft.Constant({1, 2, 3, -4, 5, 6});
    const ValueId bias = draft.Constant({6, 5, -4, 3, 2, 1});
    const ValueId affine = draft.Add(draft.Multiply(z, weight), bias);
    const ValueId modulated = leading ? draft.Multiply(c, affine) : draft.Multiply(affine, c);
    const Program before = draft.Finish(draft.Add(modulated, t));
    const Program after = *Optimize(before);
    ExpectSameMeaning(before, after);
    EXPECT_EQ(InStep(before), 4 * 6);
    EXPECT_EQ(InStep(after), 2 * 6);
  }
}

TEST(DistributeProductTest, LeavesWhatItWouldNotMakeLess) {
  for (int reason = 0; reason < 4; ++reason) {
    Draft draft;
    const ValueId z = draft.State(6), t = draft.Linear(draft.Time(), 6), c = draft.Condition(6);
    const ValueId sine = draft.Do(Op::kSin, {z});
    // Nothing scales the state; an addend, or the factor, is on the state; the sum is read again.
    const ValueId product = draft.Multiply(z, reason == 0 ? sine : t);
    const ValueId sum = draft.Add(product, reason == 1 ? sine : c);
    ValueId end = draft.Multiply(sum, reason == 2 ? sine : t);
    if (reason == 3) end = draft.Add(end, draft.Do(Op::kTanh, {sum}));
    const Program before = draft.Finish(draft.Add(end, sine));
    const Program after = *Optimize(before);
    ExpectSameMeaning(before, after, 0);
    EXPECT_EQ(InStep(after), InStep(before)) << reason;
  }
}

TEST(RewriteProductTest, LeavesAProductWhoseInnerOneIsReadElsewhere) {
  Draft draft;
  const ValueId z = draft.State(6), t = draft.Linear(draft.Time(), 6), c = draft.Condition(6);
  const ValueId inner = draft.Multiply(z, t);
  const Program before =
      draft.Finish(draft.Add(draft.Multiply(inner, c), draft.Do(Op::kSin, {inner})));
  const Program after = *Optimize(before);
  ExpectSameMeaning(before, after, 0);
  EXPECT_EQ(InStep(after), InStep(before));
}

TEST(RewriteProductTest, PutsPowersOfTwoIntoTheWeights) {
  for (const bool bias : {false, true}) {
    Draft draft;
    const ValueId layer = draft.Linear(draft.State(4), 4, bias);
    const ValueId scale = draft.Constant({0.5, -2, 1, 1024});
    const Program before = draft.Finish(draft.Multiply(scale, layer));
    const Program after = *Optimize(before);
    ExpectSameMeaning(before, after, 1e-15);
    EXPECT_EQ(after.instructions.size(), 1u);
  }
}

TEST(RewriteProductTest, PutsThemIntoRepeatedRowsOnlyWhereTheyRepeat) {
  for (const double last : {4.0, 8.0}) {
    Draft draft;
    const ValueId layer = draft.Linear(draft.State(4), draft.Layer(2, 2, true, 2));
    const ValueId scale = draft.Constant({0.5, 4, 0.5, last});
    const Program before = draft.Finish(draft.Multiply(layer, scale));
    const Program after = *Optimize(before);
    ExpectSameMeaning(before, after, 1e-15);
    EXPECT_EQ(after.instructions.size(), last == 4 ? 1u : 2u);
  }
}

TEST(RewriteProductTest, LeavesWeightsThatWouldBeRounded) {
  Draft draft;
  const ValueId layer = draft.Linear(draft.State(4), 4);
  const Program before = draft.Finish(draft.By(Op::kMultiply, layer, 0.3));
  const Program after = *Optimize(before);
  ExpectSameMeaning(before, after, 0);
  EXPECT_EQ(after.instructions.size(), 2u);
}

TEST(RewriteProductTest, LeavesWeightsThatWouldLeaveTheRangeOfFloat) {
  for (const float weight : {std::numeric_limits<float>::denorm_min(), 3e38F}) {
    Draft draft;
    LinearLayer layer = {2, 2, 1};
    layer.weight = std::make_shared<std::vector<float>>(std::vector<float>{weight, 1, 1, 1});
    const double factor = weight < 1 ? 0.5 : 4;
    const ValueId linear = draft.Linear(draft.State(2), layer);
    const Program after = *Optimize(draft.Finish(draft.By(Op::kMultiply, linear, factor)));
    EXPECT_EQ(after.instructions.size(), 2u);
  }
}

TEST(RewriteProductTest, LeavesTheWeightsOfALayerThatIsReadElsewhere) {
  Draft draft;
  const ValueId layer = draft.Linear(draft.State(4), 4);
  const Program before =
      draft.Finish(draft.Add(draft.By(Op::kMultiply, layer, 0.5), draft.Do(Op::kSin, {layer})));
  const Program after = *Optimize(before);
  ExpectSameMeaning(before, after, 0);
  EXPECT_EQ(after.instructions.size(), before.instructions.size());
}

}  // namespace
}  // namespace deeppcr::program
