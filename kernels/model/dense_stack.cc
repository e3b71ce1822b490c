// SPDX-License-Identifier: Apache-2.0
#include "kernels/model/dense_stack.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/shape.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/model/tensor_reader.h"

namespace deeppcr {
namespace {

using Shape = TensorReader::Shape;

constexpr std::string_view kTensorNames =
    "input.{weight,bias}, layers.{weight,bias} or layers.<0 .. num_layers - 1>.{weight,bias}, "
    "output.{weight,bias}";

// One of the two layers outside the recurrence.
struct OuterLayer {
  std::string_view prefix;  // prefix of the layer's tensors
  std::string_view key;     // key of config.json for the layer's outer dimension
  int64_t outer_dim;
  int64_t rows;
  int64_t cols;
};

absl::Status ReadOuterLayer(TensorReader& reader, const OuterLayer& layer, int64_t state_dim,
                            std::vector<float>& weight, std::vector<float>& bias, DenseSpec& spec) {
  const std::string weight_name = StrCat(layer.prefix, ".weight");
  const std::string bias_name = StrCat(layer.prefix, ".bias");
  const bool optional = layer.outer_dim == state_dim;
  if (!reader.Has(weight_name) && !reader.Has(bias_name) && optional) return absl::OkStatus();
  if (!reader.Has(weight_name)) {
    return reader.Refuse(InvalidArgument(
        "tensor \"", weight_name, "\" of shape ", ShapeString(Shape{layer.rows, layer.cols}),
        " is missing; it may be left out, with its bias, only if ", layer.key,
        " equals state_dim (config.json: ", layer.outer_dim, " and ", state_dim, ")"));
  }
  DEEPPCR_RETURN_IF_ERROR(reader.Append(weight_name, {layer.rows, layer.cols}, weight));
  DEEPPCR_RETURN_IF_ERROR(reader.AppendIfThere(bias_name, {layer.rows}, bias));
  spec.rows = layer.rows;
  spec.cols = layer.cols;
  spec.weight = weight;
  spec.bias = bias;
  return absl::OkStatus();
}

absl::Status ReadStackedLayers(TensorReader& reader, Model& model) {
  const int64_t L = model.config.num_layers;
  const int64_t D = model.config.state_dim;
  DEEPPCR_RETURN_IF_ERROR(reader.Append("layers.weight", {L, D, D}, model.weights));
  return reader.AppendIfThere("layers.bias", {L, D}, model.biases);
}

absl::Status ReadSingleLayers(TensorReader& reader, Model& model) {
  const int64_t L = model.config.num_layers;
  const int64_t D = model.config.state_dim;
  if (!reader.Has("layers.0.weight")) {
    return reader.Refuse(InvalidArgument(
        "tensor \"layers.weight\" of shape ", ShapeString(Shape{L, D, D}),
        " or \"layers.0.weight\" of shape ", ShapeString(Shape{D, D}), " is missing"));
  }
  const bool biased = reader.HasBeginningWith("layers.", ".bias");
  // The config alone must not decide how much is allocated.
  model.weights.reserve(static_cast<size_t>(std::min(L * D * D, reader.TotalElements())));
  for (int64_t layer = 0; layer < L; ++layer) {
    const std::string prefix = StrCat("layers.", layer);
    DEEPPCR_RETURN_IF_ERROR(reader.Append(prefix + ".weight", {D, D}, model.weights));
    if (biased) DEEPPCR_RETURN_IF_ERROR(reader.Append(prefix + ".bias", {D}, model.biases));
  }
  return absl::OkStatus();
}

absl::Status ReadTensors(TensorReader& reader, Model& model, DenseStackSpec& spec) {
  const ModelConfig& config = model.config;
  const int64_t D = config.state_dim;
  DEEPPCR_RETURN_IF_ERROR(
      ReadOuterLayer(reader, {"input", "input_dim", config.input_dim, D, config.input_dim}, D,
                     model.encode_weight, model.encode_bias, spec.encode));
  DEEPPCR_RETURN_IF_ERROR(reader.Has("layers.weight") ? ReadStackedLayers(reader, model)
                                                      : ReadSingleLayers(reader, model));
  DEEPPCR_RETURN_IF_ERROR(
      ReadOuterLayer(reader, {"output", "output_dim", config.output_dim, config.output_dim, D}, D,
                     model.decode_weight, model.decode_bias, spec.decode));
  return reader.CheckAllUsed();
}

// A key that would do nothing is a mistake of the author's.
absl::Status CheckInputActivation(const Model& model, const DenseStackSpec& spec) {
  if (spec.encode.rows > 0 || model.config.input_activation == Activation::kIdentity) {
    return absl::OkStatus();
  }
  return InvalidArgument("tensor \"input.weight\" is missing; config.json has input_activation \"",
                         NameOf(model.config.input_activation),
                         "\", which applies to the input layer only");
}

absl::Status LoadDenseStack(const Tensors& tensors, const ModelLimits& limits, bool residual,
                            Model& model) {
  TensorReader reader(tensors, limits, kTensorNames);
  DenseStackSpec spec;
  DEEPPCR_RETURN_IF_ERROR(ReadTensors(reader, model, spec));
  DEEPPCR_RETURN_IF_ERROR(CheckInputActivation(model, spec));
  spec.num_steps = model.config.num_layers;
  spec.state_dim = model.config.state_dim;
  spec.residual = residual;
  spec.residual_scale = static_cast<float>(model.config.residual_scale);
  spec.activation = model.config.activation;
  spec.weights = model.weights;
  spec.biases = model.biases;
  spec.encode.activation = model.config.input_activation;
  model.systems = {spec};
  return absl::OkStatus();
}

}  // namespace

absl::Status LoadMlp(const Tensors& tensors, const ModelLimits& limits, Model& model) {
  return LoadDenseStack(tensors, limits, /*residual=*/false, model);
}

absl::Status LoadResnet(const Tensors& tensors, const ModelLimits& limits, Model& model) {
  return LoadDenseStack(tensors, limits, /*residual=*/true, model);
}

}  // namespace deeppcr
