// SPDX-License-Identifier: Apache-2.0
// The reverse steps of every scheduler of diffusers with every solver on every backend, forward and
// back, compared with the reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "kernels/model/reverse_process.h"
#include "kernels/problem/philox.h"
#include "kernels/solver/registry.h"
#include "tests/kernels/conformance/causality.h"
#include "tests/testing/backward_rig.h"
#include "tests/testing/larger.h"
#include "tests/testing/random_diffusion.h"
#include "tests/testing/solver_rig.h"
#include "tests/testing/systems.h"

namespace deeppcr::testing {
namespace {

constexpr double kRtol = 1e-4;

struct SamplerCase {
  const char* name;
  const char* scheduler;
  bool clipped_output = false;
};
constexpr std::array kSamplers = {
    SamplerCase{"ddpm", R"({"_class_name":"DDPMScheduler"})"},
    SamplerCase{"ddim_clipped", R"({"_class_name":"DDIMScheduler"})", true},
    SamplerCase{"euler", R"({"_class_name":"EulerDiscreteScheduler"})"},
    SamplerCase{"euler_karras_v", R"({"_class_name":"EulerDiscreteScheduler",
        "use_karras_sigmas":true,"prediction_type":"v_prediction"})"},
    SamplerCase{"ancestral", R"({"_class_name":"EulerAncestralDiscreteScheduler"})"},
    SamplerCase{"dpm", R"({"_class_name":"DPMSolverMultistepScheduler","solver_order":1})"},
    SamplerCase{"dpm_sde", R"({"_class_name":"DPMSolverMultistepScheduler","solver_order":1,
        "algorithm_type":"sde-dpmsolver++","prediction_type":"v_prediction"})"},
    SamplerCase{"lcm", R"({"_class_name":"LCMScheduler","original_inference_steps":100,
        "prediction_type":"v_prediction","clip_sample":true})"},
    SamplerCase{"flow", R"({"_class_name":"FlowMatchEulerDiscreteScheduler","shift":3.0})"},
    SamplerCase{"flow_stochastic", R"({"_class_name":"FlowMatchEulerDiscreteScheduler",
        "stochastic_sampling":true})"},
    SamplerCase{"edm", R"({"_class_name":"EDMEulerScheduler"})"},
    SamplerCase{"multistep", R"({"_class_name":"DPMSolverMultistepScheduler"})"},
    SamplerCase{"multistep_sde_heun", R"({"_class_name":"DPMSolverMultistepScheduler",
        "algorithm_type":"sde-dpmsolver++","solver_type":"heun",
        "prediction_type":"v_prediction"})"},
    SamplerCase{"multistep_eps", R"({"_class_name":"DPMSolverMultistepScheduler",
        "algorithm_type":"dpmsolver","final_sigmas_type":"sigma_min"})"},
    SamplerCase{"heun", R"({"_class_name":"HeunDiscreteScheduler"})"},
    SamplerCase{"heun_clip_karras", R"({"_class_name":"HeunDiscreteScheduler",
        "clip_sample":true,"use_karras_sigmas":true})"},
    SamplerCase{"ddpm_learned_range",
                R"({"_class_name":"DDPMScheduler","variance_type":"learned_range"})"},
    SamplerCase{"ddpm_learned", R"({"_class_name":"DDPMScheduler","variance_type":"learned",
        "prediction_type":"sample"})"},
};

SchedulerConfig ConfigOf(const SamplerCase& sampler) {
  return *ParseSchedulerConfig(sampler.scheduler);
}

// A sampler's steps around a random denoiser.
class SampledProcess {
 public:
  SampledProcess(const SamplerCase& sampler, int64_t num_steps)
      : random_({.kind = DenoiserKind::kResidualMlp,
                 .state_dim = 5,
                 .hidden_dim = 16,
                 .num_blocks = 2,
                 .num_steps = num_steps,
                 .form = FormOf(ConfigOf(sampler)),
                 .seed = 5}),
        process_(BuildReverseProcess(ConfigOf(sampler),
                                     {.num_inference_steps = num_steps,
                                      .use_clipped_model_output = sampler.clipped_output})
                     .value()),
        spec_(random_.spec()) {
    spec_.steps = process_.steps;
    spec_.clip_range = process_.clip_range;
    spec_.initial_scale = static_cast<float>(process_.initial_scale);
    spec_.form = process_.form;
  }
  SampledProcess(const SampledProcess&) = delete;
  DiffusionSpec& spec() { return spec_; }

