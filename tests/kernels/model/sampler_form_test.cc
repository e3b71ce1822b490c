// SPDX-License-Identifier: Apache-2.0
// Models whose samplers carry a memory or take a learned variance, read from a folder.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <string>

#include "kernels/base/strings.h"
#include "kernels/model/model.h"
#include "kernels/program/evaluate.h"
#include "tests/kernels/model/diffusion_case.h"
#include "tests/testing/expect_error.h"
#include "tests/testing/onnx_model.h"
#include "tests/testing/safetensors_writer.h"

namespace deeppcr::testing {
namespace {

using absl::StatusCode;

constexpr char kRange[] = R"({"_class_name": "DDPMScheduler", "num_train_timesteps": 20,
    "variance_type": "learned_range", "clip_sample": false})";
constexpr char kFixed[] = R"({"_class_name": "DDPMScheduler", "num_train_timesteps": 20})";
constexpr char kMultistep[] =
    R"({"_class_name": "DPMSolverMultistepScheduler", "num_train_timesteps": 20})";
constexpr char kHeun[] = R"({"_class_name": "HeunDiscreteScheduler", "num_train_timesteps": 20})";

class SamplerFormModelTest : public ::testing::Test {
 protected:
  void Write(const std::string& steps, const std::string& scheduler,
             const std::vector<NamedTensor>& tensors, const std::string& more = "") {
    const std::string config =
        StrCat(R"({"model_type": "diffusion", "denoiser": "adaln_mlp", "activation": "gelu", )",
               R"("output_dim": 2, "state_dim": 2, "hidden_dim": 3, "num_blocks": 2, )",
               R"("time_embedding_dim": 4, "num_inference_steps": )", steps, more, "}");
    ASSERT_TRUE(WriteModel(directory_.path(), config, tensors).ok());
    std::ofstream(directory_.File("scheduler_config.json")) << scheduler;
  }
  void WriteOnnx(const OnnxModel& denoiser, const std::string& scheduler) {
    const std::string config =
        R"({"model_type": "diffusion", "denoiser": "onnx", "output_dim": 2, "state_dim": 2,)"
        R"("num_inference_steps": 5})";
    ASSERT_TRUE(WriteModel(directory_.path(), config, {}).ok());
    std::ofstream(directory_.File("denoiser.onnx"), std::ios::binary) << denoiser.Bytes();
    std::ofstream(directory_.File("scheduler_config.json")) << scheduler;
  }
  absl::StatusOr<Model> Read() const { return ReadModel(directory_.path(), {}); }

  TemporaryDirectory directory_;
};

ModelConfig NamedConfig(bool learned) {
  ModelConfig config = Config(DenoiserKind::kAdaLnMlp);
  config.learned_variance = learned;
  return config;
}

// MAR's naming, as its checkpoints have it.
TEST_F(SamplerFormModelTest, ALearnedVarianceTakesTwiceTheOutputs) {
  Write("[9, 4]", kRange,
        WithPrefix("diffloss.net.", DiffusionTensors(NamedConfig(/*learned=*/true))),
        R"(, "tensor_prefix": "diffloss.net.")");

  const absl::StatusOr<Model> model = Read();

  ASSERT_TRUE(model.ok()) << model.status();
  for (const SystemSpec& system : model->systems) {
    const auto& spec = std::get<DiffusionSpec>(system);
    EXPECT_EQ(spec.form, (SamplerForm{.noise_scale = NoiseScale::kLearnedRange}));
    EXPECT_EQ(spec.denoiser.output.rows, 4);
    EXPECT_EQ(ShapeOf(spec).state_dim, 2);
    EXPECT_EQ(ShapeOf(spec).memory_dim, 0);
    EXPECT_GT(spec.steps[0].sigma_v, 0);
  }
  EXPECT_TRUE(CheckModelFiles(directory_.path(), {}).problems.empty());
}

