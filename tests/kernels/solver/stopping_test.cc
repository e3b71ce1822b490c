// SPDX-License-Identifier: Apache-2.0
// The decisions of the stopping rule, from norms made by hand.
#include "kernels/solver/stopping.h"

#include <gtest/gtest.h>

namespace deeppcr {
namespace {

// Feeds the norms of one pass after the other.
class Solve {
 public:
  explicit Solve(const StoppingPolicy& policy)
      : policy_(policy), progress_(StartProgress(policy)) {}

  // The pass that was due has given an update of this size, and this much rounding.
  Solve& Pass(double update, double rounding = 0) {
    return Take({.update = update, .rounding = rounding, .combined = 2 * update + rounding});
  }
  Solve& Take(const UpdateNorms& norms, int64_t stages = 10, int64_t columns = 3) {
    EXPECT_NE(progress_.next, NextPass::kStop) << "a pass after the end";
    AdvanceProgress(policy_, norms, stages, columns, &progress_);
    return *this;
  }

  void ExpectNext(NextPass next, bool probes = false) const {
    EXPECT_EQ(static_cast<int>(progress_.next), static_cast<int>(next));
    EXPECT_EQ(progress_.probes, probes);
  }
  void ExpectStop(Termination termination) const {
    EXPECT_EQ(progress_.next, NextPass::kStop);
    EXPECT_EQ(ToString(progress_.termination), ToString(termination));
  }
  const Progress& progress() const { return progress_; }

