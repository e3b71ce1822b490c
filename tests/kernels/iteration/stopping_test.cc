// SPDX-License-Identifier: Apache-2.0
// The decisions of the stopping rule for norms made by hand.
#include "kernels/iteration/stopping.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "tests/kernels/iteration/fed_solve.h"

namespace deeppcr {
namespace {

TEST(StoppingTest, FloorIsTheStateSizeAtWhichBothTolerancesMeet) {
  EXPECT_DOUBLE_EQ((StoppingPolicy{.rtol = 1e-3, .atol = 1e-6}.floor()), 1e-3);
}

// An error below the least normal float counts as none, even if no absolute error is allowed.
TEST(StoppingTest, FloorWithoutAnAbsoluteToleranceIsThatOfTheLeastNormalFloat) {
  EXPECT_EQ((StoppingPolicy{.rtol = 1e-3, .atol = 0}.floor()), 0x1p-126 / 1e-3);
  EXPECT_EQ((StoppingPolicy{.rtol = 1e-3, .atol = 1e-40}.floor()), 0x1p-126 / 1e-3);
  EXPECT_EQ((StoppingPolicy{.rtol = 1e-3, .atol = 0x1p-125}.floor()), 0x1p-125 / 1e-3);
}

constexpr Linearization kLinearizations[] = {Linearization::kFull, Linearization::kDiagonal,
                                             Linearization::kIdentity, Linearization::kZero};

TEST(StoppingTest, KindsOfPasses) {
  struct Row {
    NextPass next;
    bool own, refresh;  // `own`: the solver's own matrices, else Jacobians
    Confirmation confirmation;
  };
  for (const Linearization linearization : kLinearizations) {
    for (const bool probes : {false, true}) {
      for (const Row& row :
           {Row{NextPass::kIterate, true, true, Confirmation::kNone},
            Row{NextPass::kLinearize, false, true, Confirmation::kNone},
            Row{NextPass::kCorrect, false, false, Confirmation::kNone},
            Row{NextPass::kConfirm, false, false, Confirmation::kStates},
            Row{NextPass::kConfirmUpdated, false, false, Confirmation::kUpdated},
            Row{NextPass::kConfirmDisplaced, false, false, Confirmation::kDisplaced}}) {
        const IterationKind kind = KindOf({.next = row.next, .probes = probes}, linearization);
        EXPECT_EQ(kind.linearization, row.own ? linearization : Linearization::kFull);
        EXPECT_EQ(kind.refresh, row.refresh);
        EXPECT_EQ(kind.confirmation, row.confirmation);
        EXPECT_EQ(kind.probes, probes);
      }
      const IterationKind sweep =
          KindOf({.next = NextPass::kWarmSweep, .probes = probes}, linearization);
      EXPECT_EQ(sweep.linearization, Linearization::kIdentity);
      EXPECT_TRUE(sweep.refresh && !sweep.confirms());
    }
  }
}

TEST(StoppingTest, NewtonIteratesUntilTheSquareOfAnUpdateIsSmallThenCorrectsWithProbes) {
  FedSolve solve(Newton());
  solve.ExpectNext(NextPass::kIterate);
  solve.Pass(5.0).ExpectNext(NextPass::kIterate);
  solve.Pass(0.1).ExpectNext(NextPass::kIterate);
  solve.Pass(0.0101).ExpectNext(NextPass::kIterate);
  solve.Pass(0.0049).ExpectNext(NextPass::kCorrect, true);
  EXPECT_EQ(solve.progress().iterations, 4);
  EXPECT_EQ(solve.progress().corrections, 0);
  // A tolerance that is looser than that takes no larger update.
  StoppingPolicy loose = Newton();
  loose.rtol = 0.1;
  FedSolve(loose).Pass(0.1001).ExpectNext(NextPass::kIterate);
  FedSolve(loose).Pass(0.1).ExpectNext(NextPass::kCorrect, true);
}

// Else a tolerance beyond float32 would never be called that.
TEST(StoppingTest, IterationsThatNoLongerReduceTheErrorAreCorrected) {
  StoppingPolicy policy = Newton();
  policy.rtol = 1e-7;
  FedSolve solve(policy);
  solve.Pass(0.09).ExpectNext(NextPass::kIterate);  // nothing is known of a rate
  solve.Pass(0.045).ExpectNext(NextPass::kIterate);
  solve.Pass(0.023).ExpectNext(NextPass::kCorrect, true);
  solve.Pass(0.01, 0.02).ExpectStop(Termination::kPrecisionLimited);
  policy.reuse_matrices = true;
  FedSolve reusing(policy);
  reusing.Pass(0.09).ExpectNext(NextPass::kCorrect, false);
  reusing.Pass(0.045).ExpectNext(NextPass::kIterate);  // a rate of corrections
  reusing.Pass(0.022).ExpectNext(NextPass::kCorrect, false);
  reusing.Pass(0.02).ExpectNext(NextPass::kIterate);
  reusing.Pass(0.011).ExpectNext(NextPass::kCorrect, true);
}

TEST(StoppingTest, ConfirmsWhereTwiceTheCorrectionAndTheRoundingFit) {
  FedSolve solve(Newton());
  solve.Pass(0.01).Pass(4e-5, 6e-6);  // combined 8.6e-5
  solve.ExpectNext(NextPass::kConfirm);
  EXPECT_EQ(solve.progress().corrections, 1);
  EXPECT_EQ(solve.progress().confirmations, 0);
  solve.Confirm(1e-5).ExpectStop(Termination::kConverged);
  EXPECT_EQ(solve.progress().iterations, 1);
  EXPECT_EQ(solve.progress().corrections, 1);
  EXPECT_EQ(solve.progress().confirmations, 3);
  EXPECT_EQ(solve.progress().stages, 50);
  EXPECT_EQ(solve.progress().columns, 15);
  EXPECT_DOUBLE_EQ(solve.progress().error_estimate, 2 * 1e-5 + 6e-6);
  EXPECT_DOUBLE_EQ(solve.progress().rounding_estimate, 6e-6);
}

// The distance at which displaced states stay away is no measure of the error.
TEST(StoppingTest, TheEstimateIsTwiceWhatTheMapWouldStillMoveAndTheRounding) {
  for (const double updated : {0.0, 2e-5, 4e-5}) {
    FedSolve solve(Newton());
    solve.Pass(0.01).Pass(4e-5, 8e-6, 0.7).Take({.update = 3e-5, .share = 0.2});
    solve.Take({.update = updated, .share = 0.25}).Take({.update = 2e-3, .share = 0.25});
    solve.ExpectStop(Termination::kConverged);
    EXPECT_DOUBLE_EQ(solve.progress().error_estimate, 2 * std::max(3e-5, updated) + 8e-6);
    EXPECT_DOUBLE_EQ(solve.progress().rounding_estimate, 8e-6);
  }
}

TEST(StoppingTest, ToleranceIsMetExactlyAtTheBound) {
  FedSolve solve(Newton());
  solve.Pass(0.01).Take({.update = 4e-5, .rounding = 6e-6, .combined = 1e-4});
  solve.ExpectNext(NextPass::kConfirm);
  FedSolve above(Newton());
  above.Pass(0.01).Take({.update = 4e-5, .rounding = 6e-6, .combined = 1.0001e-4});
  above.ExpectNext(NextPass::kIterate);
}

TEST(StoppingTest, AnElementBeyondItsBallLeadsBackToIterating) {
  FedSolve within(Newton());
  within.Pass(0.01).Pass(1e-6, 1e-7, 1.0).ExpectNext(NextPass::kConfirm);
  for (const double share : {std::nextafter(1.0, 2.0), 1.001, 10.0,
                             std::numeric_limits<double>::infinity(), std::nan("")}) {
    FedSolve beyond(Newton());
    // The size of the correction does not matter.
    beyond.Pass(0.01).Pass(1e-12, 1e-12, share).ExpectNext(NextPass::kIterate);
    EXPECT_EQ(beyond.progress().iterations, 1);
    EXPECT_EQ(beyond.progress().corrections, 1);
    EXPECT_EQ(beyond.progress().confirmations, 0);
    beyond.Pass(1e-9).Pass(1e-12, 1e-12, 0.9).Confirm(0).ExpectStop(Termination::kConverged);
  }
  StoppingPolicy policy = Newton();
  policy.max_iterations = 1;
  FedSolve(policy).Pass(0.01).Pass(1e-12, 0, 1.001).ExpectStop(Termination::kMaxIterations);
}

TEST(StoppingTest, AReturnToMoreThanAQuarterOfTheBallIsNoCertificate) {
  FedSolve within(Newton());
  within.Pass(0.01).Pass(1e-5).Confirm(1e-6, 0.25).ExpectStop(Termination::kConverged);
  for (const double share : {std::nextafter(0.25, 1.0), 0.251, 1.0,
                             std::numeric_limits<double>::infinity(), std::nan("")}) {
    FedSolve beyond(Newton());
    beyond.Pass(0.01).Pass(1e-5).Confirm(0, share).ExpectNext(NextPass::kIterate);
    EXPECT_EQ(beyond.progress().confirmations, 1);
  }
}

TEST(StoppingTest, EveryConfirmationHasToComeBack) {
  const UpdateNorms near = {.update = 1e-5, .share = 0.2};
  const auto confirmed = [&](int times) {
    FedSolve solve(Newton());
    solve.Pass(0.01).Pass(1e-5, 3e-6, 0.5);
    for (int k = 0; k < times; ++k) solve.Take(near);
    return solve;
  };
  confirmed(0).ExpectNext(NextPass::kConfirm);
  confirmed(1).ExpectNext(NextPass::kConfirmUpdated);
  confirmed(2).ExpectNext(NextPass::kConfirmDisplaced);
  confirmed(3).ExpectStop(Termination::kConverged);
  for (const int times : {0, 1, 2}) {
    FedSolve far = confirmed(times), overflows = confirmed(times);
    far.Take({.update = 1e-5, .share = 0.26}).ExpectNext(NextPass::kIterate);
    EXPECT_EQ(far.progress().confirmations, times + 1);
    overflows.Take({.update = 0, .share = 0, .finite = 0}).ExpectNext(NextPass::kIterate);
  }
}

// A second confirmation follows what the map would still move if that is more than rounding.
TEST(StoppingTest, WhatIsLeftIsFollowedUnlessItIsRounding) {
  FedSolve rounding(Newton());
  rounding.Pass(0.01).Pass(1e-5, 0x1p-17, 0.5).Take({.update = 0x1p-17, .share = 0x1p-4});
  rounding.ExpectNext(NextPass::kConfirmDisplaced);
  FedSolve more(Newton());
  more.Pass(0.01).Pass(1e-5, 0x1p-17, 0.5).Take({.update = 1.01 * 0x1p-17, .share = 0.01});
  more.ExpectNext(NextPass::kConfirmUpdated);
}

// Every confirmation that follows the map is taken to leave a quarter of the way.
TEST(StoppingTest, TheMapIsFollowedUntilTheRestOfTheWayIsRounding) {
  const UpdateNorms found = {.update = 0x1p-16, .share = 0.01};
  // Without rounding the way ends at the smallest one that float32 knows: 2^-24.
  for (const auto& [rounding, follows] : {std::pair{0x1p-22, 3}, {0.99 * 0x1p-22, 4}, {0.0, 4}}) {
    FedSolve solve(Newton());
    solve.Pass(0.01).Pass(1e-5, rounding).Take(found);
    for (int k = 0; k < follows; ++k, solve.Take(found))
      solve.ExpectNext(NextPass::kConfirmUpdated);
    solve.ExpectNext(NextPass::kConfirmDisplaced);
    EXPECT_EQ(solve.progress().error_estimate, 0x1p-15 + rounding);
  }
}

// A distance beyond the tolerance is no certificate, however large the ball is.
TEST(StoppingTest, WhatIsFoundWhereTheMapLeadsIsWithinTheToleranceToo) {
  for (const double distance : {6e-5, 1e-3, std::nan("")}) {
    FedSolve solve(Newton());
    solve.Pass(0.01).Pass(2e-5, 1e-7, 0.1).Take({.update = 1e-5, .share = 0.01});
    solve.ExpectNext(NextPass::kConfirmUpdated);
    solve.Take({.update = distance, .share = 0.02}).ExpectNext(NextPass::kIterate);
    EXPECT_EQ(solve.progress().confirmations, 2);
  }
}

TEST(StoppingTest, AReturnThatIsTooFarForTheToleranceIsNoCertificate) {
  StoppingPolicy policy = Newton();
  policy.rtol = 0x1p-13;
  const double rounding = 0x1p-17, bound = 15 * 0x1p-18;  // 2 bound + rounding = 2^-13
  FedSolve within(policy);
  within.Pass(0.01).Pass(1e-6, rounding).Confirm(bound).ExpectStop(Termination::kConverged);
  for (const double distance : {bound * (1 + 0x1p-50), 2 * bound, 1.0,
                                std::numeric_limits<double>::infinity(), std::nan("")}) {
    FedSolve beyond(policy);
    beyond.Pass(0.01).Pass(1e-6, rounding).Confirm(distance).ExpectNext(NextPass::kIterate);
  }
  // Rounding is known from the correction before: a confirmation carries no probes.
  FedSolve coarse(policy);
  coarse.Pass(0.01).Pass(1e-6, 2 * rounding).Confirm(bound).ExpectNext(NextPass::kIterate);
  FedSolve rounded(policy);  // twice the rounding alone fills the tolerance, and does not pass it
  rounded.Pass(0.01).Pass(1e-6, 0x1p-14).Confirm(0).ExpectStop(Termination::kConverged);
}

// An overflow far away from the states says nothing about the states themselves.
TEST(StoppingTest, AReturnThatIsNotFiniteLeadsBackToIterating) {
  FedSolve solve(Newton());
  solve.Pass(0.01).Pass(1e-6).Confirm(0, 0, false).ExpectNext(NextPass::kIterate);
  EXPECT_EQ(solve.progress().confirmations, 1);
  solve.Pass(1e-9).Pass(1e-12).Confirm(0).ExpectStop(Termination::kConverged);
  EXPECT_EQ(solve.progress().confirmations, 3);
}

TEST(StoppingTest, AConfirmationIsNoUpdate) {
  FedSolve solve(Newton());
  solve.Pass(0.01).Pass(1e-5, 1e-7, 0.3).ExpectNext(NextPass::kConfirm);
  const Progress before = solve.progress();
  solve.Confirm(0.02, 0.8).ExpectNext(NextPass::kIterate);
  const Progress after = solve.progress();
  EXPECT_EQ(after.updates(), before.updates());
  EXPECT_EQ(after.iterations, 1);
  EXPECT_EQ(after.corrections, 1);
  EXPECT_EQ(after.confirmations, 1);
  EXPECT_EQ(after.stages, before.stages + 10);
  EXPECT_EQ(after.columns, before.columns + 3);
  EXPECT_EQ(after.update, 1e-5);
  EXPECT_EQ(after.contraction, before.contraction);
  // The contraction of the next update is relative to the correction, not to the confirmation.
  solve.Pass(1e-4);
  EXPECT_DOUBLE_EQ(solve.progress().contraction, 10);
}

TEST(StoppingTest, ARefusedClaimIsMadeAgainWithMoreProbes) {
  FedSolve solve(Newton());
  solve.Pass(0.01).ExpectDraw(0);
  solve.Pass(1e-6).ExpectDraw(0);
  solve.Confirm(0, 0.26).ExpectNext(NextPass::kIterate);
  solve.ExpectDraw(0);  // no probes, no signs
  solve.Pass(1e-7).ExpectNext(NextPass::kCorrect, true);
  solve.ExpectDraw(1);
  // What is corrected without a claim is corrected with the same probes again.
  solve.Pass(1e-8, 0, 1.5).ExpectNext(NextPass::kIterate);
  solve.Pass(1e-7).ExpectDraw(1);
  // Every confirmation may refuse.
  solve.Pass(1e-8).Take({.share = 0.1}).ExpectNext(NextPass::kConfirmDisplaced);
  solve.Take({.share = 0.3}).ExpectDraw(0);
  solve.Pass(1e-9).ExpectDraw(2);
  solve.Pass(1e-9).Confirm(0).ExpectStop(Termination::kConverged);
  FedSolve(Newton()).Pass(0.01).ExpectDraw(0);
}

// Corrections without probes leave the refusal for the next ones with probes.
TEST(StoppingTest, MoreProbesWaitForACorrectionThatCarriesThem) {
  StoppingPolicy policy = Newton();
  policy.reuse_matrices = true;
  FedSolve solve(policy);
  solve.Pass(0.01).Pass(1e-6).Confirm(0, 0.26).ExpectNext(NextPass::kIterate);
  solve.Pass(0.3).ExpectNext(NextPass::kIterate);
  solve.Pass(0.05).ExpectNext(NextPass::kCorrect, false);
  solve.ExpectDraw(0);
  solve.Pass(1e-4).ExpectNext(NextPass::kCorrect, true);
  solve.ExpectDraw(1);
  solve.Pass(1e-5, 0, 1.5).ExpectNext(NextPass::kCorrect, true);
  solve.ExpectDraw(1);
}

// A confirmation does not make states exact.
TEST(StoppingTest, CausalityCountsNoConfirmations) {
  StoppingPolicy policy = Newton();
  policy.num_intervals = 5;
  FedSolve solve(policy);
  solve.Pass(0.01).Pass(1e-5).Confirm(0.02, 0.8).Pass(1e-6);
  solve.Pass(1e-7, 0, 0.9);  // the fourth update
  solve.ExpectNext(NextPass::kConfirm);
  solve.Confirm(0.02, 0.8).Pass(0.05).ExpectNext(NextPass::kCorrect, true);
}

TEST(StoppingTest, ALooseToleranceBoundsNothingByALargeCorrection) {
  StoppingPolicy loose = Newton();
  loose.rtol = 0.1;
  FedSolve large(loose);
  large.Pass(0.08).Pass(0.0051, 1e-6).ExpectNext(NextPass::kIterate);
  FedSolve small(loose);
  small.Pass(0.08).Pass(0.005, 1e-6).Confirm(0.002).ExpectStop(Termination::kConverged);
  FedSolve rounding(loose);
  rounding.Pass(0.08).Pass(0.005, 0.05).Confirm(0.002).ExpectStop(Termination::kConverged);
  // Such a solve does not end as precision-limited either.
  FedSolve within(loose);
  within.Pass(0.08).Pass(0.006, 0.04).ExpectNext(NextPass::kIterate);
}

TEST(StoppingTest, TheLargestSumOfOneIntervalCountsNotTheSumOfTheLargest) {
  FedSolve solve(Newton());
  // 2 |d| and rho are largest in different intervals; in each interval their sum meets the
  // tolerance.
  solve.Pass(0.01).Take({.update = 4e-5, .rounding = 3e-5, .combined = 9.5e-5});
  solve.Confirm(3.4e-5).ExpectStop(Termination::kConverged);
  // A confirmation has no probes of its own, so the sum of the largest values counts.
  FedSolve farther(Newton());
  farther.Pass(0.01).Take({.update = 4e-5, .rounding = 3e-5, .combined = 9.5e-5});
  farther.Confirm(3.6e-5).ExpectNext(NextPass::kIterate);
}

TEST(StoppingTest, ATooLargeCorrectionLeadsBackToIterating) {
  FedSolve solve(Newton());
  solve.Pass(0.01).Pass(1e-3, 1e-6).ExpectNext(NextPass::kIterate);
  solve.Pass(1e-5).ExpectNext(NextPass::kCorrect, true);
  solve.Pass(1e-9, 1e-6).Confirm(1e-9).ExpectStop(Termination::kConverged);
  EXPECT_EQ(solve.progress().iterations, 2);
  EXPECT_EQ(solve.progress().corrections, 2);
  EXPECT_EQ(solve.progress().confirmations, 2);
}

TEST(StoppingTest, RoundingAboveTheToleranceIsPrecisionLimited) {
  FedSolve solve(Newton());
  solve.Pass(0.01).Pass(0x1p-12, 0x1p-12);  // 2 |c| <= 2 rho
  solve.ExpectStop(Termination::kPrecisionLimited);
  EXPECT_DOUBLE_EQ(solve.progress().rounding_estimate, 0x1p-12);
  FedSolve other(Newton());
  other.Pass(0.01).Pass(1.01 * 0x1p-12, 0x1p-12).ExpectNext(NextPass::kIterate);
}

// A correction may exceed rounding by chance. Once it has stopped shrinking, a correction as small
// as rounding counts as rounding, if rounding alone would meet the tolerance.
TEST(StoppingTest, CorrectionsThatStayRoundingArePrecisionLimited) {
  const double rounding = 4e-5, noise = 3.5e-5;  // 2 noise + rounding > rtol > 2 rounding
  FedSolve once(Newton());
  once.Pass(0.01).Pass(noise, rounding).ExpectNext(NextPass::kIterate);
  once.Pass(noise).Pass(noise, rounding).ExpectStop(Termination::kPrecisionLimited);
  FedSolve lucky(Newton());
  lucky.Pass(0.01).Pass(noise, rounding).Pass(noise).Pass(noise / 2, rounding).Confirm(0);
  lucky.ExpectStop(Termination::kConverged);
  for (const double contraction : {0.25, 0.251}) {
    FedSolve solve(Newton());
    solve.Pass(noise / contraction).Pass(noise, rounding);
    contraction > 0.25 ? solve.ExpectStop(Termination::kPrecisionLimited)
                       : solve.ExpectNext(NextPass::kIterate);
  }
}

TEST(StoppingTest, GivesUpAfterTheLastIteration) {
  StoppingPolicy policy = Newton();
  policy.max_iterations = 3;
  FedSolve solve(policy);
  solve.Pass(5).Pass(4).ExpectNext(NextPass::kIterate);
  solve.Pass(3).ExpectStop(Termination::kMaxIterations);
  EXPECT_EQ(solve.progress().iterations, 3);
}

TEST(StoppingTest, TheLastIterationStillGetsItsCorrection) {
  StoppingPolicy policy = Newton();
  policy.max_iterations = 1;
  FedSolve converges(policy), fails(policy);
  converges.Pass(0.05).ExpectNext(NextPass::kCorrect, true);
  converges.Pass(1e-6).Confirm(1e-7).ExpectStop(Termination::kConverged);
  fails.Pass(0.05).Pass(1e-3).ExpectStop(Termination::kMaxIterations);
}

TEST(StoppingTest, AfterTheLastIterationAConfirmationIsTheLastChance) {
  StoppingPolicy policy = Newton();
  policy.max_iterations = 1;
  FedSolve(policy).Pass(0.05).Pass(1e-6).Confirm(0, 0.26).ExpectStop(Termination::kMaxIterations);
  FedSolve(policy).Pass(0.05).Pass(1e-6).Confirm(1e-3).ExpectStop(Termination::kMaxIterations);
  FedSolve solve(policy);
  solve.Pass(0.05).Pass(1e-6).Confirm(0, 0, false).ExpectStop(Termination::kMaxIterations);
  EXPECT_EQ(solve.progress().confirmations, 1);
}

TEST(StoppingTest, NonFiniteStatesEndEveryPass) {
  UpdateNorms bad{.update = 1e-9, .combined = 1e-9, .finite = false};
  FedSolve(Newton()).Take(bad).ExpectStop(Termination::kNonFinite);
  FedSolve(Newton()).Pass(0.01).Take(bad).ExpectStop(Termination::kNonFinite);
  StoppingPolicy warm = Newton();
  warm.warm_sweeps = 2;
  FedSolve(warm).Take(bad).ExpectStop(Termination::kNonFinite);
}

TEST(StoppingTest, SlowerThanSequentialStopsUnlessThatPassConverged) {
  StoppingPolicy policy = Newton();
  policy.stage_budget = 20;
  FedSolve slow(policy);
  slow.Pass(5).Pass(4).ExpectNext(NextPass::kIterate);  // 20 stages: not beyond
  slow.Pass(3).ExpectStop(Termination::kSlow);
  policy.stage_budget = 40;
  FedSolve converged(policy);
  converged.Pass(5).Pass(0.01).Pass(1e-6, 1e-7).Confirm(1e-7).ExpectStop(Termination::kConverged);
  EXPECT_EQ(converged.progress().stages, 50);
  policy.stage_budget = 30;
  FedSolve refuted(policy);
  refuted.Pass(5).Pass(0.01).Pass(1e-6).Confirm(1e-7, 0.26).ExpectStop(Termination::kSlow);
  EXPECT_EQ(refuted.progress().stages, 40);
}

TEST(StoppingTest, ABudgetThatIsSpentBuysNoConfirmation) {
  StoppingPolicy policy = Newton();
  policy.stage_budget = 19;
  FedSolve spent(policy);
  spent.Pass(0.01).Pass(1e-6).ExpectStop(Termination::kSlow);
  EXPECT_EQ(spent.progress().confirmations, 0);
  policy.stage_budget = 30;
  FedSolve at_limit(policy);  // 30 stages: not beyond
  at_limit.Pass(0.01).Pass(1e-6).Confirm(1e-7, 0.26).ExpectNext(NextPass::kIterate);
}

// The limit on iterations is checked first, as it is after an update.
TEST(StoppingTest, OfTwoLimitsAtOnceTheIterationsAreNamed) {
  StoppingPolicy policy = Newton();
  policy.stage_budget = 25;
  policy.max_iterations = 1;
  FedSolve solve(policy);
  solve.Pass(0.01).Pass(1e-6).Confirm(1e-7, 0.26).ExpectStop(Termination::kMaxIterations);
}

TEST(StoppingTest, ReusesMatricesWhileUpdatesContract) {
  StoppingPolicy policy = Newton();
  policy.reuse_matrices = true;
  FedSolve solve(policy);
  solve.Pass(5.0).ExpectNext(NextPass::kIterate);                 // far away
  solve.Pass(0.2).ExpectNext(NextPass::kCorrect, false);          // near: no probes yet
  solve.Pass(0.02).ExpectNext(NextPass::kCorrect, false);         // theta 0.1
  solve.Pass(0.001).ExpectNext(NextPass::kCorrect, true);         // a tenth may be small enough
  solve.Pass(1.5e-4, 1e-6).ExpectNext(NextPass::kCorrect, true);  // judged: not there yet
  solve.Pass(1.2e-4, 1e-6).ExpectNext(NextPass::kIterate);        // theta 0.8: no longer
  solve.Pass(0.01).ExpectNext(NextPass::kCorrect, true);          // its square may be small enough
  solve.Pass(1e-7, 1e-6).Confirm(1e-8).ExpectStop(Termination::kConverged);
  EXPECT_EQ(solve.progress().iterations, 3);
  EXPECT_EQ(solve.progress().corrections, 5);
  EXPECT_EQ(solve.progress().confirmations, 2);
}

// Matrices that let an element escape its ball may still contract and are kept; matrices that do
// not bring the element back are not.
TEST(StoppingTest, AfterARefutedConfirmationMatricesAreNotReused) {
  StoppingPolicy policy = Newton();
  policy.reuse_matrices = true;
  FedSolve solve(policy);
  solve.Pass(0.01).Pass(1e-5, 1e-7, 1.001).ExpectNext(NextPass::kCorrect, true);
  solve.Pass(1e-6, 1e-7, 1.0).Confirm(1e-6, 0.3).ExpectNext(NextPass::kIterate);
  solve.Pass(1e-8).Pass(1e-9, 1e-7).Confirm(1e-9).ExpectStop(Termination::kConverged);
  EXPECT_EQ(solve.progress().iterations, 2);
  EXPECT_EQ(solve.progress().corrections, 3);
  EXPECT_EQ(solve.progress().confirmations, 3);
}

TEST(StoppingTest, ASmallCorrectionWithoutProbesIsNotACertificate) {
  StoppingPolicy policy = Newton();
  policy.reuse_matrices = true;
  FedSolve solve(policy);
  solve.Pass(0.05).ExpectNext(NextPass::kCorrect, false);
  solve.Pass(1e-9).ExpectNext(NextPass::kCorrect, true);
}

TEST(StoppingTest, WarmSweepsComeFirstAndDoNotCountAsIterations) {
  StoppingPolicy policy = Newton();
  policy.warm_sweeps = 2;
  FedSolve solve(policy);
  solve.ExpectNext(NextPass::kWarmSweep);
  solve.Pass(1e-9).ExpectNext(NextPass::kWarmSweep);  // the size of a sweep decides nothing
  solve.Pass(1e-9).ExpectNext(NextPass::kIterate);
  EXPECT_EQ(solve.progress().warm_sweeps, 2);
  EXPECT_EQ(solve.progress().iterations, 0);
}

TEST(StoppingTest, CausalityMakesStatesExactAfterAsManyUpdatesAsIntervals) {
  StoppingPolicy policy = Newton();
  policy.num_intervals = 3;
  policy.warm_sweeps = 1;
  FedSolve solve(policy);
  solve.Pass(7).Pass(6).ExpectNext(NextPass::kIterate);
  solve.Pass(5).ExpectNext(NextPass::kCorrect, true);  // the third update: exact, whatever its size
  solve.Pass(0, 1e-6).ExpectStop(Termination::kConverged);
  EXPECT_DOUBLE_EQ(solve.progress().error_estimate, 1e-6);
  EXPECT_EQ(solve.progress().confirmations, 0);
}

// States that are exact by causality need no confirmation, whatever the share of their balls.
TEST(StoppingTest, ExactStatesAreNotConfirmed) {
  StoppingPolicy policy = Newton();
  policy.num_intervals = 2;
  for (const double share :
       {0.0, 1.0, 7.0, std::numeric_limits<double>::infinity(), std::nan("")}) {
    FedSolve solve(policy);
    solve.Pass(0.05).Pass(1e-5, 2e-6, share).ExpectStop(Termination::kConverged);
    EXPECT_DOUBLE_EQ(solve.progress().error_estimate, 2 * 1e-5 + 2e-6);
    EXPECT_EQ(solve.progress().confirmations, 0);
  }
  // Exact states are still only as good as their rounding.
  FedSolve limited(policy);
  limited.Pass(0.05).Pass(1e-5, 1e-3).ExpectStop(Termination::kPrecisionLimited);
  // With one interval more the states are not exact.
  policy.num_intervals = 3;
  FedSolve(policy).Pass(0.05).ExpectNext(NextPass::kIterate);
  FedSolve(policy).Pass(0.01).Pass(1e-5, 2e-6).ExpectNext(NextPass::kConfirm);
  FedSolve(policy).Pass(0.01).Pass(1e-5, 2e-6, 7.0).ExpectNext(NextPass::kIterate);
}

}  // namespace
}  // namespace deeppcr
