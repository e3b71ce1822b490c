// SPDX-License-Identifier: Apache-2.0
// The cuda backend from request to answer: on the SIMT executor, or on a GPU (tests/gpu).
#include "kernels/cuda/cuda_backend.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "kernels/plan/calibration.h"
#include "kernels/solver/registry.h"
#include "tests/testing/gpu_under_test.h"
#include "tests/testing/random_diffusion.h"
#include "tests/testing/solver_rig.h"
#include "tests/testing/systems.h"

namespace deeppcr::testing {
namespace {

// Compares outputs and states with the reference backend, for every solver.
void ExpectReference(std::unique_ptr<Backend> backend, const StackOptions& options) {
  const RandomSystem system(options);
  const SolverRig rig(std::move(backend), system.spec());
  const SolverRig oracle(BackendCases().back().create(), system.spec());
  const int64_t steps = options.num_steps;
  const std::vector<float> inputs = system.Inputs(3, 9);
  const Solved want = oracle.Solve({.solver = "sequential"}, inputs);
  for (const SolverRow& row : Solvers()) {
    const ResolvedOptions resolved = OptionsFor(row.name, steps, 4, 1e-4);
    const Solved got = rig.Solve(resolved, inputs);
    ASSERT_EQ(got.reports.size(), 3U) << Describe(options) << row.name;
    const std::vector<double> outputs(want.outputs.begin(), want.outputs.end());
    const std::vector<double> states(want.trajectory.begin(), want.trajectory.end());
    EXPECT_LE(RelativeError(got.outputs, outputs, system.spec().output_dim(), 1e-2), 2e-4)
        << Describe(options) << row.name;
    EXPECT_LE(RelativeError(got.trajectory, states, options.state_dim, 1e-2), 1e-4)
        << Describe(options) << row.name;
    for (const SampleReport& report : got.reports)
      EXPECT_TRUE(report.converged) << Describe(options) << row.name;
  }
}

// Expects the counts of the CPU backend, and its error estimate within a factor of 4.
// `chain`: the device goes through a chain where the CPU goes up and down a tree, so that dependent
// stages are not compared.
void ExpectCountsOfCpu(std::unique_ptr<Backend> backend, const StackOptions& stack, bool chain) {
  const RandomSystem system(stack);
  const std::vector<float> inputs = system.Inputs(1, 3);
  const SolverRig cuda(std::move(backend), system.spec());
  const SolverRig cpu(BackendCases().front().create(), system.spec());
  for (const SolverRow& row : Solvers()) {
    const ResolvedOptions options = OptionsFor(row.name, stack.num_steps, 3, 1e-4);
    const SampleReport a = cuda.Solve(options, inputs).reports[0];
    const SampleReport b = cpu.Solve(options, inputs).reports[0];
    EXPECT_EQ(a.iterations, b.iterations) << row.name;
    EXPECT_EQ(a.chord_corrections, b.chord_corrections) << row.name;
    // A remaining error above rounding is followed by one more confirmation; whether it is above
    // depends on rounding.
    const int more = a.confirmations - b.confirmations;
    EXPECT_LE(std::abs(more), 1) << row.name;
    EXPECT_EQ(a.column_passes - b.column_passes, more) << row.name;
    // One more pass has the stages of an interval, of the tree and of the update.
    const int64_t stages = a.dependent_stages - b.dependent_stages;
    if (!chain) {
      EXPECT_EQ(stages == 0, more == 0) << row.name;
      EXPECT_GE(stages * more, more == 0 ? 0 : options.shooting_interval + 2) << row.name;
      EXPECT_LT(std::abs(stages), stack.num_steps) << row.name;
    }
    EXPECT_EQ(a.termination, b.termination) << row.name;
    EXPECT_FALSE(a.fallback) << row.name;
    const double ours = a.output_error_estimate.value_or(0);
    const double theirs = b.output_error_estimate.value_or(0);
    EXPECT_EQ(ours > 0, row.iterative) << row.name;
    EXPECT_GE(ours, theirs / 4) << row.name;
    EXPECT_LE(ours, theirs * 4) << row.name;
  }
}

// The report of a solve with Newton of one sample, whether or not it converges.
SampleReport NewtonReport(std::unique_ptr<Backend> backend, const DenseStackSpec& spec,
                          const std::vector<float>& inputs) {
  ResolvedOptions options = OptionsFor("newton", spec.num_steps, 2, 1e-4);
  options.atol = 0;
  options.on_no_convergence = OnNoConvergence::kReturn;
  return SolverRig(std::move(backend), spec).Solve(options, inputs).reports[0];
}

// True: the loop runs on the device where it can. False: the loop always runs on the host.
class CudaBackendTest : public ::testing::TestWithParam<bool> {
 protected:
  static std::unique_ptr<Backend> NewBackend() {
    return GetParam() ? NewBackendUnderTest() : NewBackendWithoutClusters();
  }
};

TEST_P(CudaBackendTest, AgreesWithTheReference) {
  for (const int64_t steps : {1, 2, 31, 32, 33, 65}) {
    for (const int64_t dim : {1, 7, 16, 31}) {
      ExpectReference(NewBackend(), {.num_steps = steps, .state_dim = dim, .gain = 0.9});
      ExpectReference(NewBackend(), {.num_steps = steps,
                                     .state_dim = dim,
                                     .residual = true,
                                     .gain = 0.3,
                                     .input_dim = 11,
                                     .output_dim = 5});
    }
  }
}

// The squares of these weights overflow, but nothing comes to them but zeros.
TEST_P(CudaBackendTest, LargeWeightsOfZerosRoundNothing) {
  constexpr int kSteps = 8;
  std::vector<float> weights;
  for (int l = 0; l < kSteps; ++l) weights.insert(weights.end(), {0.5F, 1e30F, 0.0F, 0.5F});
  DenseStackSpec spec;
  spec.num_steps = kSteps;
  spec.state_dim = 2;
  spec.activation = Activation::kRelu;
  spec.weights = weights;
  const SampleReport report = NewtonReport(NewBackend(), spec, {1.0F, 0.0F});
  EXPECT_EQ(report.termination, Termination::kConverged);
  EXPECT_LT(report.rounding_estimate.value(), 1e-5);
}

// These states are too wide for a warp.
TEST(CudaWideStatesTest, AgreeWithTheReference) {
  for (const int64_t dim : {33, 64, 100}) {
    ExpectReference(NewBackendUnderTest(), {.num_steps = 33, .state_dim = dim, .gain = 0.9});
    ExpectReference(NewBackendUnderTest(),
                    {.num_steps = 20, .state_dim = dim, .residual = true, .gain = 0.3});
  }
}

TEST(CudaWideStatesTest, TheWidestOnesToo) {
  ExpectReference(NewBackendUnderTest(), {.num_steps = 5, .state_dim = 256, .gain = 0.9});
}

// The layers of this guess are of half-precision numbers; it is as good a beginning as that of the
// CPU. One that were wrong would be as bad as none.
TEST(CudaCoarseGuessTest, TakesNoMorePassesThanThatOfTheCpu) {
  constexpr int64_t kSteps = 32;
  for (const double output_gain : {0.2, 0.5}) {
    const RandomDiffusion process({.state_dim = 16,
                                   .hidden_dim = 128,
                                   .num_blocks = 3,
                                   .num_steps = kSteps,
                                   .output_gain = output_gain});
    const auto iterations = [&](std::unique_ptr<Backend> backend, InitialGuess guess) {
      ResolvedOptions options = OptionsFor("newton", kSteps, 1, 1e-4);
      options.initial_guess = guess;
      const SampleReport report = SolverRig(std::move(backend), process.spec())
                                      .Solve(options, SampleInputs{.num_samples = 1, .seed = 5})
                                      .reports[0];
      EXPECT_TRUE(report.converged && !report.fallback);
      return report.iterations;
    };
    const auto cpu = BackendCases().front().create;
    const int64_t coarse = iterations(cpu(), InitialGuess::kCoarse);
    EXPECT_LT(coarse, iterations(cpu(), InitialGuess::kConstant)) << output_gain;
    EXPECT_LE(iterations(NewBackendUnderTest(), InitialGuess::kCoarse), coarse) << output_gain;
  }
}

// A matrix or a vector that came through the tree incompletely would cost more passes.
TEST(CudaWideStatesTest, CountWhatTheCpuBackendCounts) {
  for (const int64_t dim : {40, 100})
    ExpectCountsOfCpu(NewBackendUnderTest(),
                      {.num_steps = 40, .state_dim = dim, .residual = true, .gain = 0.2}, false);
}

// Without biases a stack of ReLU has the same relative rounding in every unit.
TEST(CudaWideStatesTest, RoundingDoesNotDependOnTheUnitOfStates) {
  const RandomSystem system(
      {.num_steps = 24, .state_dim = 40, .activation = Activation::kRelu, .gain = 1.2, .bias = 0});
  const auto rounding = [&](int exponent) {
    std::vector<float> inputs = system.Inputs(1, 3);
    for (float& x : inputs) x = std::ldexp(x, exponent);
    return NewtonReport(NewBackendUnderTest(), system.spec(), inputs).rounding_estimate.value();
  };
  const double ordinary = rounding(0);
  EXPECT_GT(ordinary, 0);
  for (const int exponent : {-80, 66, 110})
    EXPECT_NEAR(rounding(exponent) / ordinary, 1, 1e-3) << exponent;
}

// The batch has more samples than pass together.
TEST(CudaWideStatesTest, BitsDoNotDependOnTheBatch) {
  constexpr int64_t kDim = 40, kSamples = 10;
  const RandomSystem system({.num_steps = 12, .state_dim = kDim, .gain = 0.9});
  const std::vector<float> inputs = system.Inputs(kSamples, 3);
  const SolverRig rig(NewBackendUnderTest(), system.spec());
  for (const char* solver : {"sequential", "newton"}) {
    const ResolvedOptions options = OptionsFor(solver, 12, 3, 1e-4);
    const Solved together = rig.Solve(options, inputs);
    for (const int64_t s : {0, 7, 9}) {
      const Solved alone =
          rig.Solve(options, {inputs.begin() + s * kDim, inputs.begin() + (s + 1) * kDim});
      EXPECT_TRUE(std::equal(alone.trajectory.begin(), alone.trajectory.end(),
                             together.trajectory.begin() + s * 13 * kDim))
          << solver << " sample " << s;
    }
  }
}

// Solves around the edge of stability: a claim to be within the tolerance of the sequential solver
// must be true.
TEST_P(CudaBackendTest, ItsClaimsHold) {
  int claims = 0;
  for (uint32_t seed = 0; seed < 16; ++seed) {
    const RandomSystem system(
        {.num_steps = 48, .state_dim = 6, .gain = 0.8 + 0.06 * seed, .seed = seed});
    const SolverRig rig(NewBackend(), system.spec());
    const std::vector<float> inputs = system.Inputs(1, seed);
    const Solved sequential = rig.Solve({.solver = "sequential"}, inputs);
    const std::vector<double> want(sequential.trajectory.begin(), sequential.trajectory.end());
    for (const int64_t interval : {1, 4}) {
      const Solved newton = rig.Solve(OptionsFor("newton", 48, interval, 1e-4), inputs);
      claims += newton.reports[0].converged && !newton.reports[0].fallback ? 1 : 0;
      EXPECT_LE(RelativeError(newton.trajectory, want, 6, 1e-2), 1e-4)
          << "seed " << seed << " C " << interval;
    }
  }
  EXPECT_GE(claims, 16);
}

TEST_P(CudaBackendTest, CountsWhatTheCpuBackendCounts) {
  ExpectCountsOfCpu(NewBackend(), {.num_steps = 70, .state_dim = 6, .gain = 0.7}, GetParam());
}

// Elements near zero that four probes pass by: a claim is refused, and would be for ever with these
// probes alone.
TEST_P(CudaBackendTest, MakesARefusedClaimAgainWithMoreProbes) {
  for (const uint64_t seed : {4, 39, 40, 54}) {
    const RandomSystem system({.num_steps = 64, .state_dim = 16, .gain = 1.2, .seed = seed});
    const std::vector<float> inputs = system.Inputs(1, 3);
    const ResolvedOptions options = OptionsFor("newton", 64, 1, 1e-4);
    const SolverRig cuda(NewBackend(), system.spec());
    const SolverRig cpu(BackendCases().front().create(), system.spec());
    const SampleReport got = cuda.Solve(options, inputs).reports[0];
    const SampleReport want = cpu.Solve(options, inputs).reports[0];
    EXPECT_TRUE(got.converged && !got.fallback) << seed;
    EXPECT_LE(std::abs(got.iterations - want.iterations), 4) << seed;
  }
}

// The same of a denoiser, whose passes on the device learn the draw from the sample's progress.
TEST_P(CudaBackendTest, MakesARefusedClaimOfADenoiserAgainWithMoreProbes) {
  const RandomDiffusion process({.state_dim = 8,
                                 .hidden_dim = 24,
                                 .num_blocks = 2,
                                 .num_steps = 40,
                                 .clip = false,
                                 .output_gain = 1,
                                 .seed = 2});
  const ResolvedOptions options = OptionsFor("newton", 40, 1, 1e-4);
  const SampleInputs samples = {.num_samples = 1, .seed = 5};
  const SolverRig cuda(NewBackend(), process.spec());
  const SolverRig cpu(BackendCases().front().create(), process.spec());
  const SampleReport got = cuda.Solve(options, samples).reports[0];
  const SampleReport want = cpu.Solve(options, samples).reports[0];
  EXPECT_TRUE(got.converged && !got.fallback);
  EXPECT_LE(std::abs(got.iterations - want.iterations), 4);
}

// Samples of a batch that come to different numbers of claims have the signs that each has alone.
TEST_P(CudaBackendTest, ARefusedClaimIsThatOfItsSample) {
  const RandomSystem system({.num_steps = 64, .state_dim = 16, .gain = 1.2, .seed = 40});
  const std::vector<float> inputs = system.Inputs(6, 3);
  const ResolvedOptions options = OptionsFor("newton", 64, 1, 1e-4);
  const SolverRig rig(NewBackend(), system.spec());
  const Solved together = rig.Solve(options, inputs);
  for (int64_t s = 0; s < 6; ++s) {
    const SampleReport alone =
        rig.Solve(options, {inputs.begin() + s * 16, inputs.begin() + (s + 1) * 16}).reports[0];
    const SampleReport& of_batch = together.reports[s];
    EXPECT_EQ(of_batch.iterations, alone.iterations) << s;
    EXPECT_EQ(of_batch.chord_corrections, alone.chord_corrections) << s;
    EXPECT_EQ(of_batch.confirmations, alone.confirmations) << s;
    EXPECT_EQ(of_batch.error_estimate, alone.error_estimate) << s;
    EXPECT_EQ(of_batch.rounding_estimate, alone.rounding_estimate) << s;
  }
}

TEST_P(CudaBackendTest, StartsFromEveryGuess) {
  const RandomSystem system({.num_steps = 61, .state_dim = 9, .residual = true, .gain = 0.4});
  const std::vector<float> inputs = system.Inputs(2, 5);
  SolverRig rig(NewBackend(), system.spec());
  const SolverRig cpu(BackendCases().front().create(), system.spec());
  ASSERT_TRUE(rig.system()
                  .SetAffineGuess(*FitAffineGuess(cpu.runner(), SyntheticInputs(64, 9), 1 << 20))
                  .ok());
  ResolvedOptions options = OptionsFor("newton", 61, 4, 1e-4);
  const Solved sequential = rig.Solve({.solver = "sequential"}, inputs);
  const Solved constant = rig.Solve(options, inputs);
  options.initial_guess = InitialGuess::kCalibrated;
  const Solved calibrated = rig.Solve(options, inputs);
  EXPECT_LE(calibrated.reports[0].iterations, constant.reports[0].iterations);
  EXPECT_NE(calibrated.trajectory, constant.trajectory);
  options.initial_guess = InitialGuess::kPrevious;
  const Solved previous = rig.Solve(
      options, {.num_samples = 2, .inputs = inputs, .initial_states = sequential.trajectory});
  // A guess that is the solution only has to be certified, and keeps its bits.
  EXPECT_EQ(previous.reports[1].iterations, 1);
  EXPECT_EQ(previous.trajectory, sequential.trajectory);
  for (const Solved* solved : {&constant, &calibrated, &previous})
    EXPECT_TRUE(solved->reports[0].converged && solved->reports[1].converged);
}

TEST_P(CudaBackendTest, FallsBackToTheBitsOfTheSequentialSolver) {
  const RandomSystem system({.num_steps = 60, .state_dim = 8, .gain = 2.5});
  const std::vector<float> inputs = system.Inputs(3, 5);
  const SolverRig rig(NewBackend(), system.spec());
  ResolvedOptions options = OptionsFor("newton", 60, 1, 1e-4);
  options.max_iterations = 1;
  const Solved fallback = rig.Solve(options, inputs);
  EXPECT_TRUE(fallback.SameAnswers(rig.Solve({.solver = "sequential"}, inputs)));
  for (const SampleReport& report : fallback.reports) {
    EXPECT_TRUE(report.fallback && report.converged);
    EXPECT_EQ(report.attempt.termination, Termination::kMaxIterations);
  }
}

// More intervals than the shared memory of a cluster holds lie in global memory, and a batch is
// solved a few samples at a time.
TEST(CudaWorkspaceTest, HoldWhatSharedMemoryDoesNot) {
  const RandomSystem system({.num_steps = 700, .state_dim = 9, .residual = true, .gain = 0.05});
  const std::vector<float> inputs = system.Inputs(10, 5);
  const SolverRig rig(NewBackendUnderTest(), system.spec());
  const Solved sequential = rig.Solve({.solver = "sequential"}, inputs);
  const Solved newton = rig.Solve(OptionsFor("newton", 700, 1, 1e-4), inputs);
  const std::vector<double> want(sequential.trajectory.begin(), sequential.trajectory.end());
  EXPECT_LE(RelativeError(newton.trajectory, want, 9, 1e-2), 1e-4);
  for (const SampleReport& report : newton.reports)
    EXPECT_TRUE(report.converged && !report.fallback);
}

// A larger batch has smaller clusters.
TEST_P(CudaBackendTest, BitsDoNotDependOnTheBatch) {
  const RandomSystem system({.num_steps = 50,
                             .state_dim = 6,
                             .residual = true,
                             .gain = 0.5,
                             .input_dim = 9,
                             .output_dim = 4});
  const std::vector<float> inputs = system.Inputs(5, 22);
  const SolverRig rig(NewBackend(), system.spec());
  for (const SolverRow& row : Solvers()) {
    const ResolvedOptions options = OptionsFor(row.name, 50, 4, 1e-4);
    const Solved together = rig.Solve(options, inputs);
    for (int64_t s = 0; s < 5; ++s) {
      const Solved alone =
          rig.Solve(options, {inputs.begin() + s * 9, inputs.begin() + (s + 1) * 9});
      EXPECT_TRUE(
          std::equal(alone.outputs.begin(), alone.outputs.end(), together.outputs.begin() + s * 4))
          << row.name;
      EXPECT_TRUE(std::equal(alone.trajectory.begin(), alone.trajectory.end(),
                             together.trajectory.begin() + s * 51 * 6))
          << row.name;
      EXPECT_EQ(alone.reports[0].error_estimate, together.reports[s].error_estimate) << row.name;
    }
  }
}

TEST_P(CudaBackendTest, StopsWhereTheTokenHasFired) {
  const RandomSystem system({.num_steps = 60, .state_dim = 8});
  const SolverRig rig(NewBackend(), system.spec());
  CancelToken cancelled;
  cancelled.Cancel();
  const CancelToken late(CancelToken::Clock::now());
  const std::vector<float> inputs = system.Inputs(1, 5);
  for (const SolverRow& row : Solvers()) {
    const ResolvedOptions options = OptionsFor(row.name, 60, 4, 1e-4);
    const auto ended = [&](const CancelToken* token) {
      return rig.Solve(options, {.num_samples = 1, .inputs = inputs}, token).reports[0].termination;
    };
    EXPECT_EQ(ended(&cancelled), Termination::kCancelled) << row.name;
    EXPECT_EQ(ended(&late), Termination::kDeadline) << row.name;
  }
}

TEST_P(CudaBackendTest, ASolveThatNobodyWaitsForIsNotBegun) {
  const RandomSystem system({.num_steps = 60, .state_dim = 8});
  const SolverRig rig(NewBackend(), system.spec());
  CancelToken cancelled;
  cancelled.Cancel();
  const std::vector<float> inputs = system.Inputs(1, 5);
  const SampleReport report =
      rig.Solve(OptionsFor("newton", 60, 4, 1e-4), {.num_samples = 1, .inputs = inputs}, &cancelled)
          .reports[0];
  EXPECT_EQ(report.termination, Termination::kCancelled);
  EXPECT_EQ(report.iterations, 0);
}

INSTANTIATE_TEST_SUITE_P(All, CudaBackendTest, ::testing::Bool(), [](const auto& test) {
  return test.param ? "loop_on_device" : "loop_on_host";
});

}  // namespace
}  // namespace deeppcr::testing
