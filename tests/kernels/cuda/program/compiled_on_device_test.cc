// SPDX-License-Identifier: Apache-2.0
// Step programs as the device under test takes them, against those that it interprets. The executor
// interprets them all: compiled_section_test.cc has what it runs of compiled programs.
#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/cuda/cuda_backend.h"
#include "tests/kernels/program/random_process.h"
#include "tests/testing/gpu_under_test.h"
#include "tests/testing/solver_rig.h"

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

}  // namespace
}  // namespace deeppcr::testing
