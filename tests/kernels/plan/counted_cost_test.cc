// SPDX-License-Identifier: Apache-2.0
#include "kernels/plan/counted_cost.h"

#include <gtest/gtest.h>

namespace deeppcr {
namespace {

constexpr SystemShape kShape = {.num_steps = 100, .state_dim = 4, .step_weights = 16};

TEST(CountedCostTest, ColumnsCostTheirStepsAndPassesTheirTree) {
  // Nine columns: one pass of Jacobians, its vector, and four vectors more.
  EXPECT_EQ(CountedFlops(kShape, 10, 9, 7), 2 * 9 * 100 * 16 + 2 * 1 * 10 * 64);
  EXPECT_EQ(CountedFlops(kShape, 10, 10, 7), 2 * 10 * 100 * 16 + 2 * 2 * 10 * 64);
  // One iteration and five passes of a vector have the same number of columns.
  EXPECT_EQ(CountedFlops(kShape, 10, 10, 1), 2 * 10 * 100 * 16 + 2 * 1 * 10 * 64);
}

TEST(CountedCostTest, SequentialIsOneColumnAndAsManyStagesAsSteps) {
  const CountedCost cost = SequentialCost(kShape);
  EXPECT_EQ(cost.flops, 2 * 100 * 16);
  EXPECT_EQ(cost.stages, 100);
}

TEST(CountedCostTest, WorkAddsUpOverSamplesAndStagesDoNot) {
  const CountedCost cost = {.flops = 10, .stages = 3};
  const CostRates rates = {.flops_per_second = 5, .seconds_per_stage = 2};
  EXPECT_EQ(cost.Seconds(rates, 1), 8);
  EXPECT_EQ(cost.Seconds(rates, 4), 14);
}

}  // namespace
}  // namespace deeppcr