// The step that is differentiated by parameters is the system's own.
TEST_F(SamplerFormModelTest, ParametersAreThoseOfTheForm) {
  Write("9", kMultistep, DiffusionTensors(NamedConfig(/*learned=*/false)));
  const absl::StatusOr<Model> remembers = ReadModel(directory_.path(), {.parameters = true});
  ASSERT_TRUE(remembers.ok()) << remembers.status();
  ASSERT_NE(remembers->parameters, nullptr) << remembers->no_parameters;
  const program::Program& step = remembers->parameters->step;
  EXPECT_EQ(step.at(step.output).size, 4);

  Write("9", kRange, DiffusionTensors(NamedConfig(/*learned=*/true)));
  const absl::StatusOr<Model> learned = ReadModel(directory_.path(), {.parameters = true});
  ASSERT_TRUE(learned.ok()) << learned.status();
  ASSERT_NE(learned->parameters, nullptr) << learned->no_parameters;
  EXPECT_EQ(learned->parameters->step.at(learned->parameters->step.prediction).size, 4);
}

TEST_F(SamplerFormModelTest, OutputsAndVarianceHaveToFit) {
  Write("9", kRange, DiffusionTensors(NamedConfig(/*learned=*/false)));
  ExpectError(Read(), StatusCode::kInvalidArgument,
              "final_layer.linear.weight\": expected shape [4, 3], got [2, 3]");
  Write("9", kFixed, DiffusionTensors(NamedConfig(/*learned=*/true)));
  ExpectError(Read(), StatusCode::kInvalidArgument,
              "final_layer.linear.weight\": expected shape [2, 3], got [4, 3]");
}

TEST_F(SamplerFormModelTest, ASamplerThatRemembersDoublesTheState) {
  for (const char* const scheduler : {kMultistep, kHeun}) {
    Write("[9, 3]", scheduler, DiffusionTensors(NamedConfig(/*learned=*/false)));
    const absl::StatusOr<Model> model = Read();
    ASSERT_TRUE(model.ok()) << model.status();
    for (const SystemSpec& system : model->systems) {
      EXPECT_EQ(ShapeOf(system).state_dim, 4);
      EXPECT_EQ(ShapeOf(system).memory_dim, 2);
      EXPECT_EQ(ShapeOf(system).sample_dim(), 2);
      EXPECT_EQ(ShapeOf(system).output_dim, 2);
      EXPECT_TRUE(std::get<DiffusionSpec>(system).form.carries);
    }
    // One step remembers nothing, and has a state of the same size.
    const OwnedSystem one = SystemOf(*model, 1, {}).value();
    EXPECT_EQ(ShapeOf(one.spec).state_dim, 4);
  }
}

TEST_F(SamplerFormModelTest, HeunCountsEvaluations) {
  Write("39", kHeun, DiffusionTensors(NamedConfig(/*learned=*/false)));
  const absl::StatusOr<Model> model = Read();
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->max_num_steps, 39);
  EXPECT_EQ(ShapeOf(SystemOf(*model, 21, {})->spec).num_steps, 21);
  ExpectError(SystemOf(*model, 20, {}), StatusCode::kInvalidArgument,
              "num_inference_steps: expected an odd number with HeunDiscreteScheduler");
  Write("20", kHeun, DiffusionTensors(NamedConfig(/*learned=*/false)));
  ExpectError(
      Read(), StatusCode::kInvalidArgument,
      "scheduler_config.json with config.json: num_inference_steps: expected an odd number");
}

// [0.5 z, 0.25 z + t].
OnnxModel TwoHeads() {
  OnnxModel denoiser;
  denoiser.Input("z", {1, 2})
      .Input("t", {1})
      .Floats("half", {1}, {0.5F})
      .Floats("quarter", {1}, {0.25F})
      .Node("Mul", {"z", "half"}, {"m"})
      .Node("Mul", {"z", "quarter"}, {"scaled"})
      .Node("Add", {"scaled", "t"}, {"v"})
      .Node("Concat", {"m", "v"}, {"both"})
      .Int("axis", 1)
      .Output("both");
  return denoiser;
}

