// SPDX-License-Identifier: Apache-2.0
// The trained diffusion model: the iterations that its thousand steps take, and the samples, which
// every solver draws alike, from the named denoiser and from the same weights as an exported graph.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>

#include "kernels/base/file.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/model/model.h"
#include "tests/testing/safetensors_writer.h"
#include "tests/testing/solver_rig.h"
#include "tests/testing/systems.h"

namespace deeppcr::testing {
namespace {

constexpr int64_t kSteps = 1000;

// The number of seeds; DEEPPCR_TEST_SEEDS=100 takes more time.
int64_t NumSeeds() {
  const char* wanted = std::getenv("DEEPPCR_TEST_SEEDS");
  return wanted == nullptr ? 12 : std::max(1L, std::strtol(wanted, nullptr, 10));
}

template <class T>
T Median(std::vector<T> values) {
  const auto middle = values.begin() + static_cast<int64_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::string DemoModel(const std::string& name) {
  return std::string(DEEPPCR_SOURCE_DIR) + "/deploy/models/repository/" + name + "/1";
}

// digits-ddpm with its own scheduler, or with the same betas under DDIM.
absl::StatusOr<Model> ReadDigits(const std::string& scheduler, const std::string& directory) {
  std::filesystem::copy(DemoModel("digits-ddpm"), directory,
                        std::filesystem::copy_options::recursive);
  const std::string path = directory + "/scheduler_config.json";
  const absl::StatusOr<std::string> text = ReadFile(path, 1 << 20);
  if (!text.ok()) return text.status();
  nlohmann::json config = nlohmann::json::parse(*text);
  config["_class_name"] = scheduler;
  if (scheduler == "DDIMScheduler") config.erase("variance_type");
  if (const absl::Status written = WriteFileAtomically(path, config.dump()); !written.ok())
    return written;
  return ReadModel(directory, {});
}

class DigitsDdpmTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    model_ = ReadDigits(GetParam(), directory_.path()).value();
    const SystemSpec& spec = model_.systems.front();
    ASSERT_EQ(ShapeOf(spec).num_steps, kSteps);
    rig_ = std::make_unique<SolverRig>(*cpu::NewCpuBackend(), spec, 2);
  }

  Solved Ask(ResolvedOptions options, int64_t n) const {
    options.num_steps = kSteps;
    return rig_->Solve(options, SampleInputs{.num_samples = n, .seed = 2309});
  }

