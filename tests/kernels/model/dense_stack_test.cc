// SPDX-License-Identifier: Apache-2.0
#include "kernels/model/dense_stack.h"

#include <gtest/gtest.h>

#include <numeric>

#include "kernels/base/strings.h"
#include "tests/testing/expect_error.h"
#include "tests/testing/safetensors_writer.h"

namespace deeppcr::testing {
namespace {

using absl::StatusCode;

constexpr int64_t kInput = 4;
constexpr int64_t kOutput = 5;
constexpr int64_t kState = 2;
constexpr int64_t kLayers = 3;

// A tensor whose values count up from `first`.
NamedTensor Counting(std::string name, std::vector<int64_t> shape, float first) {
  NamedTensor tensor{std::move(name), std::move(shape), {}};
  const int64_t size = std::accumulate(tensor.shape.begin(), tensor.shape.end(), int64_t{1},
                                       std::multiplies<int64_t>());
  tensor.values.resize(static_cast<size_t>(size));
  std::iota(tensor.values.begin(), tensor.values.end(), first);
  return tensor;
}

ModelConfig Config() {
  ModelConfig config;
  config.model_type = "resnet";
  config.input_dim = kInput;
  config.output_dim = kOutput;
  config.state_dim = kState;
  config.num_layers = kLayers;
  config.activation = Activation::kSilu;
  config.input_activation = Activation::kTanh;
  config.residual_scale = 0.1;
  return config;
}

std::vector<NamedTensor> OuterTensors() {
  return {Counting("input.weight", {kState, kInput}, 1), Counting("input.bias", {kState}, 20),
          Counting("output.weight", {kOutput, kState}, 30), Counting("output.bias", {kOutput}, 50)};
}

std::vector<NamedTensor> Stacked() {
  std::vector<NamedTensor> tensors = OuterTensors();
  tensors.push_back(Counting("layers.weight", {kLayers, kState, kState}, 100));
  tensors.push_back(Counting("layers.bias", {kLayers, kState}, 200));
  return tensors;
}

// The tensors of Stacked(), split into one tensor per layer, in descending order in the file.
std::vector<NamedTensor> PerLayer() {
  std::vector<NamedTensor> tensors = OuterTensors();
  for (int64_t layer = kLayers - 1; layer >= 0; --layer) {
    tensors.push_back(Counting(StrCat("layers.", layer, ".weight"), {kState, kState},
                               static_cast<float>(100 + layer * kState * kState)));
    tensors.push_back(Counting(StrCat("layers.", layer, ".bias"), {kState},
                               static_cast<float>(200 + layer * kState)));
  }
  return tensors;
}

std::vector<NamedTensor> Without(std::vector<NamedTensor> tensors, std::string_view name) {
  std::erase_if(tensors, [=](const NamedTensor& tensor) { return tensor.name == name; });
  return tensors;
}

std::vector<NamedTensor> With(std::vector<NamedTensor> tensors, NamedTensor extra) {
  tensors = Without(std::move(tensors), extra.name);
  tensors.push_back(std::move(extra));
  return tensors;
}

absl::StatusOr<Model> Load(const std::vector<NamedTensor>& tensors, ModelConfig config = Config(),
                           ModelLimits limits = {}) {
  const std::string bytes = SerializeSafetensors(tensors);
  const absl::StatusOr<Tensors> parsed = ParseSafetensors(bytes);
  if (!parsed.ok()) return parsed.status();
  Model model;
  model.config = std::move(config);
  const absl::Status status = LoadResnet(*parsed, limits, model);
  if (!status.ok()) return status;
  return model;
}

void ExpectRefused(const std::vector<NamedTensor>& tensors, const std::string& message_part,
                   const ModelConfig& config = Config()) {
  ExpectError(Load(tensors, config), StatusCode::kInvalidArgument, message_part);
}

const DenseStackSpec& SpecOf(const Model& model) {
  return std::get<DenseStackSpec>(model.systems.at(0));
}

std::vector<float> Copy(std::span<const float> values) { return {values.begin(), values.end()}; }

TEST(DenseStackTest, FillsTheSpecOfAResnet) {
  const Model model = Load(Stacked()).value();

  ASSERT_EQ(model.systems.size(), 1U);
  const DenseStackSpec& spec = SpecOf(model);
  EXPECT_EQ(spec.num_steps, kLayers);
  EXPECT_EQ(spec.state_dim, kState);
  EXPECT_TRUE(spec.residual);
  EXPECT_EQ(spec.residual_scale, 0.1F);
  EXPECT_EQ(spec.activation, Activation::kSilu);
  EXPECT_EQ(Copy(spec.weights), Counting("", {12}, 100).values);
  EXPECT_EQ(Copy(spec.biases), Counting("", {6}, 200).values);
  EXPECT_EQ(spec.encode.rows, kState);
  EXPECT_EQ(spec.encode.cols, kInput);
  EXPECT_EQ(Copy(spec.encode.weight), Counting("", {8}, 1).values);
  EXPECT_EQ(Copy(spec.encode.bias), Counting("", {2}, 20).values);
  EXPECT_EQ(spec.encode.activation, Activation::kTanh);
  EXPECT_EQ(spec.decode.rows, kOutput);
  EXPECT_EQ(spec.decode.cols, kState);
  EXPECT_EQ(Copy(spec.decode.weight), Counting("", {10}, 30).values);
  EXPECT_EQ(Copy(spec.decode.bias), Counting("", {5}, 50).values);
  EXPECT_EQ(spec.decode.activation, Activation::kIdentity);
  EXPECT_EQ(spec.input_dim(), kInput);
  EXPECT_EQ(spec.output_dim(), kOutput);
}

TEST(DenseStackTest, MlpDiffersInTheResidualOnly) {
  const std::string bytes = SerializeSafetensors(Stacked());
  Model model;
  model.config = Config();
  model.config.residual_scale = 1.0;

  ASSERT_TRUE(LoadMlp(*ParseSafetensors(bytes), {}, model).ok());

  EXPECT_FALSE(SpecOf(model).residual);
  EXPECT_EQ(SpecOf(model).residual_scale, 1.0F);
  EXPECT_EQ(Copy(SpecOf(model).weights), Counting("", {12}, 100).values);
}

TEST(DenseStackTest, PerLayerTensorsEqualStackedOnes) {
  const Model stacked = Load(Stacked()).value();
  const Model per_layer = Load(PerLayer()).value();

  EXPECT_EQ(Copy(SpecOf(stacked).weights), Copy(SpecOf(per_layer).weights));
  EXPECT_EQ(Copy(SpecOf(stacked).biases), Copy(SpecOf(per_layer).biases));
}

TEST(DenseStackTest, SpecFollowsAModelThatMoves) {
  Model loaded = Load(PerLayer()).value();

  const Model moved = std::move(loaded);

  EXPECT_EQ(SpecOf(moved).weights.data(), moved.weights.data());
  EXPECT_EQ(SpecOf(moved).biases.data(), moved.biases.data());
  EXPECT_EQ(SpecOf(moved).encode.weight.data(), moved.encode_weight.data());
  EXPECT_EQ(SpecOf(moved).decode.bias.data(), moved.decode_bias.data());
}

TEST(DenseStackTest, BiasesMayBeLeftOut) {
  std::vector<NamedTensor> tensors = Stacked();
  for (const char* name : {"input.bias", "layers.bias", "output.bias"}) {
    tensors = Without(std::move(tensors), name);
  }

  const Model model = Load(tensors).value();

  EXPECT_TRUE(SpecOf(model).biases.empty());
  EXPECT_TRUE(SpecOf(model).encode.bias.empty());
  EXPECT_TRUE(SpecOf(model).decode.bias.empty());
}

TEST(DenseStackTest, OuterLayersMayBeLeftOutWhereWidthsAgree) {
  ModelConfig config = Config();
  config.input_dim = config.output_dim = kState;
  config.input_activation = Activation::kIdentity;

  const Model model =
      Load({Counting("layers.weight", {kLayers, kState, kState}, 0)}, config).value();

  EXPECT_EQ(SpecOf(model).encode.rows, 0);
  EXPECT_EQ(SpecOf(model).decode.rows, 0);
  EXPECT_EQ(SpecOf(model).input_dim(), kState);
  EXPECT_EQ(SpecOf(model).output_dim(), kState);
}

TEST(DenseStackTest, NamesMissingOuterTensors) {
  ExpectRefused(Without(Without(Stacked(), "input.weight"), "input.bias"),
                "tensor \"input.weight\" of shape [2, 4] is missing; it may be left out, with its "
                "bias, only if input_dim equals state_dim (config.json: 4 and 2)");
  ExpectRefused(Without(Stacked(), "input.weight"), "tensor \"input.weight\" of shape [2, 4]");
  ExpectRefused(Without(Stacked(), "output.weight"),
                "tensor \"output.weight\" of shape [5, 2] is missing");
}

TEST(DenseStackTest, RefusesABiasWithoutItsWeightEvenWhereWidthsAgree) {
  ModelConfig config = Config();
  config.input_dim = kState;
  ExpectRefused(Without(Stacked(), "input.weight"), "tensor \"input.weight\"", config);
}

TEST(DenseStackTest, RefusesAnInputActivationWithoutInputLayer) {
  ModelConfig config = Config();
  config.input_dim = kState;
  ExpectRefused(Without(Without(Stacked(), "input.weight"), "input.bias"),
                "input_activation \"tanh\", which applies to the input layer only", config);
}

TEST(DenseStackTest, NamesMissingLayers) {
  ExpectRefused(
      OuterTensors(),
      "tensor \"layers.weight\" of shape [3, 2, 2] or \"layers.0.weight\" of shape [2, 2]");
  ExpectRefused(Without(PerLayer(), "layers.1.weight"),
                "tensor \"layers.1.weight\" of shape [2, 2] is missing");
  ExpectRefused(Without(PerLayer(), "layers.2.bias"),
                "tensor \"layers.2.bias\" of shape [2] is missing");
  ExpectRefused(Without(PerLayer(), "layers.0.bias"),
                "tensor \"layers.0.bias\" of shape [2] is missing");
}

TEST(DenseStackTest, NamesTensorAndShapesThatDisagree) {
  ExpectRefused(With(Stacked(), Counting("input.weight", {kInput, kState}, 0)),
                "tensor \"input.weight\": expected shape [2, 4], got [4, 2]");
  ExpectRefused(With(Stacked(), Counting("input.bias", {1, kState}, 0)),
                "tensor \"input.bias\": expected shape [2], got [1, 2]");
  ExpectRefused(With(Stacked(), Counting("layers.weight", {kLayers + 1, kState, kState}, 0)),
                "tensor \"layers.weight\": expected shape [3, 2, 2], got [4, 2, 2]");
  ExpectRefused(With(Stacked(), Counting("layers.bias", {kLayers}, 0)),
                "tensor \"layers.bias\": expected shape [3, 2], got [3]");
  ExpectRefused(With(PerLayer(), Counting("layers.1.weight", {}, 0)),
                "tensor \"layers.1.weight\": expected shape [2, 2], got []");
  ExpectRefused(With(Stacked(), Counting("output.weight", {kState, kOutput}, 0)),
                "tensor \"output.weight\": expected shape [5, 2], got [2, 5]");
  ExpectRefused(With(Stacked(), Counting("output.bias", {kOutput, 0}, 0)),
                "tensor \"output.bias\": expected shape [5], got [5, 0]");
}

TEST(DenseStackTest, NamesUnexpectedTensors) {
  for (const char* name : {"extra", "layers.0.weight", "layers.3.weight", "input.weight2",
                           "layers.scale", "module.layers.weight"}) {
    ExpectRefused(With(Stacked(), Counting(name, {1}, 0)),
                  StrCat("tensor \"", name, "\" of shape [1] is unexpected"));
  }
  for (const char* name : {"layers.3.weight", "layers.00.weight", "layers.-1.weight", "layers.bias",
                           "layers.3.bias", "layers.x.bias"}) {
    ExpectRefused(With(PerLayer(), Counting(name, {kState}, 0)),
                  StrCat("tensor \"", name, "\" of shape [2] is unexpected"));
  }
}

TEST(DenseStackTest, NamesTheTensorThatIsNotFinite) {
  NamedTensor bias = Counting("layers.bias", {kLayers, kState}, 0);
  bias.values[3] = std::numeric_limits<float>::quiet_NaN();
  ExpectRefused(With(Stacked(), bias), "tensor \"layers.bias\": element [1, 1] is NaN");
}

TEST(DenseStackTest, LimitsTheBytesAfterConversion) {
  // 12 + 6 recurrent, 8 + 2 input, 10 + 5 output values.
  constexpr int64_t kBytes = (12 + 6 + 8 + 2 + 10 + 5) * static_cast<int64_t>(sizeof(float));
  EXPECT_TRUE(Load(Stacked(), Config(), {.max_weights_bytes = kBytes}).ok());
  ExpectError(Load(Stacked(), Config(), {.max_weights_bytes = kBytes - 1}),
              StatusCode::kResourceExhausted, StrCat(kBytes - 1, " are allowed"));
}

}  // namespace
}  // namespace deeppcr::testing
