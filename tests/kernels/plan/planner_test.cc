// SPDX-License-Identifier: Apache-2.0
#include "kernels/plan/planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/plan/candidates.h"
#include "kernels/plan/plan_key.h"
#include "kernels/plan/trial.h"
#include "tests/testing/expect_error.h"
#include "tests/testing/solver_rig.h"
#include "tests/testing/systems.h"

namespace deeppcr::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(PlannerTest, NothingIsMeasuredAfterTheTokenHasFired) {
  const RandomSystem system({.num_steps = 64, .state_dim = 4});
  const SolverRig rig(BackendCases().front().create(), system.spec());
  CancelToken token;
  std::vector<std::string> said;
  const PlannerOptions options{
      .max_batch_size = 4096, .token = &token, .progress = [&](std::string_view text) {
        said.emplace_back(text);
        token.Cancel();
      }};

  ExpectError(MeasurePlan(rig.runner(), SyntheticInputs(64, 4), options),
              absl::StatusCode::kCancelled, "stopped while the plan was measured");
  EXPECT_EQ(said.size(), 1u);
}

// The choices of the entries do not depend on the clock; their figures do.
TEST(PlannerTest, OutOfTimeOnlyTheSmallestRequestHasFigures) {
  const RandomSystem system({.num_steps = 64, .state_dim = 4});
  const SolverRig rig(BackendCases().front().create(), system.spec());

  const auto plan = MeasurePlan(rig.runner(), SyntheticInputs(64, 4),
                                {.max_batch_size = 3000, .seconds_of_timing = 0});

  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan->entries.size(), 13u);
  EXPECT_EQ(plan->entries[0].max_samples, 1);
  EXPECT_GT(plan->entries[0].sequential_seconds, 0);
  EXPECT_EQ(plan->entries[11].max_samples, 2048);
  EXPECT_EQ(plan->entries[12].max_samples, 3000);
  EXPECT_EQ(plan->entries[12].sequential_seconds, 0);
}

std::string WhatItDecides(const Plan& plan) { return PlanId({}, plan).value_or(""); }

// Tests every backend, with timing and without, on one thread and on three.
TEST(PlannerTest, MeasuringAgainChoosesAgain) {
  const RandomSystem system({.num_steps = 256, .state_dim = 4, .residual = true});
  for (const BackendCase& backend : BackendCases()) {
    const SolverRig rig(backend.create(), system.spec());
    const SolverRig threads(backend.create(), system.spec(), 3);
    const CalibrationInputs inputs = SyntheticInputs(64, 4);
    const PlannerOptions options{.max_batch_size = 8, .rates = {1e9, 1e-8}};
    PlannerOptions untimed = options;
    untimed.seconds_of_timing = 0;

    const auto first = MeasurePlan(rig.runner(), inputs, options);
    const auto second = MeasurePlan(rig.runner(), inputs, untimed);
    const auto third = MeasurePlan(threads.runner(), inputs, options);

    ASSERT_TRUE(first.ok() && second.ok() && third.ok());
    EXPECT_FALSE(first->choices.empty());
    EXPECT_GT(first->least_rtol, 0);
    EXPECT_EQ(WhatItDecides(*second), WhatItDecides(*first)) << backend.name;
    EXPECT_EQ(WhatItDecides(*third), WhatItDecides(*first)) << backend.name;
    EXPECT_EQ(second->candidates, first->candidates) << backend.name;
  }
}

// The limit on the work of candidates is counted, not timed: a lower one leaves out the later ones.
TEST(PlannerTest, WhatIsTooMuchWorkIsLeftOut) {
  const RandomSystem system({.num_steps = 256, .state_dim = 4, .residual = true});
  const SolverRig rig(BackendCases().front().create(), system.spec());
  const auto plan = MeasurePlan(rig.runner(), SyntheticInputs(64, 4), {.flops_in_all = 1e5});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(plan->candidates, ::testing::Contains(HasSubstr("not run: too much work")));
}

