// SPDX-License-Identifier: Apache-2.0
#include "kernels/plan/ways.h"

#include <gtest/gtest.h>

#include "kernels/plan/plan_key.h"
#include "tests/testing/expect_error.h"
#include "tests/testing/solver_rig.h"
#include "tests/testing/systems.h"

namespace deeppcr::testing {
namespace {

// A system with both of its runners, on one thread.
class WaysRig {
 public:
  explicit WaysRig(const StackOptions& options)
      : random_(options),
        backend_(BackendCases().front().create()),
        system_(backend_->NewSystem(random_.spec(), {.backward = true}).value()),
        runner_(Runner::Create(*system_, ShapeOf(random_.spec()), {}, &pool_, 1).value()) {
    Limit({.samples = 4});
  }
  void Limit(const BackwardLimits& limits) {
    backward_ =
        BackwardRunner::Create(*system_, ShapeOf(random_.spec()), limits, &pool_, 1).value();
  }
  absl::Status Measure(const PlannerOptions& options, Plan* plan) const {
    return MeasureWays(*runner_, *backward_, SyntheticInputs(64, 4), options, plan);
  }

 private:
  const RandomSystem random_;
  ThreadPool pool_{1};
  const std::unique_ptr<Backend> backend_;
  const std::unique_ptr<System> system_;
  const std::unique_ptr<Runner> runner_;
  std::unique_ptr<BackwardRunner> backward_;
};

class WaysTest : public ::testing::Test {
 protected:
  WaysTest() {
    for (const int32_t n : {1, 2, 8}) plan_.entries.push_back({.max_samples = n});
  }
  absl::Status Measure(const PlannerOptions& options) { return rig_.Measure(options, &plan_); }

  WaysRig rig_{{.num_steps = 256, .state_dim = 4, .residual = true}};
  Plan plan_;
};

// Of n = 1 the clock has its say; of the others nothing is timed here.
TEST_F(WaysTest, CountedWorkDecidesWhereNothingIsTimed) {
  EXPECT_FALSE(HasWays(plan_));
  ASSERT_TRUE(Measure({.max_batch_size = 8, .rates = {1e6, 1e-8}, .seconds_of_timing = 0}).ok());
  EXPECT_TRUE(HasWays(plan_));
  for (const PlanEntry& entry : plan_.entries)
    EXPECT_EQ(entry.ways->way, BackwardWay::kSequential) << "flops are dear";
  EXPECT_GT(plan_.entries[0].ways->sequential_seconds, 0);
  EXPECT_GT(plan_.entries[0].ways->parallel_seconds, 0);
  EXPECT_EQ(plan_.entries[1].ways->sequential_seconds, 0);

  ASSERT_TRUE(Measure({.max_batch_size = 8, .rates = {1e15, 1e-3}, .seconds_of_timing = 0}).ok());
  EXPECT_EQ(plan_.entries[1].ways->way, BackwardWay::kParallel) << "stages are dear";
  EXPECT_EQ(plan_.entries[2].ways->way, BackwardWay::kParallel);
}

TEST_F(WaysTest, WithoutAParallelWayThereIsNothingToChoose) {
  rig_.Limit({.samples = 4, .parallel = false});
  ASSERT_TRUE(Measure({.max_batch_size = 8, .rates = {1e15, 1e-3}, .seconds_of_timing = 0}).ok());
  for (const PlanEntry& entry : plan_.entries) EXPECT_EQ(entry.ways->way, BackwardWay::kSequential);
}

TEST_F(WaysTest, EveryCountIsTimedWhileThereIsTime) {
  ASSERT_TRUE(Measure({.max_batch_size = 8, .rates = {1e9, 1e-8}}).ok());
  for (const PlanEntry& entry : plan_.entries) {
    EXPECT_GT(entry.ways->sequential_seconds, 0) << entry.max_samples;
    EXPECT_GT(entry.ways->parallel_seconds, 0) << entry.max_samples;
  }
}

TEST_F(WaysTest, NothingIsSaidAfterTheTokenHasFired) {
  CancelToken token;
  token.Cancel();
  ExpectError(Measure({.max_batch_size = 8, .token = &token}), absl::StatusCode::kCancelled,
              "stopped while the plan was measured");
  EXPECT_FALSE(HasWays(plan_));
}

TEST_F(WaysTest, TrajectoriesThatOverflowLeaveThePlanAsItIs) {
  const WaysRig rough(
      {.num_steps = 512, .state_dim = 4, .activation = Activation::kIdentity, .gain = 1e4});
  ASSERT_TRUE(rough.Measure({.max_batch_size = 8}, &plan_).ok());
  EXPECT_FALSE(HasWays(plan_));
}

TEST_F(WaysTest, TheIdNamesTheWayAndNotItsTime) {
  const std::string without = PlanId({}, plan_).value();
  for (PlanEntry& entry : plan_.entries) entry.ways = PlanWays();
  const std::string sequential = PlanId({}, plan_).value();
  EXPECT_NE(sequential, without);
  plan_.entries[1].ways->parallel_seconds = 3;
  EXPECT_EQ(PlanId({}, plan_).value(), sequential);
  plan_.entries[1].ways->way = BackwardWay::kParallel;
  EXPECT_NE(PlanId({}, plan_).value(), sequential);
}

}  // namespace
}  // namespace deeppcr::testing
