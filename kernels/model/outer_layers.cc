// SPDX-License-Identifier: Apache-2.0
#include "kernels/model/outer_layers.h"

#include <string>
#include <vector>

#include "kernels/base/shape.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"

namespace deeppcr {
namespace {

using Shape = TensorReader::Shape;

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

// A key that would do nothing is a mistake of the author's.
absl::Status CheckInputActivation(const ModelConfig& config, const DenseSpec& encode) {
  if (encode.rows > 0 || config.input_activation == Activation::kIdentity) return absl::OkStatus();
  return InvalidArgument("tensor \"input.weight\" is missing; config.json has input_activation \"",
                         NameOf(config.input_activation),
                         "\", which applies to the input layer only");
}

}  // namespace

absl::Status ReadInputLayer(TensorReader& reader, Model& model, DenseSpec& spec) {
  const ModelConfig& config = model.config;
  const int64_t D = config.state_dim;
  DEEPPCR_RETURN_IF_ERROR(
      ReadOuterLayer(reader, {kInputLayer, "input_dim", config.input_dim, D, config.input_dim}, D,
                     model.encode_weight, model.encode_bias, spec));
  spec.activation = config.input_activation;
  return CheckInputActivation(config, spec);
}

absl::Status ReadOutputLayer(TensorReader& reader, Model& model, DenseSpec& spec) {
  const ModelConfig& config = model.config;
  const int64_t D = config.state_dim;
  return ReadOuterLayer(reader,
                        {kOutputLayer, "output_dim", config.output_dim, config.output_dim, D}, D,
                        model.decode_weight, model.decode_bias, spec);
}

}  // namespace deeppcr
