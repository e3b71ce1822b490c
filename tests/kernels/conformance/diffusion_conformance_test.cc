// SPDX-License-Identifier: Apache-2.0
// Every solver on every backend with reverse processes of both denoisers, compared with the
// reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "kernels/problem/philox.h"
#include "kernels/program/denoiser_program.h"
#include "kernels/solver/registry.h"
#include "tests/kernels/conformance/causality.h"
#include "tests/testing/random_diffusion.h"
#include "tests/testing/solver_rig.h"
#include "tests/testing/systems.h"

namespace deeppcr::testing {
namespace {

constexpr double kTolerance = 1e-4;

struct Family {
  const char* name;
  DiffusionOptions (*options)(int64_t num_steps, uint64_t seed);
  bool program;  // the denoiser as a step program
};
constexpr std::array kFamilies = {Family{"residual", &ResidualDdpm, false},
                                  Family{"adaln", &AdaLnWithDecoder, false},
                                  Family{"residual_program", &ResidualDdpm, true},
                                  Family{"adaln_program", &AdaLnWithDecoder, true}};

// A reverse process with a denoiser of the family's form.
class Process {
 public:
  Process(const Family& family, int64_t steps)
      : random_(family.options(steps, static_cast<uint64_t>(steps))) {
    if (family.program) program_ = *program::ProgramOfDenoiser(random_.spec());
  }
  const DiffusionSpec& spec() const { return random_.spec(); }
  SystemSpec system() const {
    if (!program_.has_value()) return spec();
    return program::WithProgram(spec(), *program_);
  }

 private:
  RandomDiffusion random_;
  std::optional<program::Program> program_;
};

class DiffusionConformanceTest : public ::testing::TestWithParam<std::tuple<size_t, size_t>> {
 protected:
  const BackendCase& backend() const { return BackendCases()[std::get<0>(GetParam())]; }
  std::unique_ptr<Backend> NewBackend() const { return backend().create(); }
  Process NewProcess(int64_t steps) const {
    return Process(kFamilies[std::get<1>(GetParam())], steps);
  }

  // n samples of a process; the labels and conditions belong to the test.
  SampleInputs Request(const DiffusionSpec& spec, int64_t n) {
    labels_.resize(spec.num_classes > 0 ? n : 0);
    for (size_t i = 0; i < labels_.size(); ++i)
      labels_[i] = static_cast<int32_t>(i % static_cast<size_t>(spec.num_classes));
    conditions_.resize(n * spec.input_dim());
    for (size_t i = 0; i < conditions_.size(); ++i)
      conditions_[i] = static_cast<float>(std::sin(static_cast<double>(i + 1)));
    return {.num_samples = n,
            .inputs = conditions_,
            .seed = 0x123456789ABCDEF0,
            .first_sample = 7,
            .labels = labels_};
  }

