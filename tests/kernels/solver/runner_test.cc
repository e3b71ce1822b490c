// SPDX-License-Identifier: Apache-2.0
#include "kernels/solver/runner.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <thread>
#include <vector>

#include "kernels/solver/registry.h"
#include "tests/testing/random_diffusion.h"
#include "tests/testing/solver_rig.h"
#include "tests/testing/systems.h"

namespace deeppcr::testing {
namespace {

constexpr int64_t kSteps = 20, kDim = 3;

// Adds output layers that overflow at all but a few finite states: 3e38 (1 +- sum of the state).
DenseStackSpec WithHugeOutputs(const DenseStackSpec& spec) {
  static constexpr float kWeight[2 * kDim] = {3e38F, 3e38F, 3e38F, -3e38F, -3e38F, -3e38F};
  static constexpr float kBias[2] = {3e38F, 3e38F};
  DenseStackSpec huge = spec;
  huge.decode = {.rows = 2, .cols = kDim, .weight = kWeight, .bias = kBias};
  return huge;
}

TEST(RunnerTest, AnOutputThatOverflowsIsNoAnswer) {
  const RandomSystem system({.num_steps = kSteps, .state_dim = kDim, .bias = 1, .input_dim = 2});
  for (const BackendCase& backend : BackendCases()) {
    const SolverRig rig(backend.create(), WithHugeOutputs(system.spec()));
    for (const SolverRow& row : Solvers()) {
      for (const OnNoConvergence action : {OnNoConvergence::kReturn, OnNoConvergence::kFallback}) {
        ResolvedOptions options = OptionsFor(row.name, kSteps, 4, 1e-4);
        options.on_no_convergence = action;
        const Solved solved = rig.Solve(options, system.Inputs(1, 5));
        const SampleReport& report = solved.reports[0];
        const std::string what = backend.name + " " + std::string(row.name);
        ASSERT_FALSE(std::isfinite(solved.outputs[0]) && std::isfinite(solved.outputs[1])) << what;
        EXPECT_FALSE(report.converged) << what;
        EXPECT_EQ(report.termination, Termination::kNonFinite) << what;
        EXPECT_EQ(report.fallback, row.iterative && action == OnNoConvergence::kFallback) << what;
        EXPECT_FALSE(report.error_estimate.has_value()) << what;
        EXPECT_FALSE(report.rounding_estimate.has_value()) << what;
        EXPECT_FALSE(report.output_error_estimate.has_value()) << what;
        // The attempt had states that it could certify.
        EXPECT_EQ(report.attempt.error_estimate.has_value(), report.fallback) << what;
        EXPECT_GT(solved.trajectory.back(), -1) << what;  // the states are fine
      }
    }
  }
}

// Float32 only. Zeros in place of a vector whose variance overflows would hide the overflow.
TEST(RunnerTest, ALayerNormThatOverflowsIsNoAnswer) {
  const RandomDiffusion process(
      {.kind = DenoiserKind::kAdaLnMlp, .num_steps = kSteps, .input_scale = 1e20});
  for (const BackendCase& backend : BackendCases()) {
    if (backend.name == "reference") continue;
    const SolverRig rig(backend.create(), process.spec());
    for (const char* solver : {"sequential", "newton"}) {
      const Solved solved =
          rig.Solve(OptionsFor(solver, kSteps, 4, 1e-4), SampleInputs{.num_samples = 1});
      EXPECT_FALSE(solved.reports[0].converged) << backend.name << " " << solver;
      EXPECT_EQ(solved.reports[0].termination, Termination::kNonFinite)
          << backend.name << " " << solver;
    }
  }
}

// Wide enough that its products are shared by threads, in steps and in passes.
TEST(RunnerTest, ThreadsThatShareASolveLeaveItsBits) {
  for (const DenoiserKind kind : {DenoiserKind::kResidualMlp, DenoiserKind::kAdaLnMlp}) {
    const RandomDiffusion process(
        {.kind = kind, .state_dim = 4, .hidden_dim = 520, .num_steps = 6, .output_gain = 0.1});
    for (const BackendCase& backend : BackendCases()) {
      const bool shares = backend.name != "reference";
      const SolverRig alone(backend.create(), process.spec());
      SolverRig threads(backend.create(), process.spec(), 4);
      EXPECT_EQ(threads.system().grouping().shares_steps, shares);
      EXPECT_EQ(threads.system().grouping().shares_passes, shares);
      if (!shares) continue;
      for (const char* solver : {"sequential", "newton", "picard"}) {
        const ResolvedOptions options = OptionsFor(solver, 6, 2, 1e-3);
        for (int64_t n = 1; n <= 3; ++n) {
          const SampleInputs samples = {.num_samples = n, .seed = 9};
          const Solved expected = alone.Solve(options, samples);
          ASSERT_EQ(expected.reports.size(), static_cast<size_t>(n));
          for (int i = 0; i < 3; ++i)
            EXPECT_TRUE(threads.Solve(options, samples).SameAnswers(expected)) << solver << n;
        }
      }
    }
  }
}

// A thread takes longer to wake than 16 samples of a narrow stack to advance.
TEST(RunnerTest, OnlyLongWorkIsWorthAnotherThread) {
  const RandomSystem narrow({.num_steps = 1024, .state_dim = 16});
  const RandomSystem wide({.num_steps = 64, .state_dim = 512});
  for (const BackendCase& backend : BackendCases()) {
    if (backend.name == "reference") continue;
    SolverRig of_narrow(backend.create(), narrow.spec()), of_wide(backend.create(), wide.spec());
    EXPECT_GT(of_narrow.system().grouping().worthwhile, 16) << backend.name;
    EXPECT_LT(of_narrow.system().grouping().worthwhile, 128) << backend.name;
    EXPECT_EQ(of_wide.system().grouping().worthwhile, 1) << backend.name;
  }
}

// However the samples are divided among threads, each has its bits.
TEST(RunnerTest, GroupsOnThreadsLeaveBits) {
  const RandomSystem system({.num_steps = 700, .state_dim = 16});
  for (const BackendCase& backend : BackendCases()) {
    if (backend.name == "reference") continue;
    const SolverRig alone(backend.create(), system.spec());
    const SolverRig threads(backend.create(), system.spec(), 4);
    for (const int64_t n : {1, 17, 64, 200, 301}) {
      const std::vector<float> inputs = system.Inputs(n, 5);
      const ResolvedOptions options = OptionsFor("sequential", 700, 4, 1e-4);
      EXPECT_TRUE(threads.Solve(options, inputs).SameAnswers(alone.Solve(options, inputs)))
          << backend.name << " " << n;
    }
  }
}

// Helpers of one solve are missing in another, which goes on with those that it has.
TEST(RunnerTest, SolvesThatShareThreadsDoNotWaitForEachOther) {
  const RandomDiffusion process({.state_dim = 4, .hidden_dim = 520, .num_steps = 20});
  const std::unique_ptr<Backend> backend = BackendCases().front().create();
  const std::unique_ptr<System> system = *backend->NewSystem(process.spec());
  ThreadPool pool(3);
  const std::unique_ptr<Runner> runner =
      *Runner::Create(*system, ShapeOf(process.spec()), {}, &pool, 4);
  const auto solve = [&] {
    std::vector<float> outputs(4);
    SampleReport report;
    RunItem item{
        .samples = {.num_samples = 1, .seed = 2}, .outputs = outputs, .reports = {&report, 1}};
    EXPECT_TRUE(runner->Run({.solver = "sequential"}, {&item, 1}, nullptr).ok());
    return outputs;
  };
  const std::vector<float> expected = solve();
  std::vector<std::thread> callers;
  for (int c = 0; c < 4; ++c) {
    callers.emplace_back([&] {
      for (int i = 0; i < 25; ++i) EXPECT_EQ(solve(), expected);
    });
  }
  for (std::thread& caller : callers) caller.join();
}

// Outputs of a cancelled sample may belong to another request, so nobody gets them.
TEST(RunnerTest, WhatWasStoppedWritesNoOutputs) {
  const RandomSystem system({.num_steps = kSteps, .state_dim = kDim});
  const RandomDiffusion process({.num_steps = kSteps, .condition_dim = kDim});
  const std::vector<float> inputs = system.Inputs(1, 5);
  CancelToken token;
  token.Cancel();
  for (const SystemSpec& spec : {SystemSpec(system.spec()), SystemSpec(process.spec())}) {
    for (const BackendCase& backend : BackendCases()) {
      const SolverRig rig(backend.create(), spec);
      for (const char* solver : {"sequential", "newton"}) {
        std::vector<float> outputs(kDim, 7), trajectory((kSteps + 1) * kDim, 7);
        SampleReport report;
        RunItem item{.samples = {.num_samples = 1, .inputs = inputs},
                     .outputs = outputs,
                     .trajectory = trajectory,
                     .reports = {&report, 1},
                     .token = &token};
        ASSERT_TRUE(
            rig.runner().Run(OptionsFor(solver, kSteps, 4, 1e-4), {&item, 1}, nullptr).ok());
        EXPECT_EQ(report.termination, Termination::kCancelled) << backend.name << " " << solver;
        EXPECT_FALSE(report.error_estimate.has_value() || report.update.has_value());
        EXPECT_EQ(outputs, std::vector<float>(kDim, 7)) << backend.name << " " << solver;
        EXPECT_EQ(trajectory.back(), 7) << backend.name << " " << solver;
      }
    }
  }
}

}  // namespace
}  // namespace deeppcr::testing
