// SPDX-License-Identifier: Apache-2.0
#include "kernels/plan/planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/expect_error.h"
#include "tests/testing/solver_rig.h"
#include "tests/testing/systems.h"

namespace deeppcr {
namespace {

using testing::BackendCases;
using ::testing::ElementsAre;
using testing::RandomSystem;
using testing::SolverRig;
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

  testing::ExpectError(MeasurePlan(rig.runner(), SyntheticInputs(64, 4), options),
                       absl::StatusCode::kCancelled, "stopped while the plan was measured");
  EXPECT_EQ(said.size(), 1u);
}

// Out of time before anything is known, requests of one sample are measured, not the largest.
TEST(PlannerTest, OutOfTimeTheSmallestRequestIsMeasured) {
  const RandomSystem system({.num_steps = 64, .state_dim = 4});
  const SolverRig rig(BackendCases().front().create(), system.spec());

  const auto plan = MeasurePlan(rig.runner(), SyntheticInputs(64, 4),
                                {.max_batch_size = 4096, .seconds_in_all = 0});

  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan->entries.size(), 2u);
  EXPECT_EQ(plan->entries[0].max_samples, 1);
  EXPECT_GT(plan->entries[0].sequential_seconds, 0);
  EXPECT_EQ(plan->entries[1].max_samples, 4096);
  EXPECT_EQ(plan->entries[1].sequential_seconds, 0);
  EXPECT_EQ(plan->entries[1].solver, "sequential");
}

// What overflows or is cut off is no answer that others could be judged by.
TEST(PlannerTest, WithoutASequentialAnswerThereAreNoCandidates) {
  const RandomSystem wild(
      {.num_steps = 64, .state_dim = 4, .activation = Activation::kIdentity, .gain = 1e3});
  const SolverRig rig(BackendCases().front().create(), wild.spec());
  const auto plan = MeasurePlan(rig.runner(), SyntheticInputs(64, 4), {});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(plan->candidates,
              ElementsAre("none measured: sample 0 of the calibration is non_finite with the "
                          "sequential solver"));
  EXPECT_TRUE(plan->choices.empty());

  const RandomSystem slow({.num_steps = 1000, .state_dim = 64});
  const SolverRig slow_rig(BackendCases().front().create(), slow.spec());
  const auto late = MeasurePlan(slow_rig.runner(), SyntheticInputs(64, 64), {.seconds_per_run = 0});
  ASSERT_TRUE(late.ok()) << late.status();
  EXPECT_THAT(late->candidates,
              ElementsAre(StartsWith("none measured: sample 0 of the calibration is deadline")));
  EXPECT_EQ(late->entries.back().sequential_seconds, 0);
}

}  // namespace
}  // namespace deeppcr