 private:
  RandomDiffusion random_;
  ReverseProcess process_;
  DiffusionSpec spec_;
};

class SamplersConformanceTest : public ::testing::TestWithParam<std::tuple<size_t, size_t>> {
 protected:
  const BackendCase& backend() const { return BackendCases()[std::get<0>(GetParam())]; }
  const SamplerCase& sampler() const { return kSamplers[std::get<1>(GetParam())]; }
};

TEST_P(SamplersConformanceTest, EverySolverAgreesWithTheReference) {
  for (const int64_t steps : {1, 9, 65}) {
    if (steps > backend().max_steps) continue;
    SampledProcess process(sampler(), steps);
    const DiffusionSpec& spec = process.spec();
    const SampleInputs request = {.num_samples = 3, .seed = 17};
    const SolverRig oracle(BackendCases().back().create(), spec);
    const Solved want = oracle.Solve({.solver = "sequential"}, request);
    const std::vector<double> states(want.trajectory.begin(), want.trajectory.end());
    const SolverRig rig(backend().create(), spec);
    for (const SolverRow& row : Solvers()) {
      if (!Suits(row, ShapeOf(DiffusionSpec()))) continue;
      for (const InitialGuess guess : {InitialGuess::kConstant, InitialGuess::kCoarse}) {
        ResolvedOptions options = OptionsFor(row.name, steps, 4, kRtol);
        if (row.iterative) options.initial_guess = guess;
        const Solved solved = rig.Solve(options, request);
        for (const SampleReport& report : solved.reports) {
          EXPECT_TRUE(report.converged)
              << row.name << " L=" << steps << " " << ToString(report.termination);
          // The others may fall back, as Jacobi's method does on a long process.
          if (row.name == "newton" || row.name == "picard") {
            EXPECT_FALSE(report.fallback)
                << row.name << " L=" << steps << " " << ToString(report.attempt.termination);
          }
        }
        EXPECT_LE(RelativeError(solved.trajectory, states, ShapeOf(spec).state_dim, 1e-2), kRtol)
            << row.name << " L=" << steps << " " << ToString(guess);
      }
    }
  }
}

TEST_P(SamplersConformanceTest, EveryUpdateMakesOneMoreIntervalExact) {
  constexpr int64_t kSteps = 31, kInterval = 3;
  SampledProcess process(sampler(), kSteps);
  const SolverRig rig(backend().create(), process.spec());
  ExpectCausality(rig, {.num_samples = 1, .seed = 23}, kSteps, kInterval, 4);
}

TEST_P(SamplersConformanceTest, TheInitialNoiseIsScaled) {
  SampledProcess process(sampler(), 7);
  DiffusionSpec& spec = process.spec();
  std::vector<float> noise(static_cast<size_t>(spec.state_dim)), scaled = noise;
  FillNormals(29, 0, kInitialNoiseStep, spec.state_dim, noise.data());
  for (size_t i = 0; i < noise.size(); ++i) scaled[i] = spec.initial_scale * noise[i];
  const ResolvedOptions sequential{.solver = "sequential"};
  const SolverRig rig(backend().create(), spec);
  const Solved drawn = rig.Solve(sequential, SampleInputs{.num_samples = 1, .seed = 29});
  const Solved given =
      rig.Solve(sequential, SampleInputs{.num_samples = 1, .seed = 29, .initial_noise = noise});
  spec.initial_scale = 1;
  const SolverRig plain(backend().create(), spec);
  const Solved by_hand =
      plain.Solve(sequential, SampleInputs{.num_samples = 1, .seed = 29, .initial_noise = scaled});

  EXPECT_TRUE(drawn.SameAnswers(given));
  EXPECT_TRUE(drawn.SameAnswers(by_hand));
  EXPECT_TRUE(std::equal(scaled.begin(), scaled.end(), drawn.trajectory.begin()));
}

// Bits of a sample do not depend on the samples beside it.
TEST_P(SamplersConformanceTest, ASampleAloneHasTheSameBits) {
  SampledProcess process(sampler(), 9);
  const SolverRig rig(backend().create(), process.spec());
  for (const char* const solver : {"sequential", "newton", "picard"}) {
    const ResolvedOptions options = OptionsFor(solver, 9, 2, kRtol);
    const Solved together = rig.Solve(options, SampleInputs{.num_samples = 7, .seed = 41});
    const Solved alone =
        rig.Solve(options, SampleInputs{.num_samples = 1, .seed = 41, .first_sample = 5});
    const auto row = std::ssize(alone.trajectory);
    EXPECT_TRUE(std::equal(alone.trajectory.begin(), alone.trajectory.end(),
                           together.trajectory.begin() + 5 * row))
        << solver;
  }
}

