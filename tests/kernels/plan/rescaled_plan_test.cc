// SPDX-License-Identifier: Apache-2.0
#include "kernels/plan/rescaled_plan.h"

#include <gtest/gtest.h>

#include <array>

namespace deeppcr {
namespace {

TEST(NearestStepsTest, IsNearestByRatioAndTheLargerOfTwo) {
  constexpr std::array<int64_t, 3> kPlanned = {100, 1000, 10};
  const auto nearest = [&](int64_t steps) { return kPlanned[NearestSteps(kPlanned, steps)]; };
  EXPECT_EQ(nearest(1), 10);
  EXPECT_EQ(nearest(10), 10);
  EXPECT_EQ(nearest(31), 10);   // 3.1 of 10, 3.23 of 100
  EXPECT_EQ(nearest(32), 100);  // 3.2 and 3.125
  EXPECT_EQ(nearest(316), 100);
  EXPECT_EQ(nearest(317), 1000);
  EXPECT_EQ(nearest(1 << 20), 1000);
  // 20 is twice 10 and half of 40, whatever the order.
  EXPECT_EQ(NearestSteps(std::array<int64_t, 2>{10, 40}, 20), 1U);
  EXPECT_EQ(NearestSteps(std::array<int64_t, 2>{40, 10}, 20), 0U);
}

PlanChoice Choice(std::string solver, int32_t interval) {
  return {.solver = std::move(solver), .shooting_interval = interval};
}

// A plan for 100 steps.
Plan Measured() {
  Plan plan;
  plan.id = "0123456789abcdef";
  plan.device = "cpu-avx2";
  plan.least_rtol = 3e-6;
  plan.measured_seconds = 2;
  plan.choices = {Choice("newton", 8), Choice("quasi_newton", 1), Choice("picard", 4)};
  plan.entries = {{.max_samples = 4,
                   .solver = "newton",
                   .parallel = Choice("newton", 8),
                   .sequential_seconds = 2e-3,
                   .parallel_seconds = 1e-3,
                   .parallel_stages = 40},
                  {.max_samples = 64, .solver = "sequential", .sequential_seconds = 5e-3}};
  plan.candidates = {"newton, C = 8: ..."};
  return plan;
}

TEST(RescaledPlanTest, KeepsTheNumberOfIntervals) {
  const Plan twice = RescaledPlan(Measured(), 100, 200, 1);
  EXPECT_EQ(twice.ChoiceOf("newton")->shooting_interval, 16);
  EXPECT_EQ(twice.ChoiceOf("picard")->shooting_interval, 8);
  EXPECT_EQ(twice.entries[0].parallel.shooting_interval, 16);
  EXPECT_EQ(twice.entries[0].solver, "newton");
  const Plan half = RescaledPlan(Measured(), 100, 50, 1);
  EXPECT_EQ(half.ChoiceOf("newton")->shooting_interval, 4);
  EXPECT_EQ(half.ChoiceOf("picard")->shooting_interval, 2);
}

TEST(RescaledPlanTest, KeepsToWhatSystemAndSolverAllow) {
  const Plan larger = RescaledPlan(Measured(), 100, 1000, 1);
  EXPECT_EQ(larger.ChoiceOf("quasi_newton")->shooting_interval, 1);  // which takes no other
  const Plan one = RescaledPlan(Measured(), 100, 1, 1);
  for (const PlanChoice& choice : one.choices) EXPECT_EQ(choice.shooting_interval, 1);
  const Plan coarse = RescaledPlan(Measured(), 100, 50, 16);
  EXPECT_EQ(coarse.ChoiceOf("newton")->shooting_interval, 16);
  EXPECT_EQ(RescaledPlan(Measured(), 100, 8, 16).ChoiceOf("newton")->shooting_interval, 8);
}

TEST(RescaledPlanTest, SaysNothingThatWasNotMeasured) {
  const Plan plan = RescaledPlan(Measured(), 100, 50, 1);
  EXPECT_EQ(plan.id, "");
  EXPECT_EQ(plan.source, PlanSource::kNearest);
  EXPECT_EQ(ToString(plan.source), "nearest");
  EXPECT_EQ(plan.measured_seconds, 0);
  for (const PlanEntry& entry : plan.entries) {
    EXPECT_EQ(entry.sequential_seconds, 0);
    EXPECT_EQ(entry.parallel_seconds, 0);
  }
  EXPECT_EQ(plan.device, "cpu-avx2");
  EXPECT_EQ(plan.least_rtol, 3e-6);
  ASSERT_EQ(plan.candidates.size(), 1U);
  EXPECT_NE(plan.candidates[0].find("100 steps"), std::string::npos);
}

// 40 dependent stages are no gain over 39 steps.
TEST(RescaledPlanTest, AutoGoesStepByStepWhereThereAreFewerStepsThanStages) {
  EXPECT_EQ(RescaledPlan(Measured(), 100, 40, 1).entries[0].solver, "newton");
  EXPECT_EQ(RescaledPlan(Measured(), 100, 39, 1).entries[0].solver, "sequential");
  EXPECT_EQ(RescaledPlan(Measured(), 100, 39, 1).entries[0].parallel.solver, "newton");
  // A plan that took more stages than steps, and was faster all the same, stays so.
  EXPECT_EQ(RescaledPlan(Measured(), 30, 35, 1).entries[0].solver, "newton");
  // An entry without a parallel choice has nothing to rescale.
  EXPECT_EQ(RescaledPlan(Measured(), 100, 50, 1).entries[1].parallel, PlanChoice{});
}

}  // namespace
}  // namespace deeppcr
