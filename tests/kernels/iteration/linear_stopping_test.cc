// SPDX-License-Identifier: Apache-2.0
// The stopping rule's decisions for solvers whose matrices are not the Jacobians: a claim that
// their rate suggests, then the certificate.
#include <gtest/gtest.h>

#include "kernels/iteration/stopping.h"
#include "tests/kernels/iteration/fed_solve.h"

namespace deeppcr {
namespace {

class LinearStoppingTest : public ::testing::TestWithParam<Linearization> {};

TEST_P(LinearStoppingTest, ClaimIsPutToTheCertificate) {
  FedSolve solve(Linear(GetParam()));
  solve.Pass(1e-2).ExpectNext(NextPass::kIterate);
  solve.Pass(1e-3).ExpectNext(NextPass::kIterate);
  // Third iteration, theta 0.1: 1e-4 * 0.1 / 0.9 <= rtol.
  solve.Pass(1e-4).ExpectNext(NextPass::kLinearize);
  solve.Pass(1e-5).ExpectNext(NextPass::kCorrect, true);
  solve.Pass(1e-6, 1e-6).Confirm(1e-7).ExpectStop(Termination::kConverged);
  EXPECT_EQ(solve.progress().iterations, 4);
  EXPECT_EQ(solve.progress().corrections, 1);
  EXPECT_EQ(solve.progress().confirmations, 2);
}

TEST_P(LinearStoppingTest, ARefutedClaimIteratesOnAndMayBeMadeAnew) {
  FedSolve escaped(Linear(GetParam()));
  escaped.Pass(1e-2).Pass(1e-3).Pass(1e-4).Pass(1e-5).Pass(1e-6, 1e-6, 1.001);
  escaped.ExpectNext(NextPass::kIterate);
  FedSolve refuted(Linear(GetParam()));
  refuted.Pass(1e-2).Pass(1e-3).Pass(1e-4).Pass(1e-5).Pass(1e-6, 1e-6).Confirm(1e-7, 0.26);
  refuted.ExpectNext(NextPass::kIterate);
  refuted.Pass(1e-7).ExpectNext(NextPass::kLinearize);
  refuted.ExpectDraw(0);
  refuted.Pass(1e-8).ExpectDraw(1);
  refuted.Pass(1e-9, 1e-6).Confirm(1e-9).ExpectStop(Termination::kConverged);
  EXPECT_EQ(refuted.progress().iterations, 6);
  EXPECT_EQ(refuted.progress().corrections, 2);
  EXPECT_EQ(refuted.progress().confirmations, 3);
}

TEST_P(LinearStoppingTest, ClaimNeedsThreeIterations) {
  FedSolve solve(Linear(GetParam()));
  solve.Pass(1e-5).Pass(1e-9).ExpectNext(NextPass::kIterate);
  solve.Pass(1e-10).ExpectNext(NextPass::kLinearize);
}

TEST_P(LinearStoppingTest, ASlowRateIsNotTrusted) {
  FedSolve solve(Linear(GetParam()));
  solve.Pass(4e-5).Pass(2e-5).Pass(1e-5).ExpectNext(NextPass::kIterate);  // theta exactly 0.5
  solve.Pass(0.499e-5).ExpectNext(NextPass::kLinearize);
}

TEST_P(LinearStoppingTest, RemainderAboveToleranceIteratesOn) {
  FedSolve solve(Linear(GetParam()));
  // theta 0.4: the remainder is 2/3 of the update.
  solve.Pass(1e-2).Pass(4e-3).Pass(1.6e-3).ExpectNext(NextPass::kIterate);
}

TEST_P(LinearStoppingTest, AFalseClaimIteratesOn) {
  FedSolve solve(Linear(GetParam()));
  solve.Pass(1e-2).Pass(1e-3).Pass(1e-4).ExpectNext(NextPass::kLinearize);
  solve.Pass(0.3).Pass(0.1, 1e-6).ExpectNext(NextPass::kIterate);
}

TEST_P(LinearStoppingTest, ExactStatesGoToTheCertificateWithoutAClaim) {
  StoppingPolicy policy = Linear(GetParam());
  policy.num_intervals = 2;
  FedSolve solve(policy);
  solve.Pass(5).Pass(4).ExpectNext(NextPass::kLinearize);
  solve.Pass(0).Pass(0, 1e-6, 7.0).ExpectStop(Termination::kConverged);
  EXPECT_EQ(solve.progress().confirmations, 0);
}

TEST_P(LinearStoppingTest, MaxIterationsAndRoundingAreHonoured) {
  StoppingPolicy policy = Linear(GetParam());
  policy.max_iterations = 2;
  FedSolve(policy).Pass(5).Pass(4).ExpectStop(Termination::kMaxIterations);
  policy.max_iterations = 4;
  FedSolve refuted(policy);
  refuted.Pass(1e-2).Pass(1e-3).Pass(1e-4).Pass(1e-5).Pass(1e-6).Confirm(1e-7, 0.26);
  refuted.ExpectStop(Termination::kMaxIterations);
  FedSolve limited(Linear(GetParam()));
  limited.Pass(1e-2).Pass(1e-3).Pass(1e-4).Pass(1e-5).Pass(1e-5, 1e-2);
  limited.ExpectStop(Termination::kPrecisionLimited);
}

INSTANTIATE_TEST_SUITE_P(Linearizations, LinearStoppingTest,
                         ::testing::Values(Linearization::kDiagonal, Linearization::kIdentity,
                                           Linearization::kZero));

}  // namespace
}  // namespace deeppcr
