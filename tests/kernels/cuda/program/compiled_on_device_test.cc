// SPDX-License-Identifier: Apache-2.0
// Step programs as the device under test takes them, against those that it interprets, and wide
// processes by all of the device. The executor interprets all programs: compiled_section_test.cc
// has what it runs of compiled ones.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/program/denoiser_program.h"
#include "tests/kernels/program/random_process.h"
#include "tests/testing/gpu_under_test.h"
#include "tests/testing/random_diffusion.h"
#include "tests/testing/solver_rig.h"
#include "tests/testing/systems.h"

namespace deeppcr::testing {
namespace {

constexpr int64_t kProcessSteps = 24, kInterval = 3;
constexpr int kRequestSamples = 3;

TEST(CompiledOnDeviceTest, HasTheBitsOfTheInterpreter) {
  const bool compiles = NewDeviceUnderTest()->compiler().ok();
  int compiled = 0;
  const LoadProgress progress = [&](LoadNews news, std::string_view text) {
    std::printf("%s\n", std::string(text).c_str());
    EXPECT_EQ(news, LoadNews::kStep) << text;
    compiled += text.starts_with("compiled the step") ? 1 : 0;
  };
  for (const int seed : {2, 3, 5, 6}) {
    SCOPED_TRACE(seed);
    const program::RandomProcess process(seed, kProcessSteps);
    const SolverRig own(cuda::NewCudaBackend(NewDeviceUnderTest()), process.spec(), 1, 1,
                        {.progress = &progress});
    const SolverRig interpreting(NewBackendUnderTest(), process.spec());
    std::vector<float> conditions;
    for (int i = 0; i < kRequestSamples; ++i)
      conditions.insert(conditions.end(), process.condition().begin(), process.condition().end());
    const std::vector<int32_t> labels(own.runner().shape().num_classes > 0 ? kRequestSamples : 0,
                                      process.label());
    const SampleInputs request{.num_samples = kRequestSamples,
                               .inputs = conditions,
                               .seed = static_cast<uint64_t>(seed),
                               .labels = labels};
    ResolvedOptions newton = OptionsFor("newton", kProcessSteps, kInterval, 1e-4);
    for (const InitialGuess guess : {InitialGuess::kConstant, InitialGuess::kCoarse}) {
      newton.initial_guess = guess;
      EXPECT_TRUE(own.Solve(newton, request).SameAnswers(interpreting.Solve(newton, request)));
    }
    const Solved want = interpreting.Solve({.solver = "sequential"}, request);
    EXPECT_EQ(want.reports.size(), static_cast<size_t>(kRequestSamples));
    EXPECT_TRUE(own.Solve({.solver = "sequential"}, request).SameAnswers(want));
  }
  EXPECT_EQ(compiled, compiles ? 4 : 0);
}

// The steps of one sample or two are made by all blocks of a GPU, those of three by a cluster each:
// of wide denoisers, and of the same as programs, interpreted and, where that is possible,
// compiled.
TEST(CompiledOnDeviceTest, WideProcessesHaveTheBitsOfTheirBatch) {
  constexpr int kWideSteps = 5;
  for (const DenoiserKind kind : {DenoiserKind::kResidualMlp, DenoiserKind::kAdaLnMlp}) {
    const RandomDiffusion process({.kind = kind,
                                   .state_dim = 12,
                                   .hidden_dim = 300,
                                   .num_blocks = 2,
                                   .num_steps = kWideSteps,
                                   .output_gain = 0.3});
    const program::Program program = *program::ProgramOfDenoiser(process.spec());
    const SystemSpec of_program = program::WithProgram(process.spec(), program);
    const SolverRig reference(BackendCases().back().create(), process.spec());
    std::deque<SolverRig> rigs;
    rigs.emplace_back(NewBackendUnderTest(), process.spec());
    rigs.emplace_back(NewBackendUnderTest(), of_program);
    rigs.emplace_back(cuda::NewCudaBackend(NewDeviceUnderTest()), of_program);
    const auto solve = [](const SolverRig& rig, int64_t samples, uint64_t first) {
      return rig.Solve({.solver = "sequential"},
                       SampleInputs{.num_samples = samples, .seed = 7, .first_sample = first});
    };
    const Solved right = solve(reference, kRequestSamples, 0);
    const std::vector<double> states(right.trajectory.begin(), right.trajectory.end());
    for (const SolverRig& rig : rigs) {
      const Solved all = solve(rig, kRequestSamples, 0);
      ASSERT_EQ(all.trajectory.size(), states.size());
      EXPECT_LE(RelativeError(all.trajectory, states, 12, 1e-2), 1e-4);
      const size_t floats = states.size() / kRequestSamples;
      for (const auto& [samples, first] : {std::pair{1, 2}, std::pair{2, 1}, std::pair{1, 0}}) {
        const Solved some = solve(rig, samples, static_cast<uint64_t>(first));
        ASSERT_EQ(some.trajectory.size(), floats * samples);
        EXPECT_TRUE(std::ranges::equal(
            some.trajectory, std::span(all.trajectory).subspan(first * floats, samples * floats)))
            << "samples " << first << ", ..., of " << samples;
      }
    }
  }
}

}  // namespace
}  // namespace deeppcr::testing