 private:
  const StoppingPolicy policy_;
  Progress progress_;
};

StoppingPolicy Newton() { return {.rtol = 1e-4, .max_iterations = 8, .num_intervals = 100}; }
StoppingPolicy Linear(Linearization linearization = Linearization::kIdentity) {
  StoppingPolicy policy = Newton();
  policy.linearization = linearization;
  return policy;
}

TEST(StoppingTest, FloorIsTheStateSizeAtWhichBothTolerancesMeet) {
  EXPECT_DOUBLE_EQ((StoppingPolicy{.rtol = 1e-3, .atol = 1e-6}.floor()), 1e-3);
}

TEST(StoppingTest, NewtonIteratesUntilAnUpdateIsSmallThenCorrectsWithProbes) {
  Solve solve(Newton());
  solve.ExpectNext(NextPass::kIterate);
  solve.Pass(5.0).ExpectNext(NextPass::kIterate);
  solve.Pass(0.11).ExpectNext(NextPass::kIterate);
  solve.Pass(0.1).ExpectNext(NextPass::kCorrect, true);
  EXPECT_EQ(solve.progress().iterations, 3);
  EXPECT_EQ(solve.progress().corrections, 0);
}

TEST(StoppingTest, ConvergesWhereTwiceTheCorrectionAndTheRoundingFit) {
  Solve solve(Newton());
  solve.Pass(0.01).Pass(4e-5, 1e-5);  // combined 9e-5
  solve.ExpectStop(Termination::kConverged);
  EXPECT_EQ(solve.progress().iterations, 1);
  EXPECT_EQ(solve.progress().corrections, 1);
  EXPECT_EQ(solve.progress().stages, 20);
  EXPECT_EQ(solve.progress().columns, 6);
  // theta = 4e-5 / 0.01, and 10 theta < 2.
  EXPECT_DOUBLE_EQ(solve.progress().error_estimate, 10 * (4e-5 / 0.01) * 4e-5 + 1e-5);
  EXPECT_DOUBLE_EQ(solve.progress().rounding_estimate, 1e-5);
}

TEST(StoppingTest, ASlowCorrectionIsEstimatedAtTwiceItsSize) {
  Solve solve(Newton());
  solve.Pass(1e-4).Pass(4e-5, 1e-5);  // theta = 0.4
  solve.ExpectStop(Termination::kConverged);
  EXPECT_DOUBLE_EQ(solve.progress().error_estimate, 2 * 4e-5 + 1e-5);
}

TEST(StoppingTest, ToleranceIsMetExactlyAtTheBound) {
  Solve solve(Newton());
  solve.Pass(0.01).Take({.update = 4e-5, .rounding = 2e-5, .combined = 1e-4});
  solve.ExpectStop(Termination::kConverged);
  Solve above(Newton());
  above.Pass(0.01).Take({.update = 4e-5, .rounding = 2e-5, .combined = 1.0001e-4});
  above.ExpectNext(NextPass::kIterate);
}

// A tolerance of some per cent certifies no more than a correction of a few tenths of one.
TEST(StoppingTest, ALooseToleranceBoundsNothingByALargeCorrection) {
  StoppingPolicy loose = Newton();
  loose.rtol = 0.1;
  Solve large(loose);
  large.Pass(0.08).Pass(0.0051, 1e-6).ExpectNext(NextPass::kIterate);
  Solve small(loose);
  small.Pass(0.08).Pass(0.005, 1e-6).ExpectStop(Termination::kConverged);
  Solve rounding(loose);
  rounding.Pass(0.08).Pass(0.005, 0.08).ExpectStop(Termination::kConverged);
  // Nor is it the precision that ends such a solve.
  Solve within(loose);
  within.Pass(0.08).Pass(0.006, 0.02).ExpectNext(NextPass::kIterate);
}

TEST(StoppingTest, TheLargestSumOfOneIntervalCountsNotTheSumOfTheLargest) {
  Solve solve(Newton());
  // 2 |d| and rho are largest in different intervals: together below the tolerance in each.
  solve.Pass(0.01).Take({.update = 4e-5, .rounding = 9e-5, .combined = 9.5e-5});
  solve.ExpectStop(Termination::kConverged);
}

TEST(StoppingTest, ATooLargeCorrectionLeadsBackToIterating) {
  Solve solve(Newton());
  solve.Pass(0.05).Pass(1e-3, 1e-6).ExpectNext(NextPass::kIterate);
  solve.Pass(1e-5).ExpectNext(NextPass::kCorrect, true);
  solve.Pass(1e-9, 1e-6).ExpectStop(Termination::kConverged);
  EXPECT_EQ(solve.progress().iterations, 2);
  EXPECT_EQ(solve.progress().corrections, 2);
}

TEST(StoppingTest, RoundingAboveTheToleranceIsPrecisionLimited) {
  Solve solve(Newton());
  solve.Pass(0.01).Pass(1e-4, 2e-4);  // 2 |c| <= rho
  solve.ExpectStop(Termination::kPrecisionLimited);
  EXPECT_DOUBLE_EQ(solve.progress().rounding_estimate, 2e-4);
  Solve other(Newton());
  other.Pass(0.01).Pass(1.01e-4, 2e-4).ExpectNext(NextPass::kIterate);
}

TEST(StoppingTest, GivesUpAfterTheLastIteration) {
  StoppingPolicy policy = Newton();
  policy.max_iterations = 3;
  Solve solve(policy);
  solve.Pass(5).Pass(4).ExpectNext(NextPass::kIterate);
  solve.Pass(3).ExpectStop(Termination::kMaxIterations);
  EXPECT_EQ(solve.progress().iterations, 3);
}

TEST(StoppingTest, TheLastIterationStillGetsItsCorrection) {
  StoppingPolicy policy = Newton();
  policy.max_iterations = 1;
  Solve converges(policy), fails(policy);
  converges.Pass(0.05).ExpectNext(NextPass::kCorrect, true);
  converges.Pass(1e-6).ExpectStop(Termination::kConverged);
  fails.Pass(0.05).Pass(1e-3).ExpectStop(Termination::kMaxIterations);
}

TEST(StoppingTest, NonFiniteStatesEndEveryPass) {
  UpdateNorms bad{.update = 1e-9, .combined = 1e-9, .finite = false};
  Solve(Newton()).Take(bad).ExpectStop(Termination::kNonFinite);
  Solve(Newton()).Pass(0.01).Take(bad).ExpectStop(Termination::kNonFinite);
  StoppingPolicy warm = Newton();
  warm.warm_sweeps = 2;
  Solve(warm).Take(bad).ExpectStop(Termination::kNonFinite);
}

TEST(StoppingTest, SlowerThanSequentialStopsUnlessThatPassConverged) {
  StoppingPolicy policy = Newton();
  policy.stage_budget = 20;
  Solve slow(policy);
  slow.Pass(5).Pass(4).ExpectNext(NextPass::kIterate);  // 20 stages: not beyond
  slow.Pass(3).ExpectStop(Termination::kSlow);
  Solve converged(policy);
  converged.Pass(5).Pass(0.01).Pass(1e-6).ExpectStop(Termination::kConverged);
  EXPECT_EQ(converged.progress().stages, 30);
}

TEST(StoppingTest, ReusesMatricesWhileUpdatesContract) {
  StoppingPolicy policy = Newton();
  policy.reuse_matrices = true;
  Solve solve(policy);
  solve.Pass(5.0).ExpectNext(NextPass::kCorrect, false);         // far away: no probes yet
  solve.Pass(0.5).ExpectNext(NextPass::kCorrect, false);         // theta 0.1
  solve.Pass(0.05).ExpectNext(NextPass::kCorrect, true);         // close
  solve.Pass(0.005, 1e-6).ExpectNext(NextPass::kCorrect, true);  // judged: not there yet
  solve.Pass(0.001, 1e-6).ExpectNext(NextPass::kIterate);        // theta 0.2: no longer
  solve.Pass(1e-5).ExpectNext(NextPass::kCorrect, true);
  solve.Pass(1e-7, 1e-6).ExpectStop(Termination::kConverged);
  EXPECT_EQ(solve.progress().iterations, 2);
  EXPECT_EQ(solve.progress().corrections, 5);
}

TEST(StoppingTest, ASmallCorrectionWithoutProbesIsNotACertificate) {
  StoppingPolicy policy = Newton();
  policy.reuse_matrices = true;
  Solve solve(policy);
  solve.Pass(5.0).Pass(1e-9).ExpectNext(NextPass::kCorrect, true);
}

TEST(StoppingTest, WarmSweepsComeFirstAndDoNotCountAsIterations) {
  StoppingPolicy policy = Newton();
  policy.warm_sweeps = 2;
  Solve solve(policy);
  solve.ExpectNext(NextPass::kWarmSweep);
  solve.Pass(1e-9).ExpectNext(NextPass::kWarmSweep);  // their size decides nothing
  solve.Pass(1e-9).ExpectNext(NextPass::kIterate);
  EXPECT_EQ(solve.progress().warm_sweeps, 2);
  EXPECT_EQ(solve.progress().iterations, 0);
}

TEST(StoppingTest, CausalityMakesStatesExactAfterAsManyUpdatesAsIntervals) {
  StoppingPolicy policy = Newton();
  policy.num_intervals = 3;
  policy.warm_sweeps = 1;
  Solve solve(policy);
  solve.Pass(7).Pass(6).ExpectNext(NextPass::kIterate);
  solve.Pass(5).ExpectNext(NextPass::kCorrect, true);  // the third update: exact however large
  solve.Pass(0, 1e-6).ExpectStop(Termination::kConverged);
  EXPECT_DOUBLE_EQ(solve.progress().error_estimate, 1e-6);
}

class LinearStoppingTest : public ::testing::TestWithParam<Linearization> {};

TEST_P(LinearStoppingTest, ClaimIsPutToTheCertificate) {
  Solve solve(Linear(GetParam()));
  solve.Pass(1e-2).ExpectNext(NextPass::kIterate);
  solve.Pass(1e-3).ExpectNext(NextPass::kIterate);
  // Third iteration, theta 0.1: 1e-4 * 0.1 / 0.9 <= rtol.
  solve.Pass(1e-4).ExpectNext(NextPass::kLinearize);
  solve.Pass(1e-5).ExpectNext(NextPass::kCorrect, true);
  solve.Pass(1e-6, 1e-6).ExpectStop(Termination::kConverged);
  EXPECT_EQ(solve.progress().iterations, 4);
  EXPECT_EQ(solve.progress().corrections, 1);
}

TEST_P(LinearStoppingTest, ClaimNeedsThreeIterations) {
  Solve solve(Linear(GetParam()));
  solve.Pass(1e-5).Pass(1e-9).ExpectNext(NextPass::kIterate);
  solve.Pass(1e-10).ExpectNext(NextPass::kLinearize);
}

TEST_P(LinearStoppingTest, ASlowRateIsNotTrusted) {
  Solve solve(Linear(GetParam()));
  solve.Pass(4e-5).Pass(2e-5).Pass(1e-5).ExpectNext(NextPass::kIterate);  // theta exactly 0.5
  solve.Pass(0.499e-5).ExpectNext(NextPass::kLinearize);
}

TEST_P(LinearStoppingTest, RemainderAboveToleranceIteratesOn) {
  Solve solve(Linear(GetParam()));
  // theta 0.4: the rest is 2/3 of the update.
  solve.Pass(1e-2).Pass(4e-3).Pass(1.6e-3).ExpectNext(NextPass::kIterate);
}

TEST_P(LinearStoppingTest, AFalseClaimIteratesOn) {
  Solve solve(Linear(GetParam()));
  solve.Pass(1e-2).Pass(1e-3).Pass(1e-4).ExpectNext(NextPass::kLinearize);
  solve.Pass(0.3).Pass(0.1, 1e-6).ExpectNext(NextPass::kIterate);
}

TEST_P(LinearStoppingTest, ExactStatesGoToTheCertificateWithoutAClaim) {
  StoppingPolicy policy = Linear(GetParam());
  policy.num_intervals = 2;
  Solve solve(policy);
  solve.Pass(5).Pass(4).ExpectNext(NextPass::kLinearize);
  solve.Pass(0).Pass(0, 1e-6).ExpectStop(Termination::kConverged);
}

TEST_P(LinearStoppingTest, MaxIterationsAndRoundingAreHonoured) {
  StoppingPolicy policy = Linear(GetParam());
  policy.max_iterations = 2;
  Solve(policy).Pass(5).Pass(4).ExpectStop(Termination::kMaxIterations);
  Solve limited(Linear(GetParam()));
  limited.Pass(1e-2).Pass(1e-3).Pass(1e-4).Pass(1e-5).Pass(1e-5, 1e-2);
  limited.ExpectStop(Termination::kPrecisionLimited);
}

INSTANTIATE_TEST_SUITE_P(Linearizations, LinearStoppingTest,
                         ::testing::Values(Linearization::kDiagonal, Linearization::kIdentity,
                                           Linearization::kZero));

}  // namespace
}  // namespace deeppcr