// The memory is nothing of the answer's.
TEST_P(SamplersConformanceTest, TheAnswerIsTheFirstOfTheLastState) {
  SampledProcess process(sampler(), 7);
  const DiffusionSpec& spec = process.spec();
  const Solved solved =
      SolverRig(backend().create(), spec)
          .Solve({.solver = "sequential"}, SampleInputs{.num_samples = 1, .seed = 43});
  ASSERT_EQ(std::ssize(solved.outputs), spec.state_dim);
  ASSERT_EQ(std::ssize(solved.trajectory), 8 * ShapeOf(spec).state_dim);
  EXPECT_TRUE(std::equal(solved.outputs.begin(), solved.outputs.end(),
                         solved.trajectory.end() - ShapeOf(spec).state_dim));
}

// The largest |a - b| / max |b|.
double Distance(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double error = 0, scale = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    error = Larger(error, std::fabs(double{a[i]} - b[i]));
    scale = Larger(scale, std::fabs(double{b[i]}));
  }
  return error == 0 ? 0 : error / scale;
}

// A coarse guess holds x0, and with it all that a memory is made of: where the network always says
// the same x0 and v, the guess is the trajectory. (The scale of learned_range is held, though its
// sigma_v changes.)
TEST(SamplersGuessTest, IsExactWhereTheDenoisedSampleStaysTheSame) {
  constexpr int64_t kSteps = 33;
  const std::array samplers = {
      SamplerCase{"multistep", R"({"_class_name":"DPMSolverMultistepScheduler",
          "prediction_type":"sample","algorithm_type":"sde-dpmsolver++"})"},
      SamplerCase{"heun", R"({"_class_name":"HeunDiscreteScheduler",
          "prediction_type":"sample","clip_sample":true,"clip_sample_range":0.05})"},
      SamplerCase{"learned", R"({"_class_name":"DDPMScheduler","prediction_type":"sample",
          "variance_type":"learned"})"}};
  for (const SamplerCase& sampler : samplers) {
    SampledProcess process(sampler, kSteps);
    DenseSpec& output = process.spec().denoiser.output;
    const std::vector<float> zeros(output.weight.size());
    output.weight = zeros;
    const int64_t dim = ShapeOf(process.spec()).state_dim;
    const SampleInputs request = {.num_samples = 1, .seed = 53};
    for (const BackendCase& backend : BackendCases()) {
      const SolverRig rig(backend.create(), process.spec());
      const Solved want = rig.Solve({.solver = "sequential"}, request);
      const std::vector<double> states(want.trajectory.begin(), want.trajectory.end());
      // After one sweep, which leaves a trajectory where it is.
      const auto error_from = [&](InitialGuess guess) {
        ResolvedOptions options = OptionsFor("picard", kSteps, 1, kRtol);
        options.initial_guess = guess;
        options.max_iterations = 1;
        options.on_no_convergence = OnNoConvergence::kReturn;
        return RelativeError(rig.Solve(options, request).trajectory, states, dim, 1e-2);
      };
      EXPECT_LE(error_from(InitialGuess::kCoarse), 1e-5) << backend.name << " " << sampler.name;
      EXPECT_GE(error_from(InitialGuess::kConstant), 1e-3) << backend.name << " " << sampler.name;
    }
  }
}

// On backends that go back through a reverse process.
class SamplersBackwardTest : public SamplersConformanceTest {};

TEST_P(SamplersBackwardTest, GradientsAgreeWithTheReference) {
  SampledProcess process(sampler(), 13);
  const DiffusionSpec& spec = process.spec();
  BackwardRequest request = {.samples = {.num_samples = 1, .seed = 31}, .columns = 2};
  request.states = SolverRig(backend().create(), spec)
                       .Solve({.solver = "sequential"}, request.samples)
                       .trajectory;
  for (int64_t i = 0; i < 2 * spec.output_dim(); ++i)
    request.of_outputs.push_back(std::sin(static_cast<float>(i + 1)));
  const BackwardRig rig(backend().create(), spec), oracle(BackendCases().back().create(), spec);
  const Gradients want = oracle.Sequential(request);
  for (const Gradients& got : {rig.Sequential(request), rig.Parallel(request, 4)}) {
    EXPECT_LE(Distance(got.initial, want.initial), 1e-4);
    EXPECT_LE(Distance(got.step_noise, want.step_noise), 1e-4);
  }
}