TEST(ParallelIsFasterTest, TheClockOverrulesTheCountsOnlyClearly) {
  const auto faster = [](double counted, double sequential, double parallel) {
    // Every run but the shortest was disturbed.
    return ParallelIsFaster(counted, {.sequential = {9, sequential, 30 * sequential},
                                      .parallel = {parallel, 40 * parallel, 7 * parallel}});
  };
  EXPECT_TRUE(faster(1.1, 1, 0.9 * kClearlyFaster));
  EXPECT_FALSE(faster(1.1, 1, 1.1 * kClearlyFaster));
  EXPECT_FALSE(faster(0.9, 0.9 * kClearlyFaster, 1));
  EXPECT_TRUE(faster(0.9, 1.1 * kClearlyFaster, 1));
}

TEST(ParallelIsFasterTest, AFewRunsOverruleNothing) {
  const Timing few = {.sequential = {9, 9, 9}, .parallel = {1, 1}};
  EXPECT_FALSE(ParallelIsFaster(0.9, few));
  EXPECT_TRUE(ParallelIsFaster(1.1, {.sequential = {1, 1}, .parallel = {9, 9}}));
  EXPECT_TRUE(ParallelIsFaster(1.1, {}));
  EXPECT_FALSE(ParallelIsFaster(0.9, {}));
}

Trial MadeOf(int32_t interval, double flops, double stages) {
  return {.choice = {.shooting_interval = interval},
          .met_tolerance = true,
          .cost = {.flops = flops, .stages = stages}};
}

TEST(BestOfTest, EqualWorkIsDecidedByStages) {
  const CostRates rates = {.flops_per_second = 1, .seconds_per_stage = 0};
  const std::vector<Trial> equal = {MadeOf(64, 100, 300), MadeOf(16, 0.99 * 100 * kEqualWork, 200)};
  EXPECT_EQ(BestOf(equal, rates), &equal[1]);
  const std::vector<Trial> less = {MadeOf(64, 100, 300), MadeOf(16, 1.01 * 100 * kEqualWork, 200)};
  EXPECT_EQ(BestOf(less, rates), &less[0]);
  // The order does not matter, and a trial that missed the tolerance is never the best.
  std::vector<Trial> others = {equal[1], equal[0], MadeOf(1, 1, 1)};
  others[2].met_tolerance = false;
  EXPECT_EQ(BestOf(others, rates), &others[0]);
  EXPECT_EQ(BestOf({}, rates), nullptr);
}

// Of equal work, what a device does without the host, however many stages that takes.
TEST(BestOfTest, EqualWorkAtOnceComesFirst) {
  const CostRates rates = {.flops_per_second = 1, .seconds_per_stage = 0};
  std::vector<Trial> trials = {MadeOf(16, 100, 200), MadeOf(10, 0.99 * 100 * kEqualWork, 300)};
  trials[1].at_once = true;
  EXPECT_EQ(BestOf(trials, rates), &trials[1]);
  trials[1].cost.flops = 1.01 * 100 * kEqualWork;
  EXPECT_EQ(BestOf(trials, rates), &trials[0]);
}

// Where a backend solves at once with none of the usual C, the least C with which it does is tried,
// by the solver that it is said of.
TEST(PlannerTest, TriesAnIntervalThatSolvesAtOnce) {
  const RandomSystem system({.num_steps = 256, .state_dim = 4, .residual = true});
  const SolverRig rig(BackendCases().front().create(), system.spec());
  const auto intervals = [&](std::string_view solver, auto solves_at_once) {
    PlannerOptions options = {.seconds_of_timing = 0};
    options.solves_at_once = solves_at_once;
    const Plan plan = MeasurePlan(rig.runner(), SyntheticInputs(64, 4), options).value();
    std::vector<int64_t> found;
    for (const PlanChoice& choice : plan.choices)
      if (choice.solver == solver) found.push_back(choice.shooting_interval);
    return found;
  };
  const std::vector<int64_t> usual = intervals("newton", nullptr);
  ASSERT_EQ(usual.size(), 1U);
  EXPECT_EQ(intervals("newton", [](int64_t c) { return c == 10 || c == 11; }),
            std::vector<int64_t>{10});
  EXPECT_EQ(intervals("newton", [](int64_t c) { return c == 4 || c == 10; }),
            std::vector<int64_t>{4});
  EXPECT_EQ(intervals("newton", [](int64_t c) { return c > 128; }), usual);  // too few intervals
  EXPECT_EQ(intervals("jacobi", [](int64_t c) { return c == 10; }), intervals("jacobi", nullptr));
}