  std::vector<int32_t> labels_;
  std::vector<float> conditions_;
};

std::vector<ResolvedOptions> AllOptions(int64_t steps) {
  std::vector<ResolvedOptions> all;
  for (const SolverRow& row : Solvers()) {
    if (!Suits(row, ShapeOf(DiffusionSpec()))) continue;
    for (const int64_t interval : {int64_t{1}, int64_t{7}}) {
      for (const InitialGuess guess : {InitialGuess::kConstant, InitialGuess::kCoarse}) {
        ResolvedOptions options = OptionsFor(row.name, steps, interval, kTolerance);
        if (row.iterative) options.initial_guess = guess;
        all.push_back(options);
      }
    }
  }
  ResolvedOptions reuse = OptionsFor("newton", steps, 4, kTolerance);
  reuse.jacobian_refresh = JacobianRefresh::kWhileContracting;
  reuse.warm_sweeps = 2;
  all.push_back(reuse);
  return all;
}

TEST_P(DiffusionConformanceTest, EverySolverAgreesWithTheReference) {
  constexpr int64_t kSamples = 3;
  for (const int64_t steps : {1, 2, 31, 65, 200}) {
    if (steps > backend().max_steps) continue;
    const Process process = NewProcess(steps);
    const DiffusionSpec& spec = process.spec();
    const SampleInputs request = Request(spec, kSamples);
    const SolverRig oracle(BackendCases().back().create(), spec);
    const Solved want = oracle.Solve({.solver = "sequential"}, request);
    const std::vector<double> states(want.trajectory.begin(), want.trajectory.end());
    const SolverRig rig(NewBackend(), process.system());
    for (const ResolvedOptions& options : AllOptions(steps)) {
      const Solved solved = rig.Solve(options, request);
      ASSERT_EQ(solved.reports.size(), static_cast<size_t>(kSamples));
      for (const SampleReport& report : solved.reports)
        EXPECT_TRUE(report.converged)
            << options.solver << " L=" << steps << " " << ToString(report.termination);
      EXPECT_LE(RelativeError(solved.trajectory, states, spec.state_dim, 1e-2), kTolerance)
          << options.solver << " L=" << steps << " C=" << options.shooting_interval << " "
          << ToString(options.initial_guess);
      const int64_t n = spec.output_dim();
      EXPECT_LE(RelativeError(solved.outputs, {want.outputs.begin(), want.outputs.end()}, n, 0.1),
                2 * kTolerance)
          << options.solver << " L=" << steps;
    }
  }
}

TEST_P(DiffusionConformanceTest, BitsDependOnNeitherBatchNorSplitNorThreads) {
  constexpr int64_t kSamples = 11;
  const int64_t steps = std::min<int64_t>(40, backend().max_steps / 8);
  const Process process = NewProcess(steps);
  const SampleInputs request = Request(process.spec(), kSamples);
  const SolverRig rig(NewBackend(), process.system()), threads(NewBackend(), process.system(), 4);
  for (const ResolvedOptions& options : AllOptions(steps)) {
    const Solved together = rig.Solve(options, request);
    EXPECT_TRUE(together.SameAnswers(rig.Solve(options, request))) << options.solver;
    EXPECT_TRUE(together.SameAnswers(threads.Solve(options, request))) << options.solver;
    Solved split;
    for (const auto& [first, n] : {std::pair{0, 1}, std::pair{1, 2}, std::pair{3, 8}}) {
      const Solved part = rig.Solve(options, SamplesOf(request, first, n));
      split.outputs.insert(split.outputs.end(), part.outputs.begin(), part.outputs.end());
      split.trajectory.insert(split.trajectory.end(), part.trajectory.begin(),
                              part.trajectory.end());
    }
    EXPECT_TRUE(together.SameAnswers(split)) << options.solver;
  }
}

TEST_P(DiffusionConformanceTest, GivenNoiseIsUsedAsDrawnNoiseWouldBe) {
  constexpr int64_t kSteps = 12, kSamples = 2;
  const Process process = NewProcess(kSteps);
  const int64_t dim = process.spec().state_dim;
  const SolverRig rig(NewBackend(), process.system());
  const SampleInputs drawn = Request(process.spec(), kSamples);
  std::vector<float> initial(kSamples * dim), steps(kSamples * kSteps * dim);
  for (int64_t s = 0; s < kSamples; ++s) {
    const uint64_t sample = drawn.first_sample + static_cast<uint64_t>(s);
    FillNormals(drawn.seed, sample, kInitialNoiseStep, dim, initial.data() + s * dim);
    for (int64_t i = 0; i < kSteps; ++i)
      FillNormals(drawn.seed, sample, static_cast<uint32_t>(i), dim,
                  steps.data() + (s * kSteps + i) * dim);
  }
  SampleInputs given = drawn;
  given.seed = 99;
  given.initial_noise = initial;
  given.step_noise = steps;
  for (const ResolvedOptions& options : AllOptions(kSteps))
    EXPECT_TRUE(rig.Solve(options, drawn).SameAnswers(rig.Solve(options, given)));
  given.step_noise = {};
  const ResolvedOptions sequential{.solver = "sequential"};
  EXPECT_FALSE(rig.Solve(sequential, drawn).SameAnswers(rig.Solve(sequential, given)));
}

TEST_P(DiffusionConformanceTest, EveryUpdateMakesOneMoreIntervalExact) {
  constexpr int64_t kSteps = 43, kInterval = 3;
  const Process process = NewProcess(kSteps);
  const SolverRig rig(NewBackend(), process.system());
  ExpectCausality(rig, Request(process.spec(), 1), kSteps, kInterval, 6);
}

// Every backend with every family. With programs in place of stacks a backend is no other one here.
std::vector<std::tuple<size_t, size_t>> Cases() {
  std::vector<std::tuple<size_t, size_t>> cases;
  for (size_t backend = 0; backend < BackendCases().size(); ++backend) {
    if (BackendCases()[backend].name.ends_with("_programs")) continue;
    for (size_t family = 0; family < kFamilies.size(); ++family)
      cases.emplace_back(backend, family);
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Backends, DiffusionConformanceTest, ::testing::ValuesIn(Cases()),
                         [](const auto& test) {
                           return BackendCases()[std::get<0>(test.param)].name + "_" +
                                  kFamilies[std::get<1>(test.param)].name;
                         });

}  // namespace
}  // namespace deeppcr::testing