// The derivative of a linear form of the answer by each element of the noise, of the initial noise
// and of that of every step, by central differences of the reference's runs.
TEST_P(SamplersBackwardTest, GradientsAreThoseOfFiniteDifferences) {
  constexpr int64_t kSteps = 5;
  constexpr float kDistance = 0x1p-9F;
  SampledProcess process(sampler(), kSteps);
  const DiffusionSpec& spec = process.spec();
  const int64_t dim = spec.state_dim;
  std::vector<float> noise((kSteps + 1) * dim);
  FillNormals(47, 0, kInitialNoiseStep, dim, noise.data());
  for (uint32_t l = 0; l < kSteps; ++l) FillNormals(47, 0, l, dim, noise.data() + (l + 1) * dim);
  const auto inputs = [&] {
    return SampleInputs{.num_samples = 1,
                        .initial_noise = std::span(noise).first(dim),
                        .step_noise = std::span(noise).subspan(dim)};
  };
  BackwardRequest request = {.samples = inputs()};
  for (int64_t i = 0; i < dim; ++i)
    request.of_outputs.push_back(std::sin(static_cast<float>(i + 1)));
  const SolverRig oracle(BackendCases().back().create(), spec);
  request.states = oracle.Solve({.solver = "sequential"}, inputs()).trajectory;
  const Gradients got = BackwardRig(backend().create(), spec).Sequential(request);

  const auto form_at = [&](size_t i, float to) {
    const float from = std::exchange(noise[i], to);
    const Solved solved = oracle.Solve({.solver = "sequential"}, inputs());
    noise[i] = from;
    double sum = 0;
    for (int64_t k = 0; k < dim; ++k) sum += double{request.of_outputs[k]} * solved.outputs[k];
    return sum;
  };
  std::vector<float> all = got.initial, differences;
  all.insert(all.end(), got.step_noise.begin(), got.step_noise.end());
  for (size_t i = 0; i < noise.size(); ++i) {
    const double rise = form_at(i, noise[i] + kDistance) - form_at(i, noise[i] - kDistance);
    differences.push_back(static_cast<float>(rise / (2 * kDistance)));
  }
  EXPECT_LE(Distance(all, differences), 2e-3);
}

// The chain rule of z_0 = initial_scale * noise.
TEST_P(SamplersBackwardTest, GradientsByTheInitialNoiseAreScaled) {
  SampledProcess process(sampler(), 7);
  DiffusionSpec& spec = process.spec();
  BackwardRequest request = {.samples = {.num_samples = 1, .seed = 37}};
  request.states = SolverRig(backend().create(), spec)
                       .Solve({.solver = "sequential"}, request.samples)
                       .trajectory;
  request.of_outputs.assign(static_cast<size_t>(spec.output_dim()), 1.0F);
  const Gradients scaled = BackwardRig(backend().create(), spec).Sequential(request);
  const float scale = spec.initial_scale;
  spec.initial_scale = 1;
  Gradients plain = BackwardRig(backend().create(), spec).Sequential(request);
  for (float& value : plain.initial) value *= scale;

  EXPECT_LE(Distance(scaled.initial, plain.initial), 1e-6);
  EXPECT_EQ(scaled.step_noise, plain.step_noise);
}

// Every sampler on every backend.
std::vector<std::tuple<size_t, size_t>> SamplersOn() {
  std::vector<std::tuple<size_t, size_t>> cases;
  for (size_t backend = 0; backend < BackendCases().size(); ++backend) {
    const BackendCase& row = BackendCases()[backend];
    if (row.name.ends_with("_programs")) continue;
    for (size_t sampler = 0; sampler < kSamplers.size(); ++sampler)
      cases.emplace_back(backend, sampler);
  }
  return cases;
}

std::string NameOfCase(const ::testing::TestParamInfo<std::tuple<size_t, size_t>>& info) {
  return BackendCases()[std::get<0>(info.param)].name + "_" +
         kSamplers[std::get<1>(info.param)].name;
}

INSTANTIATE_TEST_SUITE_P(Backends, SamplersConformanceTest, ::testing::ValuesIn(SamplersOn()),
                         NameOfCase);
INSTANTIATE_TEST_SUITE_P(Backends, SamplersBackwardTest, ::testing::ValuesIn(SamplersOn()),
                         NameOfCase);

}  // namespace
}  // namespace deeppcr::testing