  TemporaryDirectory directory_;
  Model model_;
  std::unique_ptr<SolverRig> rig_;
};

// Medians, and what all samples took together: a median of few small numbers leaps.
struct Costs {
  int32_t iterations;
  int64_t columns, stages, all_columns;
};

Costs MediansOf(const Solved& solved, const char* what) {
  std::vector<int32_t> iterations;
  std::vector<int64_t> columns, stages;
  for (const SampleReport& report : solved.reports) {
    EXPECT_TRUE(report.converged) << ToString(report.termination);
    EXPECT_FALSE(report.fallback);
    iterations.push_back(report.iterations);
    columns.push_back(report.column_passes);
    stages.push_back(report.dependent_stages);
  }
  const Costs costs{Median(iterations), Median(columns), Median(stages),
                    std::accumulate(columns.begin(), columns.end(), int64_t{0})};
  std::printf(
      "%-32s %zu samples: median K=%d, column passes %lld, dependent stages %lld; %lld passes in "
      "all\n",
      what, solved.reports.size(), costs.iterations, static_cast<long long>(costs.columns),
      static_cast<long long>(costs.stages), static_cast<long long>(costs.all_columns));
  return costs;
}

TEST_P(DigitsDdpmTest, NewtonNeedsFewIterations) {
  const int32_t most = GetParam() == "DDPMScheduler" ? 8 : 5;
  ResolvedOptions options = OptionsFor("newton", kSteps, 1, 1e-4);
  EXPECT_LE(MediansOf(Ask(options, NumSeeds()), "newton, constant guess").iterations, most);
  options.initial_guess = InitialGuess::kCoarse;
  EXPECT_LE(MediansOf(Ask(options, NumSeeds()), "newton, coarse guess").iterations, most);
}

TEST_P(DigitsDdpmTest, ReusedJacobiansSaveColumnPasses) {
  ResolvedOptions options = OptionsFor("newton", kSteps, 1, 1e-4);
  options.initial_guess = InitialGuess::kCoarse;
  const Costs anew = MediansOf(Ask(options, NumSeeds()), "newton, coarse guess");
  options.jacobian_refresh = JacobianRefresh::kWhileContracting;
  const Costs reused = MediansOf(Ask(options, NumSeeds()), "newton, reused, coarse guess");
  EXPECT_LT(reused.all_columns, anew.all_columns);
  // DDIM's median sample needs two iterations, and there is nothing to reuse between them.
  if (GetParam() == "DDPMScheduler") {
    EXPECT_LT(reused.columns, anew.columns);
  }
}

TEST_P(DigitsDdpmTest, EverySolverDrawsTheSameSamples) {
  constexpr int64_t kSamples = 4;
  const Solved sequential = Ask({.solver = "sequential"}, kSamples);
  const std::vector<double> states(sequential.trajectory.begin(), sequential.trajectory.end());
  for (const char* solver : {"newton", "picard"}) {
    ResolvedOptions options = OptionsFor(solver, kSteps, 8, 1e-4);
    options.initial_guess = InitialGuess::kCoarse;
    options.max_iterations = 100;
    const Solved solved = Ask(options, kSamples);
    MediansOf(solved, solver);
    EXPECT_LE(RelativeError(solved.trajectory, states, 16, 1e-2), 1e-4) << solver;
    EXPECT_TRUE(solved.SameAnswers(Ask(options, kSamples))) << solver;
  }
}

// Same seeds, same noise: the export may differ from the named denoiser by what float32 rounds, and
// its parallel solvers by their tolerance besides.
TEST(DigitsDdpmOnnxTest, DrawsTheSamplesOfTheNamedDenoiser) {
  constexpr int64_t kSamples = 4, kPixels = 64;
  const Model named = ReadModel(DemoModel("digits-ddpm"), {}).value();
  const Model exported = ReadModel(DemoModel("digits-ddpm-onnx"), {}).value();
  const SampleInputs request = {.num_samples = kSamples, .seed = 2310};
  const Solved want = SolverRig(*cpu::NewCpuBackend(), named.systems.front(), 2)
                          .Solve({.solver = "sequential", .num_steps = kSteps}, request);
  const std::vector<double> states(want.trajectory.begin(), want.trajectory.end());
  const std::vector<double> pixels(want.outputs.begin(), want.outputs.end());
  const SolverRig rig(*cpu::NewCpuBackend(), exported.systems.front(), 2);
  for (const char* solver : {"sequential", "newton", "picard"}) {
    ResolvedOptions options = OptionsFor(solver, kSteps, 8, 1e-4);
    options.num_steps = kSteps;
    options.initial_guess = InitialGuess::kCoarse;
    options.max_iterations = 100;
    const Solved solved = rig.Solve(options, request);
    MediansOf(solved, solver);
    const double most = std::string(solver) == "sequential" ? 1e-5 : 1e-4;
    EXPECT_LE(RelativeError(solved.trajectory, states, 16, 1e-2), most) << solver;
    EXPECT_LE(RelativeError(solved.outputs, pixels, kPixels, 1e-2), most) << solver;
  }
}

INSTANTIATE_TEST_SUITE_P(Schedulers, DigitsDdpmTest,
                         ::testing::Values("DDPMScheduler", "DDIMScheduler"),
                         [](const auto& test) { return test.param.substr(0, 4); });

}  // namespace
}  // namespace deeppcr::testing