OnnxModel OneHead() {
  OnnxModel denoiser;
  denoiser.Input("z", {1, 2}).Input("t", {1}).Node("Add", {"z", "t"}, {"m"}).Output("m");
  return denoiser;
}

std::vector<double> NextOf(const DiffusionProgramSpec& spec, size_t l,
                           const std::vector<double>& state, const std::vector<double>& noise) {
  program::Evaluation evaluation(*spec.program);
  evaluation.Run({.time = spec.steps[l].timestep,
                  .step = static_cast<int64_t>(l),
                  .reverse = &spec.steps[l],
                  .clip_range = spec.clip_range,
                  .noise = noise},
                 state);
  const auto next = evaluation.at(spec.program->output);
  return {next.begin(), next.end()};
}

TEST_F(SamplerFormModelTest, AnExportedDenoiserMayGiveAVariance) {
  WriteOnnx(TwoHeads(), kRange);
  const absl::StatusOr<Model> model = Read();
  ASSERT_TRUE(model.ok()) << model.status();
  const auto& spec = std::get<DiffusionProgramSpec>(model->systems.at(0));
  const std::vector<double> z = {0.3, -0.8}, noise = {1.5, -0.7};
  for (size_t l = 0; l < spec.steps.size(); ++l) {
    const ReverseStep& step = spec.steps[l];
    const std::vector<double> next = NextOf(spec, l, z, noise);
    ASSERT_EQ(next.size(), 2U);
    for (size_t i = 0; i < 2; ++i) {
      const double scale = std::exp(step.sigma_v * (0.25 * z[i] + step.timestep));
      EXPECT_NEAR(next[i],
                  ApplyReverseStep(step, spec.clip_range, {z[i], 0}, 0.5 * z[i], noise[i], scale).z,
                  1e-12);
    }
  }
  WriteOnnx(TwoHeads(), kFixed);
  ExpectError(Read(), StatusCode::kInvalidArgument,
              "denoiser.onnx: the output has 4 elements for a state of 2, expected 2 (a variance "
              "follows the prediction with the variance_type learned or learned_range of "
              "DDPMScheduler, and only with these)");
  WriteOnnx(OneHead(), kRange);
  ExpectError(Read(), StatusCode::kInvalidArgument,
              "denoiser.onnx: the output has 2 elements for a state of 2, expected 4");
}

TEST_F(SamplerFormModelTest, AnExportedDenoiserReadsTheStateWithoutItsMemory) {
  for (const char* const scheduler : {kMultistep, kHeun}) {
    WriteOnnx(OneHead(), scheduler);
    const absl::StatusOr<Model> model = Read();
    ASSERT_TRUE(model.ok()) << model.status();
    const auto& spec = std::get<DiffusionProgramSpec>(model->systems.at(0));
    EXPECT_EQ(ShapeOf(spec).state_dim, 4);
    const std::vector<double> state = {0.3, -0.8, 0.2, 0.9};
    for (size_t l = 0; l < spec.steps.size(); ++l) {
      const ReverseStep& step = spec.steps[l];
      const std::vector<double> next = NextOf(spec, l, state, {0, 0});
      ASSERT_EQ(next.size(), 4U);
      for (size_t i = 0; i < 2; ++i) {
        const StateAndMemory want = ApplyReverseStep(
            step, spec.clip_range, {state[i], state[2 + i]}, state[i] + step.timestep, 0);
        EXPECT_NEAR(next[i], want.z, 1e-12 * (1 + std::abs(want.z)));
        EXPECT_NEAR(next[2 + i], want.c, 1e-12 * (1 + std::abs(want.c)));
      }
    }
  }
}

}  // namespace
}  // namespace deeppcr::testing
