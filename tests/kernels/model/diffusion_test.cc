// SPDX-License-Identifier: Apache-2.0
#include "kernels/model/diffusion.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/model/reverse_process.h"
#include "tests/kernels/model/diffusion_case.h"

namespace deeppcr::testing {
namespace {

const DiffusionSpec& SpecOf(const Model& model, size_t index = 0) {
  return std::get<DiffusionSpec>(model.systems.at(index));
}

// The values of these tensors, one after the other.
std::vector<float> Values(const std::vector<NamedTensor>& tensors,
                          const std::vector<std::string>& names) {
  std::vector<float> values;
  for (const std::string& name : names) {
    const auto found = std::find_if(tensors.begin(), tensors.end(),
                                    [&](const NamedTensor& tensor) { return tensor.name == name; });
    if (found == tensors.end()) {
      ADD_FAILURE() << "no tensor " << name;
      continue;
    }
    values.insert(values.end(), found->values.begin(), found->values.end());
  }
  return values;
}

std::vector<float> Copy(std::span<const float> values) { return {values.begin(), values.end()}; }

void ExpectDense(const DenseSpec& spec, int64_t rows, int64_t cols,
                 const std::vector<NamedTensor>& tensors, const std::string& prefix) {
  EXPECT_EQ(spec.rows, rows) << prefix;
  EXPECT_EQ(spec.cols, cols) << prefix;
  EXPECT_EQ(Copy(spec.weight), Values(tensors, {prefix + ".weight"})) << prefix;
  EXPECT_EQ(Copy(spec.bias), Values(tensors, {prefix + ".bias"})) << prefix;
}

TEST(DiffusionTest, FillsTheSpecOfAResidualMlp) {
  const ModelConfig config = Config();
  const std::vector<NamedTensor> tensors = DiffusionTensors(config);
  const Model model = Load(tensors, config).value();

  const DiffusionSpec& spec = SpecOf(model);
  EXPECT_EQ(spec.state_dim, kState);
  EXPECT_EQ(spec.clip_range, 2.5);
  EXPECT_EQ(spec.num_classes, 0);
  EXPECT_TRUE(spec.class_embedding.empty());
  EXPECT_EQ(spec.condition.rows, 0);
  EXPECT_TRUE(spec.decoder.empty());
  EXPECT_EQ(spec.input_dim(), 0);
  EXPECT_EQ(spec.output_dim(), kState);
  const DenoiserSpec& denoiser = spec.denoiser;
  EXPECT_EQ(denoiser.kind, DenoiserKind::kResidualMlp);
  EXPECT_EQ(denoiser.hidden_dim, kHidden);
  EXPECT_EQ(denoiser.num_blocks, kBlocks);
  EXPECT_EQ(denoiser.activation, Activation::kGelu);
  ExpectDense(denoiser.input, kHidden, kState, tensors, "input_proj");
  ExpectDense(denoiser.output, kState, kHidden, tensors, "final_layer.linear");
  EXPECT_EQ(denoiser.input.activation, Activation::kIdentity);
  EXPECT_EQ(denoiser.output.activation, Activation::kIdentity);
  EXPECT_EQ(Copy(denoiser.first_weight),
            Values(tensors, {"res_blocks.0.linear.weight", "res_blocks.1.linear.weight"}));
  EXPECT_EQ(Copy(denoiser.first_bias),
            Values(tensors, {"res_blocks.0.linear.bias", "res_blocks.1.linear.bias"}));
  EXPECT_TRUE(denoiser.second_weight.empty() && denoiser.second_bias.empty());
  EXPECT_TRUE(denoiser.norm_weight.empty() && denoiser.norm_bias.empty());
  EXPECT_EQ(denoiser.modulation.rows, kBlocks * kHidden);
  EXPECT_EQ(denoiser.modulation.cols, kHidden);
  EXPECT_EQ(Copy(denoiser.modulation.weight),
            Values(tensors, {"res_blocks.0.modulation.weight", "res_blocks.1.modulation.weight"}));
  EXPECT_EQ(Copy(denoiser.modulation.bias),
            Values(tensors, {"res_blocks.0.modulation.bias", "res_blocks.1.modulation.bias"}));
}

TEST(DiffusionTest, FillsTheSpecOfAnAdaLnMlp) {
  const ModelConfig config = Config(DenoiserKind::kAdaLnMlp);
  const std::vector<NamedTensor> tensors = DiffusionTensors(config);
  const Model model = Load(tensors, config).value();

  const DenoiserSpec& denoiser = SpecOf(model).denoiser;
  EXPECT_EQ(denoiser.kind, DenoiserKind::kAdaLnMlp);
  const auto expect_stacked = [&](std::span<const float> values, const std::string& suffix) {
    EXPECT_EQ(Copy(values), Values(tensors, {"res_blocks.0." + suffix, "res_blocks.1." + suffix}));
  };
  expect_stacked(denoiser.first_weight, "mlp.0.weight");
  expect_stacked(denoiser.first_bias, "mlp.0.bias");
  expect_stacked(denoiser.second_weight, "mlp.2.weight");
  expect_stacked(denoiser.second_bias, "mlp.2.bias");
  expect_stacked(denoiser.norm_weight, "in_ln.weight");
  expect_stacked(denoiser.norm_bias, "in_ln.bias");
  EXPECT_EQ(denoiser.modulation.rows, (3 * kBlocks + 2) * kHidden);
  EXPECT_EQ(denoiser.modulation.rows, denoiser.modulation_dim());
  for (const std::string kind : {"weight", "bias"}) {
    const DenseSpec& modulation = denoiser.modulation;
    EXPECT_EQ(Copy(kind == "weight" ? modulation.weight : modulation.bias),
              Values(tensors, {"res_blocks.0.adaLN_modulation.1." + kind,
                               "res_blocks.1.adaLN_modulation.1." + kind,
                               "final_layer.adaLN_modulation.1." + kind}));
  }
}

TEST(DiffusionTest, TakesTheTensorsOfAPrefixAndLeavesOthersAlone) {
  for (const DenoiserKind kind : {DenoiserKind::kResidualMlp, DenoiserKind::kAdaLnMlp}) {
    ModelConfig config = Full(kind, /*classes=*/false);
    const std::vector<NamedTensor> tensors = DiffusionTensors(config);
    const Model plain = Load(tensors, config).value();
    config.tensor_prefix = "net.";
    std::vector<NamedTensor> checkpoint = WithPrefix("net.", tensors);
    // Those of other networks in the file, even under the same names.
    for (const NamedTensor& tensor : tensors) checkpoint.push_back(WavyTensor(tensor.name, {1}, 7));
    for (const NamedTensor& tensor : WithPrefix("ema.net.", tensors)) checkpoint.push_back(tensor);
    checkpoint.push_back({"net", {1}, {std::numeric_limits<float>::quiet_NaN()}});

    const Model model = Load(checkpoint, config).value();

    const DiffusionSpec &spec = SpecOf(model), &expected = SpecOf(plain);
    ExpectDense(spec.denoiser.input, kHidden, kState, tensors, "input_proj");
    ExpectDense(spec.denoiser.output, kState, kHidden, tensors, "final_layer.linear");
    EXPECT_EQ(Copy(spec.denoiser.first_weight), Copy(expected.denoiser.first_weight));
    EXPECT_EQ(Copy(spec.denoiser.norm_weight), Copy(expected.denoiser.norm_weight));
    EXPECT_EQ(Copy(spec.denoiser.modulation.weight), Copy(expected.denoiser.modulation.weight));
    EXPECT_EQ(Copy(spec.condition.weight), Copy(expected.condition.weight));
    EXPECT_TRUE(std::ranges::equal(spec.time_embedding, expected.time_embedding));
    ASSERT_EQ(spec.decoder.size(), 3U);
    ExpectDense(spec.decoder[0], 7, kState, tensors, "decoder.0");
  }
}

TEST(DiffusionTest, TakesClasses) {
  const ModelConfig config = Full(DenoiserKind::kResidualMlp, /*classes=*/true);
  const std::vector<NamedTensor> tensors = DiffusionTensors(config);
  const Model model = Load(tensors, config).value();

  const DiffusionSpec& spec = SpecOf(model);
  EXPECT_EQ(spec.num_classes, 5);
  EXPECT_EQ(Copy(spec.class_embedding), Values(tensors, {"class_embed.weight"}));
  EXPECT_EQ(spec.condition.rows, 0);
  EXPECT_EQ(spec.input_dim(), 0);
}

TEST(DiffusionTest, TakesAConditioningVector) {
  const ModelConfig config = Full(DenoiserKind::kAdaLnMlp, /*classes=*/false);
  const std::vector<NamedTensor> tensors = DiffusionTensors(config);
  const Model model = Load(tensors, config).value();

  const DiffusionSpec& spec = SpecOf(model);
  EXPECT_EQ(spec.num_classes, 0);
  ExpectDense(spec.condition, kHidden, 5, tensors, "cond_embed");
  EXPECT_EQ(spec.input_dim(), 5);
}

TEST(DiffusionTest, DecoderHasItsActivationAfterAllLayersButTheLast) {
  ModelConfig config = Full(DenoiserKind::kResidualMlp, /*classes=*/true);
  config.decoder_activation = Activation::kElu;
  const std::vector<NamedTensor> tensors = DiffusionTensors(config);
  const Model model = Load(tensors, config).value();

  const std::span<const DenseSpec> decoder = SpecOf(model).decoder;
  ASSERT_EQ(decoder.size(), 3U);
  ExpectDense(decoder[0], 7, kState, tensors, "decoder.0");
  ExpectDense(decoder[1], 6, 7, tensors, "decoder.1");
  ExpectDense(decoder[2], 8, 6, tensors, "decoder.2");
  EXPECT_EQ(decoder[0].activation, Activation::kElu);
  EXPECT_EQ(decoder[1].activation, Activation::kElu);
  EXPECT_EQ(decoder[2].activation, Activation::kIdentity);
  EXPECT_EQ(SpecOf(model).output_dim(), 8);
}

TEST(DiffusionTest, ADecoderWithoutHiddenLayersIsThereIfItsTensorIs) {
  ModelConfig config = Config();
  std::vector<NamedTensor> tensors = DiffusionTensors(config);
  tensors.push_back(WavyTensor("decoder.0.weight", {kState, kState}, 50));
  ExpectRefused(tensors, config, "tensor \"decoder.0.bias\" of shape [2] is missing");
  tensors.push_back(WavyTensor("decoder.0.bias", {kState}, 51));

  const Model model = Load(tensors, config).value();

  ASSERT_EQ(SpecOf(model).decoder.size(), 1U);
  ExpectDense(SpecOf(model).decoder[0], kState, kState, tensors, "decoder.0");
  EXPECT_EQ(SpecOf(model).decoder[0].activation, Activation::kIdentity);

  config.output_dim = 6;
  ExpectRefused(DiffusionTensors(Config()), config,
                "tensor \"decoder.0.weight\" of shape [6, 2] is missing; it may be left out, with "
                "its bias, only if output_dim equals state_dim (config.json: 6 and 2)");
}

TEST(DiffusionTest, HasASystemPerNumberOfStepsThatShareTheWeights) {
  const Model model = Load(Full(DenoiserKind::kAdaLnMlp, /*classes=*/true)).value();

  ASSERT_EQ(model.systems.size(), 2U);
  const DiffusionSpec& first = SpecOf(model, 0);
  const DiffusionSpec& second = SpecOf(model, 1);
  for (const DiffusionSpec* spec : {&first, &second}) {
    const int64_t count = spec == &first ? 9 : 4;
    const ReverseProcess process =
        *BuildReverseProcess(Scheduler(), {.num_inference_steps = count});
    EXPECT_EQ(std::vector<ReverseStep>(spec->steps.begin(), spec->steps.end()), process.steps);
    EXPECT_EQ(spec->num_steps(), count);
    EXPECT_EQ(std::ssize(spec->time_embedding), count * kHidden);
  }
  EXPECT_EQ(first.denoiser.first_weight.data(), second.denoiser.first_weight.data());
  EXPECT_EQ(first.denoiser.modulation.weight.data(), second.denoiser.modulation.weight.data());
  EXPECT_EQ(first.decoder.data(), second.decoder.data());
  EXPECT_NE(first.time_embedding.data(), second.time_embedding.data());
}

// The tables of a number that config.json does not name are those of a model that names it.
TEST(DiffusionTest, MakesASystemOfAnyNumberOfSteps) {
  ModelConfig config = Full(DenoiserKind::kAdaLnMlp, /*classes=*/true);
  const std::vector<NamedTensor> tensors = DiffusionTensors(config);
  const Model model = Load(tensors, config).value();
  EXPECT_EQ(model.max_num_steps, 20);
  for (const int64_t count : {1, 4, 7, 20}) {
    const OwnedSystem made = SystemOf(model, count, {}).value();
    config.num_inference_steps = {count};
    const Model named = Load(tensors, config).value();

    const auto& got = std::get<DiffusionSpec>(made.spec);
    const DiffusionSpec& expected = SpecOf(named);
    EXPECT_EQ(std::vector<ReverseStep>(got.steps.begin(), got.steps.end()),
              std::vector<ReverseStep>(expected.steps.begin(), expected.steps.end()));
    EXPECT_EQ(std::vector<double>(got.time_embedding.begin(), got.time_embedding.end()),
              std::vector<double>(expected.time_embedding.begin(), expected.time_embedding.end()));
    EXPECT_EQ(got.clip_range, expected.clip_range);
    EXPECT_EQ(got.denoiser.first_weight.data(), SpecOf(model).denoiser.first_weight.data());
    EXPECT_EQ(got.decoder.data(), SpecOf(model).decoder.data());
  }
}

TEST(DiffusionTest, RefusesNumbersOfStepsThatTheScheduleDoesNotHave) {
  const Model model = Load(Config()).value();
  for (const int64_t count : {int64_t{-1}, int64_t{0}, int64_t{21}, INT64_MAX})
    ExpectError(SystemOf(model, count, {}), absl::StatusCode::kInvalidArgument,
                "num_inference_steps: expected an integer in [1, 20], got ");
  CancelToken token;
  token.Cancel();
  ExpectError(SystemOf(model, 7, {.token = &token}), absl::StatusCode::kCancelled, "");
}

TEST(DiffusionTest, TheLargestNumberOfStepsFitsTheLimits) {
  Model model;
  model.config = Config();
  model.scheduler = Scheduler();
  model.scheduler.num_train_timesteps = 1000;
  const int64_t row = kHidden * static_cast<int64_t>(sizeof(double));
  ASSERT_TRUE(LoadDiffusionScheduler({.max_weights_bytes = 100 * row}, model).ok());
  EXPECT_EQ(model.max_num_steps, 100);
}

TEST(DiffusionTest, TheLargestNumberOfStepsIsThatOfTheDistilledSchedule) {
  Model model;
  model.config = Config();
  model.scheduler =
      *ParseSchedulerConfig(R"({"_class_name":"LCMScheduler","original_inference_steps":12})");
  ASSERT_TRUE(LoadDiffusionScheduler({}, model).ok());
  EXPECT_EQ(model.max_num_steps, 12);
}

TEST(DiffusionTest, PassesItsOptionsToTheReverseProcess) {
  Model model;
  model.config = Config();
  model.config.eta = 0.5;
  model.config.diffusers_compatible = true;
  model.scheduler = Scheduler();
  model.scheduler.timestep_spacing = TimestepSpacing::kLinspace;
  ASSERT_TRUE(LoadInto(DiffusionTensors(model.config), {}, model).ok());

  const auto steps_of = [&](double eta, bool compatible) {
    return BuildReverseProcess(
               model.scheduler,
               {.num_inference_steps = 9, .eta = eta, .diffusers_compatible = compatible})
        ->steps;
  };
  const std::span<const ReverseStep> steps = SpecOf(model).steps;
  const std::vector<ReverseStep> got(steps.begin(), steps.end());
  EXPECT_EQ(got, steps_of(0.5, true));
  EXPECT_NE(got, steps_of(0.5, false));
  EXPECT_NE(got, steps_of(0.0, true));
}

// The expected values come from plain loops over the tensors of the file.
TEST(DiffusionTest, TimeEmbeddingIsTheNetworkOfEachTimestep) {
  const ModelConfig config = Config();
  const std::vector<NamedTensor> tensors = DiffusionTensors(config);
  const Model model = Load(tensors, config).value();
  const auto layer = [&](const std::string& prefix, const std::vector<double>& in) {
    const std::vector<float> weight = Values(tensors, {prefix + ".weight"});
    const std::vector<float> bias = Values(tensors, {prefix + ".bias"});
    std::vector<double> out(bias.begin(), bias.end());
    for (size_t i = 0; i < weight.size(); ++i) {
      out[i / in.size()] += static_cast<double>(weight[i]) * in[i % in.size()];
    }
    return out;
  };

  const DiffusionSpec& spec = SpecOf(model);
  for (size_t l = 0; l < spec.steps.size(); ++l) {
    const double t = spec.steps[l].timestep;
    std::vector<double> y = layer(
        "time_embed.mlp.0", {std::cos(t), std::cos(t / 100.0), std::sin(t), std::sin(t / 100.0)});
    for (double& value : y) value = value / (1.0 + std::exp(-value));
    y = layer("time_embed.mlp.2", y);
    for (size_t i = 0; i < y.size(); ++i) {
      EXPECT_NEAR(spec.time_embedding[l * kHidden + i], y[i], 1e-14) << l << ", " << i;
    }
  }
  EXPECT_GT(spec.steps.front().timestep, spec.steps.back().timestep);
}

TEST(DiffusionTest, SpecsFollowAModelThatMoves) {
  Model loaded = Load(Full(DenoiserKind::kAdaLnMlp, /*classes=*/false)).value();

  Model moved = std::move(loaded);
  Model again;
  again = std::move(moved);

  const DiffusionStorage& storage = again.diffusion;
  ASSERT_EQ(again.systems.size(), 2U);
  for (size_t i = 0; i < 2; ++i) {
    const DiffusionSpec& spec = SpecOf(again, i);
    EXPECT_EQ(spec.steps.data(), storage.tables[i].steps.data());
    EXPECT_EQ(spec.time_embedding.data(), storage.tables[i].time_embedding.data());
    EXPECT_EQ(spec.denoiser.input.weight.data(), storage.input.weight.data());
    EXPECT_EQ(spec.denoiser.output.bias.data(), storage.output.bias.data());
    EXPECT_EQ(spec.denoiser.first_weight.data(), storage.first.weight.data());
    EXPECT_EQ(spec.denoiser.second_bias.data(), storage.second.bias.data());
    EXPECT_EQ(spec.denoiser.norm_weight.data(), storage.norm.weight.data());
    EXPECT_EQ(spec.denoiser.modulation.weight.data(), storage.modulation.weight.data());
    EXPECT_EQ(spec.condition.weight.data(), storage.condition.weight.data());
    EXPECT_EQ(spec.decoder.data(), storage.decoder.data());
    for (size_t j = 0; j < 3; ++j) {
      EXPECT_EQ(spec.decoder[j].weight.data(), storage.decoder_layers[j].weight.data());
      EXPECT_EQ(spec.decoder[j].bias.data(), storage.decoder_layers[j].bias.data());
    }
  }
}

}  // namespace
}  // namespace deeppcr::testing
