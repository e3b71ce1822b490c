// SPDX-License-Identifier: Apache-2.0
// Systems whose steps are guided, have known elements or are not all there (SystemKey), on the CPU
// and the reference backend.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "kernels/base/file.h"
#include "kernels/engine.h"
#include "tests/testing/difference.h"
#include "tests/testing/diffusion_tensors.h"
#include "tests/testing/expect_error.h"
#include "tests/testing/larger.h"
#include "tests/testing/safetensors_writer.h"

namespace deeppcr::testing {
namespace {

using SystemPtr = std::shared_ptr<const LoadedSystem>;

constexpr int64_t kDim = 3, kSteps = 24, kSamples = 3, kConditionDim = 4, kClasses = 5;
constexpr double kRtol = 1e-4;

enum class Condition { kNone, kClass, kVector };

struct Sampler {
  const char* scheduler;
  bool learned_variance = false;
  int64_t memory_dim = 0;
  int64_t num_steps = kSteps;
};
constexpr Sampler kDdpm = {R"({"_class_name": "DDPMScheduler"})"};
constexpr Sampler kLearned = {
    R"({"_class_name": "DDPMScheduler", "variance_type": "learned_range"})", true};
constexpr Sampler kMultistep = {
    R"({"_class_name": "DPMSolverMultistepScheduler", "algorithm_type": "sde-dpmsolver++"})", false,
    kDim};

constexpr int64_t kHeunSteps = 2 * kSteps - 1;
constexpr Sampler kHeun = {R"({"_class_name": "HeunDiscreteScheduler"})", false, kDim, kHeunSteps};

void WriteConditional(const std::string& directory, Condition condition, bool with_null,
                      const Sampler& sampler = kDdpm) {
  ModelConfig config;
  config.denoiser = DenoiserKind::kAdaLnMlp;
  config.learned_variance = sampler.learned_variance;
  config.state_dim = config.output_dim = kDim;
  config.hidden_dim = 16;
  config.num_blocks = 2;
  config.time_embedding_dim = 8;
  config.num_inference_steps = {sampler.num_steps};
  if (condition == Condition::kClass) config.num_classes = kClasses;
  if (condition == Condition::kVector) config.conditioning_dim = kConditionDim;
  nlohmann::json json = {{"model_type", "diffusion"},
                         {"state_dim", kDim},
                         {"output_dim", kDim},
                         {"denoiser", "adaln_mlp"},
                         {"hidden_dim", config.hidden_dim},
                         {"num_blocks", config.num_blocks},
                         {"activation", "silu"},
                         {"time_embedding_dim", config.time_embedding_dim},
                         {"num_inference_steps", sampler.num_steps},
                         {"num_classes", config.num_classes},
                         {"conditioning_dim", config.conditioning_dim},
                         {"max_batch_size", 4}};
  if (condition == Condition::kClass && with_null) json["null_class"] = kClasses - 1;
  if (condition == Condition::kVector && with_null) json["null_condition"] = 0.25;
  const absl::Status written = WriteModel(directory, json.dump(), DiffusionTensors(config));
  ASSERT_TRUE(written.ok()) << written;
  ASSERT_TRUE(WriteFileAtomically(directory + "/scheduler_config.json", sampler.scheduler).ok());
}

struct Loaded {
  Loaded(const std::string& directory, const std::string& backend) {
    auto created = Engine::Create({.backend = backend, .num_threads = 1, .gradients = true});
    EXPECT_TRUE(created.ok()) << created.status();
    if (!created.ok()) return;
    engine = *std::move(created);
    auto loaded = engine->LoadModel(directory, nullptr, nullptr);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    if (loaded.ok()) model = *std::move(loaded);
  }
  const LoadedModel* operator->() const { return model.get(); }

