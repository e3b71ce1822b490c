// SPDX-License-Identifier: Apache-2.0
// Tests that need a GPU, or are too much for the SIMT executor: deep systems, large batches, wide
// denoisers, many threads.
#include <gtest/gtest.h>

#include <cmath>
#include <thread>
#include <vector>

#include "kernels/cuda/runtime/device.h"
#include "kernels/solver/registry.h"
#include "tests/testing/gpu_under_test.h"
#include "tests/testing/random_diffusion.h"
#include "tests/testing/solver_rig.h"
#include "tests/testing/systems.h"

namespace deeppcr::testing {
namespace {

// Steps of wide denoisers: far more than passes, so that no state is right by causality alone.
constexpr int64_t kDenoiserSteps = 32;

double WorstState(const Solved& got, const Solved& want, int64_t dim) {
  const std::vector<double> states(want.trajectory.begin(), want.trajectory.end());
  return RelativeError(got.trajectory, states, dim, 1e-2);
}

// Compares a residual system with the CPU backend, and with the sequential solver on the GPU.
void ExpectAgreement(int64_t steps, int64_t dim, int64_t interval) {
  const RandomSystem system({.num_steps = steps,
                             .state_dim = dim,
                             .residual = true,
                             .gain = 1 / std::sqrt(static_cast<double>(steps))});
  const SolverRig gpu(NewBackendUnderTest(), system.spec(), 1, interval);
  const SolverRig cpu(BackendCases().front().create(), system.spec(), 1, interval);
  const std::vector<float> inputs = system.Inputs(2, 3);
  const Solved sequential = gpu.Solve({.solver = "sequential"}, inputs);
  EXPECT_LE(WorstState(sequential, cpu.Solve({.solver = "sequential"}, inputs), dim), 1e-4)
      << steps << " " << dim;
  const auto iterations = [&](const char* solver) {
    const Solved solved = gpu.Solve(OptionsFor(solver, steps, interval, 1e-4), inputs);
    EXPECT_LE(WorstState(solved, sequential, dim), 1e-4) << solver << steps << " " << dim;
    EXPECT_TRUE(solved.reports[0].converged && !solved.reports[0].fallback) << solver;
    return solved.reports[0].iterations;
  };
  // Wrong matrices would cost passes before they cost digits.
  EXPECT_LT(iterations("newton"), iterations("picard")) << steps << " " << dim;
}

TEST(CudaOnGpuTest, DeepSystems) {
  for (const int64_t steps : {1000, 4096, 16384}) {
    for (const int64_t dim : {4, 16, 32}) ExpectAgreement(steps, dim, 64);
  }
}

// A block takes these states: in trees for one cluster, and in trees whose lower levels are
// launches.
TEST(CudaOnGpuTest, DeepSystemsOfWideStates) {
  ExpectAgreement(1024, 64, 8);
  ExpectAgreement(1024, 64, 1);
  ExpectAgreement(512, 200, 2);
}

// A block of a cluster must read what another block wrote. A stale value would cost a pass and not
// a digit, so this test compares bits, over teams of every size and many times.
TEST(CudaOnGpuTest, WideStatesKeepTheirBits) {
  constexpr int64_t kDim = 64, kSteps = 1024, kSamples = 8;
  constexpr int kRepetitions = 50;
  const RandomSystem system(
      {.num_steps = kSteps, .state_dim = kDim, .residual = true, .gain = 0.03});
  const SolverRig rig(NewBackendUnderTest(), system.spec());
  const std::vector<float> inputs = system.Inputs(kSamples, 4);
  for (const int64_t interval : {8, 1}) {
    const ResolvedOptions options = OptionsFor("newton", kSteps, interval, 1e-4);
    const Solved together = rig.Solve(options, inputs);
    for (int r = 0; r < kRepetitions; ++r) {
      const int64_t s = r % kSamples;
      const Solved alone =
          rig.Solve(options, {inputs.begin() + s * kDim, inputs.begin() + (s + 1) * kDim});
      EXPECT_TRUE(std::equal(alone.trajectory.begin(), alone.trajectory.end(),
                             together.trajectory.begin() + s * (kSteps + 1) * kDim))
          << interval << " " << r;
      EXPECT_EQ(alone.reports[0].iterations, together.reports[s].iterations);
      EXPECT_EQ(alone.reports[0].error_estimate, together.reports[s].error_estimate);
    }
  }
}

TEST(CudaOnGpuTest, LargeBatchesKeepTheirBits) {
  const RandomSystem system({.num_steps = 256,
                             .state_dim = 16,
                             .residual = true,
                             .gain = 0.1,
                             .input_dim = 64,
                             .output_dim = 10});
  const SolverRig rig(NewBackendUnderTest(), system.spec());
  const std::vector<float> inputs = system.Inputs(300, 4);
  for (const char* solver : {"sequential", "newton", "picard"}) {
    const ResolvedOptions options = OptionsFor(solver, 256, 8, 1e-4);
    const Solved together = rig.Solve(options, inputs);
    EXPECT_TRUE(together.SameAnswers(rig.Solve(options, inputs))) << solver;
    for (const int64_t s : {0, 17, 299}) {
      const Solved alone =
          rig.Solve(options, {inputs.begin() + s * 64, inputs.begin() + (s + 1) * 64});
      EXPECT_TRUE(
          std::equal(alone.outputs.begin(), alone.outputs.end(), together.outputs.begin() + s * 10))
          << solver << " " << s;
    }
  }
}

// These transition matrices are so near the identity that a product in less than float32 would not
// see them grow: the certificate would make a false claim.
TEST(CudaOnGpuTest, MatricesNearTheIdentityKeepTheirGrowth) {
  constexpr int64_t kSteps = 8192;
  constexpr float kGrowth = 4.8e-4F;
  std::vector<float> weights(4 * kSteps), inputs = {1.0F, 6e-6F};
  for (int64_t l = 0; l < kSteps; ++l) weights[4 * l + 3] = 1.0F;
  DenseStackSpec spec;
  spec.num_steps = kSteps;
  spec.state_dim = 2;
  spec.residual = true;
  spec.residual_scale = kGrowth;
  spec.activation = Activation::kIdentity;
  spec.weights = weights;
  const SolverRig rig(NewBackendWithoutClusters(), spec);
  const Solved sequential = rig.Solve({.solver = "sequential"}, inputs);
  const Solved newton = rig.Solve(OptionsFor("newton", kSteps, 1, 1e-4), inputs);
  EXPECT_LE(WorstState(newton, sequential, 2), 1e-4);
  EXPECT_TRUE(newton.reports[0].converged && !newton.reports[0].fallback);
}

// Samples of wide denoisers share a cluster if there are more samples than clusters: with 132
// multiprocessors a cluster takes one, two or eight samples and, where layers take a cluster of 16
// blocks, 16 with a last team of fewer.
struct WideDenoiser {
  const char* name;
  DenoiserKind kind;
  int64_t hidden_dim;
  std::vector<int64_t> samples;
};
class WideDenoisersTest : public ::testing::TestWithParam<WideDenoiser> {};

TEST_P(WideDenoisersTest, SamplesKeepTheirBitsTogether) {
  const RandomDiffusion process({.kind = GetParam().kind,
                                 .state_dim = 12,
                                 .hidden_dim = GetParam().hidden_dim,
                                 .num_blocks = 2,
                                 .num_steps = 5,
                                 .output_gain = 0.2});
  const SolverRig rig(NewBackendUnderTest(), process.spec());
  const auto solve = [&](int64_t first, int64_t n) {
    return rig.Solve(
        {.solver = "sequential"},
        SampleInputs{.num_samples = n, .seed = 5, .first_sample = static_cast<uint64_t>(first)});
  };
  for (const int64_t n : GetParam().samples) {
    const Solved together = solve(0, n);
    ASSERT_EQ(together.reports.size(), static_cast<size_t>(n));
    for (const int64_t s : {int64_t{0}, n / 2, n - 1}) {
      const Solved alone = solve(s, 1);
      EXPECT_TRUE(
          std::equal(alone.outputs.begin(), alone.outputs.end(), together.outputs.begin() + s * 12))
          << n << " " << s;
    }
  }
}
INSTANTIATE_TEST_SUITE_P(
    All, WideDenoisersTest,
    ::testing::Values(WideDenoiser{"residual", DenoiserKind::kResidualMlp, 250, {33, 34, 256}},
                      WideDenoiser{"adaln", DenoiserKind::kAdaLnMlp, 250, {33, 34, 256}},
                      WideDenoiser{"adaln_a_few", DenoiserKind::kAdaLnMlp, 250, {33}},
                      WideDenoiser{"adaln_widest", DenoiserKind::kAdaLnMlp, 1024, {1, 130}}),
    [](const auto& test) { return std::string(test.param.name); });

// Tests iterative solvers of wide denoisers, whose tangents go through cuBLAS in TF32. They must be
// within the tolerance of the sequential solver after few passes, which rules out wrong matrices;
// have the same bits alone and in a batch; and have the bits of the sequential solver in as many
// intervals as there were updates.
void ExpectNewtonOfDenoisers(int64_t hidden_dim) {
  for (const DenoiserKind kind : {DenoiserKind::kResidualMlp, DenoiserKind::kAdaLnMlp}) {
    const RandomDiffusion process({.kind = kind,
                                   .state_dim = 16,
                                   .hidden_dim = hidden_dim,
                                   .num_blocks = 3,
                                   .num_steps = kDenoiserSteps,
                                   .clip = false,
                                   .output_gain = 0.4});
    const SolverRig rig(NewBackendUnderTest(), process.spec());
    const auto solve = [&](const ResolvedOptions& options, int64_t n) {
      return rig.Solve(options, SampleInputs{.num_samples = n, .seed = 5});
    };
    const Solved sequential = solve({.solver = "sequential"}, 2);
    for (const int64_t interval : {1, 5}) {
      const ResolvedOptions options = OptionsFor("newton", kDenoiserSteps, interval, 1e-4);
      const Solved newton = solve(options, 2), alone = solve(options, 1);
      EXPECT_LE(WorstState(newton, sequential, 16), 1e-4) << hidden_dim << " C " << interval;
      for (const SampleReport& report : newton.reports) {
        EXPECT_TRUE(report.converged && !report.fallback) << hidden_dim << " C " << interval;
        EXPECT_LE(report.iterations + report.chord_corrections,
                  9)  // the residual denoiser takes 22 without matrices
            << hidden_dim << " C " << interval;
      }
      EXPECT_TRUE(
          std::equal(alone.trajectory.begin(), alone.trajectory.end(), newton.trajectory.begin()))
          << hidden_dim << " C " << interval;
    }
    ResolvedOptions two = OptionsFor("newton", kDenoiserSteps, 4, 1e-7);
    two.max_iterations = 2;
    two.on_no_convergence = OnNoConvergence::kReturn;
    const Solved causal = solve(two, 1);
    EXPECT_FALSE(causal.reports[0].fallback);
    EXPECT_TRUE(std::equal(causal.trajectory.begin(), causal.trajectory.begin() + 9 * 16,
                           sequential.trajectory.begin()))
        << hidden_dim;
  }
}
TEST(CudaOnGpuTest, NewtonOfWideDenoisersAgreesWithSequential) { ExpectNewtonOfDenoisers(250); }
TEST(CudaOnGpuTest, NewtonOfTheWidestDenoisersAgreesWithSequential) {
  ExpectNewtonOfDenoisers(1024);
}

TEST(CudaOnGpuTest, ThreadsDoNotDisturbOneAnother) {
  const RandomSystem system({.num_steps = 300, .state_dim = 8, .gain = 0.9});
  const std::unique_ptr<Backend> backend = NewBackendUnderTest();
  const std::unique_ptr<System> loaded = *backend->NewSystem(system.spec());
  ThreadPool pool(2);
  const auto runner = *Runner::Create(*loaded, ShapeOf(system.spec()), {}, &pool, 4);
  const std::vector<float> inputs = system.Inputs(1, 5);
  const auto solve = [&](int64_t interval) {
    std::vector<float> outputs(8);
    SampleReport report;
    RunItem item{.samples = {.num_samples = 1, .inputs = inputs},
                 .outputs = outputs,
                 .reports = {&report, 1}};
    EXPECT_TRUE(runner->Run(OptionsFor("newton", 300, interval, 1e-4), {&item, 1}, nullptr).ok());
    return outputs;
  };
  const std::vector<float> want = solve(4), other = solve(16);
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i)
        EXPECT_EQ(solve(t % 2 == 0 ? 4 : 16), t % 2 == 0 ? want : other);
    });
  for (std::thread& thread : threads) thread.join();
}

TEST(CudaOnGpuTest, MemoryThatIsNotThereIsAnErrorWithItsSize) {
  const std::unique_ptr<cuda::Device> device = NewDeviceUnderTest();
  const auto memory = device->Allocate(cuda::MemoryKind::kDevice, size_t{1} << 44);
  ASSERT_FALSE(memory.ok());
  EXPECT_EQ(memory.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(memory.status().message().find("17592186044416 bytes wanted"), std::string::npos);
  // The device still works.
  const RandomSystem system({.num_steps = 20, .state_dim = 4});
  const SolverRig rig(NewBackendUnderTest(), system.spec());
  EXPECT_EQ(rig.Solve({.solver = "sequential"}, system.Inputs(1, 5)).reports.size(), 1U);
}

}  // namespace
}  // namespace deeppcr::testing