// A trial that takes more stages than there are steps comes last: only requests that name its
// solver run it.
TEST(BestOfTest, WithinTheStepsComesFirst) {
  const CostRates rates = {.flops_per_second = 1, .seconds_per_stage = 0};
  std::vector<Trial> trials = {MadeOf(4, 100, 300), MadeOf(8, 900, 200), MadeOf(16, 50, 400)};
  trials[0].within_steps = trials[2].within_steps = false;
  EXPECT_EQ(BestOf(trials, rates), &trials[1]);
  trials[1].met_tolerance = false;
  EXPECT_EQ(BestOf(trials, rates), &trials[2]);
}

TEST(CheckPlanTest, KeepsWhatMeetsTheToleranceAndNamesWhatDoesNot) {
  const RandomSystem system({.num_steps = 256, .state_dim = 4, .residual = true});
  const SolverRig rig(BackendCases().front().create(), system.spec());
  const CalibrationInputs inputs = SyntheticInputs(64, 4);
  const auto measured = MeasurePlan(rig.runner(), inputs, {}).value();
  Plan plan = measured;
  // The check replaces what another build found out; times stay.
  plan.least_rtol = 0;
  ASSERT_TRUE(plan.entries[0].has_parallel());
  plan.entries[0].parallel_stages = 1;
  plan.entries[0].parallel_iterations = plan.entries[0].parallel_error = 1e9;

  EXPECT_TRUE(CheckPlan(rig.runner(), inputs, {}, &plan).ok());
  EXPECT_EQ(plan.least_rtol, measured.least_rtol);
  EXPECT_EQ(plan.entries, measured.entries);

  // This tolerance is below what float32 can do.
  ExpectError(CheckPlan(rig.runner(), inputs, {.rtol = 1e-9, .atol = 0}, &plan),
              absl::StatusCode::kFailedPrecondition, "missed");
  CancelToken token;
  token.Cancel();
  ExpectError(CheckPlan(rig.runner(), inputs, {.token = &token}, &plan),
              absl::StatusCode::kCancelled, "stopped");
}

// An answer that overflows or is cut off is no standard for candidates.
TEST(PlannerTest, WithoutASequentialAnswerThereAreNoCandidates) {
  const RandomSystem wild(
      {.num_steps = 64, .state_dim = 4, .activation = Activation::kIdentity, .gain = 1e3});
  const SolverRig rig(BackendCases().front().create(), wild.spec());
  const auto plan = MeasurePlan(rig.runner(), SyntheticInputs(64, 4), {}).value();
  EXPECT_THAT(plan.candidates,
              ElementsAre("none tried: sample 0 of the calibration is non_finite with the "
                          "sequential solver"));
  EXPECT_TRUE(plan.choices.empty());

  const RandomSystem slow({.num_steps = 1000, .state_dim = 64});
  const SolverRig slow_rig(BackendCases().front().create(), slow.spec());
  const auto late = MeasurePlan(slow_rig.runner(), SyntheticInputs(64, 64), {.seconds_per_run = 0});
  ASSERT_TRUE(late.ok()) << late.status();
  EXPECT_THAT(late->candidates,
              ElementsAre(StartsWith("none tried: sample 0 of the calibration is deadline")));
  EXPECT_EQ(late->entries.back().sequential_seconds, 0);
}

}  // namespace
}  // namespace deeppcr::testing