  std::unique_ptr<Engine> engine;  // outlives the model
  std::shared_ptr<const LoadedModel> model;
};

SystemKey Guided(int64_t steps = kSteps) {
  SystemKey key(steps);
  key.guided = true;
  return key;
}

struct Request {
  std::vector<float> inputs;    // of kSamples samples
  std::vector<int32_t> labels;  // the same
  SampleInputs Samples(uint64_t seed = 7) const {
    return {.num_samples = kSamples, .inputs = inputs, .seed = seed, .labels = labels};
  }
};

// A condition of each sample, and what goes with it for a guided system.
Request ConditionsOf(Condition condition, double scale, bool guided) {
  Request request;
  for (int64_t i = 0; i < kSamples; ++i) {
    for (int64_t k = 0; k < kConditionDim && condition == Condition::kVector; ++k)
      request.inputs.push_back(0.3F * static_cast<float>(i - k));
    for (int64_t k = 0; k < kConditionDim && condition == Condition::kVector && guided; ++k)
      request.inputs.push_back(0.25F);
    if (guided) request.inputs.push_back(static_cast<float>(scale));
    if (condition == Condition::kClass) request.labels.push_back(static_cast<int32_t>(i));
  }
  return request;
}

struct Answer {
  std::vector<float> outputs = std::vector<float>(kSamples * kDim);
  std::vector<float> states;
  std::vector<SampleReport> reports = std::vector<SampleReport>(kSamples);
};

Answer Solve(const LoadedSystem& system, const SampleInputs& samples, std::string solver,
             int64_t steps = kSteps, int64_t state_dim = kDim) {
  Answer answer;
  answer.states.resize(static_cast<size_t>(kSamples * (steps + 1) * state_dim));
  SolveOptions options{.solver = solver, .rtol = kRtol};
  if (solver != "sequential" && solver != "auto" && solver != "jacobi")
    options.shooting_interval = 2;
  const auto resolved = system.Resolve(options, kSamples);
  EXPECT_TRUE(resolved.ok()) << resolved.status();
  if (!resolved.ok()) return answer;
  RunItem item{.samples = samples,
               .outputs = answer.outputs,
               .trajectory = answer.states,
               .reports = answer.reports};
  const absl::Status run = system.Run(*resolved, {&item, 1}, nullptr);
  EXPECT_TRUE(run.ok()) << run;
  return answer;
}

class VariedSystemsTest : public ::testing::TestWithParam<std::tuple<Condition, Sampler>> {
 protected:
  Condition condition() const { return std::get<0>(GetParam()); }
  const Sampler& sampler() const { return std::get<1>(GetParam()); }
  void SetUp() override { WriteConditional(directory_.path(), condition(), true, sampler()); }
  const TemporaryDirectory directory_;
};

TEST_P(VariedSystemsTest, EverySolverAgreesWithTheReference) {
  const Loaded cpu(directory_.path(), "cpu"), reference(directory_.path(), "reference");
  const bool conditional = condition() != Condition::kNone;
  const int64_t state_dim = kDim + sampler().memory_dim;
  for (const bool guided : {false, true}) {
    if (guided && !conditional) continue;
    for (const bool known : {false, true}) {
      for (const int64_t first : {0, 7}) {
        SystemKey key = guided ? Guided() : SystemKey(kSteps);
        key.known = known;
        key.first_step = first;
        SCOPED_TRACE(::testing::Message()
                     << "guided " << guided << ", known " << known << ", first " << first);
        Request request = ConditionsOf(condition(), 2.5, guided);
        if (known) {
          const int64_t before = std::ssize(request.inputs) / kSamples;
          std::vector<float> inputs;
          for (int64_t i = 0; i < kSamples; ++i) {
            const auto row = request.inputs.begin() + i * before;
            inputs.insert(inputs.end(), row, row + before);
            // The second sample knows nothing.
            const float mask = i == 1 ? 0.0F : 1.0F;
            for (const float value : {mask, 0.0F, 0.0F, 0.5F, 9.0F, 9.0F}) inputs.push_back(value);
          }
          request.inputs = inputs;
        }
        const auto system = cpu->Prepare(key, nullptr), oracle = reference->Prepare(key, nullptr);
        ASSERT_TRUE(system.ok()) << system.status();
        ASSERT_TRUE(oracle.ok()) << oracle.status();
        const int64_t steps = kSteps - first;
        const Answer want = Solve(**oracle, request.Samples(), "sequential", steps, state_dim);
        for (const std::string& solver : cpu->info().solvers) {
          const Answer got = Solve(**system, request.Samples(), solver, steps, state_dim);
          EXPECT_LE(Difference(got.states, want.states), kRtol) << solver;
          for (const SampleReport& report : got.reports) {
            EXPECT_TRUE(report.converged) << solver << " " << ToString(report.termination);
            // Standard normal noise is no usual z_7 of the multistep: from one of these on,
            // rounding grows to more than can be certified.
            const bool too_rough = first > 0 && sampler().memory_dim > 0 &&
                                   report.attempt.termination == Termination::kPrecisionLimited;
            EXPECT_FALSE(report.fallback && (solver == "newton" || solver == "picard") &&
                         !too_rough)
                << solver;
          }
          for (int64_t l = 1; l <= steps && known; ++l) {
            EXPECT_EQ(got.states[l * state_dim], 0.5F) << solver << ", step " << l;
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, VariedSystemsTest,
                         ::testing::Combine(::testing::Values(Condition::kNone, Condition::kClass,
                                                              Condition::kVector),
                                            ::testing::Values(kDdpm, kLearned, kMultistep)));

class GuidanceTest : public ::testing::TestWithParam<Condition> {
 protected:
  void SetUp() override { WriteConditional(directory_.path(), GetParam(), true); }
  const TemporaryDirectory directory_;
};

// With a scale of 1 guidance says what the model says, with one of 0 what it says without
// condition.
TEST_P(GuidanceTest, ScalesOfOneAndZeroAreTheModelItself) {
  const Loaded cpu(directory_.path(), "cpu");
  const auto guided = cpu->Prepare(Guided(), nullptr);
  ASSERT_TRUE(guided.ok()) << guided.status();
  const SystemPtr plain = cpu->Find();
  const Request conditions = ConditionsOf(GetParam(), 0, false);
  Request none = conditions;
  for (float& value : none.inputs) value = 0.25F;
  for (int32_t& label : none.labels) label = kClasses - 1;
  const Answer with = Solve(*plain, conditions.Samples(), "sequential");
  const Answer without = Solve(*plain, none.Samples(), "sequential");
  ASSERT_GT(Difference(with.states, without.states), 1e-3);
  const auto guided_by = [&](double scale) {
    return Solve(**guided, ConditionsOf(GetParam(), scale, true).Samples(), "sequential");
  };
  EXPECT_LE(Difference(guided_by(1).states, with.states), 1e-5);
  EXPECT_LE(Difference(guided_by(0).states, without.states), 1e-5);
  EXPECT_GT(Difference(guided_by(3).states, with.states), 1e-3);
}

TEST_P(GuidanceTest, AnswersDoNotDependOnTheBatch) {
  const Loaded cpu(directory_.path(), "cpu");
  const auto guided = cpu->Prepare(Guided(), nullptr);
  ASSERT_TRUE(guided.ok()) << guided.status();
  const Request request = ConditionsOf(GetParam(), 2, true);
  for (const char* solver : {"sequential", "newton"}) {
    const Answer all = Solve(**guided, request.Samples(), solver);
    for (int64_t i = 0; i < kSamples; ++i) {
      std::vector<float> outputs(kDim);
      std::vector<SampleReport> reports(1);
      SolveOptions options{.solver = solver, .rtol = kRtol};
      if (std::string_view(solver) == "newton") options.shooting_interval = 2;
      RunItem item{
          .samples = SamplesOf(request.Samples(), i, 1), .outputs = outputs, .reports = reports};
      ASSERT_TRUE((*guided)->Run((*guided)->Resolve(options, 1).value(), {&item, 1}, nullptr).ok());
      EXPECT_TRUE(std::equal(outputs.begin(), outputs.end(), all.outputs.begin() + i * kDim))
          << solver << ", sample " << i;
    }
  }
}

// Gradients of a guided process by its initial noise, and by its inputs: condition, null condition
// and scale. Both ways, against differences of the reference backend's answers.
TEST_P(GuidanceTest, GradientsAreThoseOfTheGuidedProcess) {
  const Loaded cpu(directory_.path(), "cpu"), reference(directory_.path(), "reference");
  const auto guided = cpu->Prepare(Guided(), nullptr),
             oracle = reference->Prepare(Guided(), nullptr);
  ASSERT_TRUE(guided.ok() && oracle.ok());
  ASSERT_NE((*guided)->backward_limits(), nullptr);
  Request request = ConditionsOf(GetParam(), 2, true);
  std::vector<float> noise(kSamples * kDim);
  for (int64_t i = 0; i < kSamples; ++i)
    DrawInitialNoise(3, static_cast<uint64_t>(i), std::span(noise).subspan(i * kDim, kDim));
  const auto solve = [&](const LoadedSystem& system) {
    SampleInputs samples = request.Samples();
    samples.initial_noise = noise;
    return Solve(system, samples, "sequential");
  };
  const Answer at = solve(**guided);
  const int64_t row = std::ssize(request.inputs) / kSamples;
  std::vector<float> cotangents(kSamples * kDim, 1.0F);
  for (const BackwardWay way : {BackwardWay::kSequential, BackwardWay::kParallel}) {
    std::vector<float> by_inputs(kSamples * row), by_noise(kSamples * kDim);
    std::vector<BackwardReport> reports(kSamples);
    SampleInputs samples = request.Samples();
    samples.initial_noise = noise;
    BackwardItem item{.samples = samples,
                      .states = at.states,
                      .columns = 1,
                      .of_outputs = cotangents,
                      .inputs = by_inputs,
                      .initial = by_noise,
                      .reports = reports};
    const auto options = ResolveBackward({.way = way}, *(*guided)->backward_limits(), kSteps);
    ASSERT_TRUE(options.ok()) << options.status();
    const absl::Status back = (*guided)->GoBack(*options, {&item, 1});
    ASSERT_TRUE(back.ok()) << back;
    const auto expect = [&](float& input, float got, const char* what) {
      const float before = input;
      const float h = 1.0F / 64;
      const auto sum = [&](float value, int64_t sample) {
        input = value;
        const Answer answer = solve(**oracle);
        double total = 0;
        for (int64_t i = 0; i < kDim; ++i) total += answer.outputs[sample * kDim + i];
        return total;
      };
      const double high = sum(before + h, 1), low = sum(before - h, 1);
      input = before;
      EXPECT_NEAR(got, (high - low) / (2.0 * h), 5e-3 * Larger(1, std::fabs(got))) << what;
    };
    for (int64_t i = 0; i < kDim; ++i) expect(noise[kDim + i], by_noise[kDim + i], "noise");
    for (int64_t i = 0; i < row; ++i)
      expect(request.inputs[row + i], by_inputs[row + i], "condition, null condition or scale");
  }
}

INSTANTIATE_TEST_SUITE_P(All, GuidanceTest,
                         ::testing::Values(Condition::kClass, Condition::kVector));

TEST(VariedSystemsRefusalsTest, NameTheField) {
  const auto prepare = [](Condition condition, bool with_null, const SystemKey& key) {
    const TemporaryDirectory directory;
    WriteConditional(directory.path(), condition, with_null);
    return Loaded(directory.path(), "cpu")->Prepare(key, nullptr);
  };
  const auto invalid = absl::StatusCode::kInvalidArgument;
  ExpectError(prepare(Condition::kNone, false, Guided()), invalid,
              "guidance_scale: the model takes no condition");
  ExpectError(prepare(Condition::kClass, false, Guided()), invalid,
              "guidance_scale: the model's config.json has no null_class");
  EXPECT_TRUE(prepare(Condition::kVector, false, Guided()).ok());
  for (const int64_t first : {int64_t{-1}, kSteps, INT64_MAX}) {
    SystemKey key(kSteps);
    key.first_step = first;
    ExpectError(prepare(Condition::kNone, false, key), invalid,
                "first_step: expected an integer in [0, 23], got ");
  }
  const TemporaryDirectory directory;
  WriteConditional(directory.path(), Condition::kNone, false, kHeun);
  SystemKey between(kHeunSteps);
  between.first_step = 3;
  ExpectError(Loaded(directory.path(), "cpu")->Prepare(between, nullptr), invalid,
              "first_step: expected a step that takes nothing of the one before, got 3");
  SystemKey held(kHeunSteps);
  held.known = true;
  ExpectError(
      Loaded(directory.path(), "cpu")->Prepare(held, nullptr), invalid,
      "known_elements: expected none with HeunDiscreteScheduler, whose network sees scaled");
}

// The process that begins at z_k has the states that the whole one has from there on, given the
// noise of the whole one.
TEST(VariedSystemsBeginningTest, ContinuesTheWholeProcess) {
  const TemporaryDirectory directory;
  WriteConditional(directory.path(), Condition::kNone, false);
  const Loaded cpu(directory.path(), "cpu");
  std::vector<float> noise(kSamples * kSteps * kDim);
  for (int64_t i = 0; i < kSamples; ++i)
    for (int64_t l = 0; l < kSteps; ++l)
      DrawStepNoise(7, static_cast<uint64_t>(i), l,
                    std::span(noise).subspan((i * kSteps + l) * kDim, kDim));
  SampleInputs samples{.num_samples = kSamples, .seed = 7};
  const Answer drawn = Solve(*cpu->Find(), samples, "sequential");
  samples.step_noise = noise;
  const Answer whole = Solve(*cpu->Find(), samples, "sequential");
  EXPECT_LE(Difference(drawn.states, whole.states), 1e-6);
  constexpr int64_t kFirst = 9, kLeft = kSteps - kFirst;
  SystemKey key(kSteps);
  key.first_step = kFirst;
  const auto rest = cpu->Prepare(key, nullptr);
  ASSERT_TRUE(rest.ok()) << rest.status();
  std::vector<float> begin, left;
  for (int64_t i = 0; i < kSamples; ++i) {
    const auto* state = whole.states.data() + (i * (kSteps + 1) + kFirst) * kDim;
    begin.insert(begin.end(), state, state + kDim);
    const auto* row = noise.data() + (i * kSteps + kFirst) * kDim;
    left.insert(left.end(), row, row + kLeft * kDim);
  }
  const Answer continued = Solve(
      **rest, {.num_samples = kSamples, .seed = 7, .initial_noise = begin, .step_noise = left},
      "sequential", kLeft);
  EXPECT_EQ(continued.outputs, whole.outputs);
}

// Where nothing of the memory is taken, the process goes on as the whole one does; elsewhere the
// step of order 1 that it begins with is another one.
TEST(VariedSystemsBeginningTest, ASamplerThatRemembersBeginsWithoutAMemory) {
  for (const Sampler& sampler : {kHeun, kMultistep}) {
    const TemporaryDirectory directory;
    WriteConditional(directory.path(), Condition::kNone, false, sampler);
    const Loaded cpu(directory.path(), "cpu");
    const int64_t steps = sampler.num_steps, first = 10, left = steps - first, width = 2 * kDim;
    const std::vector<float> noise(kSamples * steps * kDim, 0.25F);
    const SampleInputs samples{.num_samples = kSamples, .seed = 7, .step_noise = noise};
    const Answer whole = Solve(*cpu->Find(), samples, "sequential", steps, width);
    std::vector<float> begin;
    for (int64_t i = 0; i < kSamples; ++i) {
      const auto* state = whole.states.data() + (i * (steps + 1) + first) * width;
      begin.insert(begin.end(), state, state + kDim);
    }
    SystemKey key(steps);
    key.first_step = first;
    const auto rest = cpu->Prepare(key, nullptr);
    ASSERT_TRUE(rest.ok()) << rest.status();
    const SampleInputs later{.num_samples = kSamples,
                             .seed = 7,
                             .initial_noise = begin,
                             .step_noise = std::span(noise).first(kSamples * left * kDim)};
    const Answer continued = Solve(**rest, later, "sequential", left, width);
    for (int64_t k = kDim; k < width; ++k) EXPECT_EQ(continued.states[k], 0);
    if (sampler.num_steps == kHeunSteps) {
      EXPECT_EQ(continued.outputs, whole.outputs);
    } else {
      EXPECT_GT(Difference(continued.outputs, whole.outputs), 1e-5);
      EXPECT_LE(Difference(continued.outputs, whole.outputs), 0.1);
    }
    for (const char* const solver : {"newton", "picard"}) {
      const Answer solved = Solve(**rest, later, solver, left, width);
      EXPECT_LE(Difference(solved.states, continued.states), kRtol) << solver;
      for (const SampleReport& report : solved.reports) EXPECT_TRUE(report.converged) << solver;
    }
  }
}

}  // namespace
}  // namespace deeppcr::testing
