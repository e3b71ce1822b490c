// SPDX-License-Identifier: Apache-2.0
#include "kernels/model/dense_stack.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/shape.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/model/outer_layers.h"
#include "kernels/model/tensor_reader.h"

namespace deeppcr {
namespace {

using Shape = TensorReader::Shape;

constexpr std::string_view kTensorNames =
    "input.{weight,bias}, layers.{weight,bias} or layers.<0 .. num_layers - 1>.{weight,bias}, "
    "output.{weight,bias}";

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
  DEEPPCR_RETURN_IF_ERROR(ReadInputLayer(reader, model, spec.encode));
  DEEPPCR_RETURN_IF_ERROR(reader.Has("layers.weight") ? ReadStackedLayers(reader, model)
                                                      : ReadSingleLayers(reader, model));
  DEEPPCR_RETURN_IF_ERROR(ReadOutputLayer(reader, model, spec.decode));
  return reader.CheckAllUsed();
}

absl::Status LoadDenseStack(const Tensors& tensors, const ModelLimits& limits, bool residual,
                            Model& model) {
  TensorReader reader(tensors, limits, kTensorNames);
  DenseStackSpec spec;
  DEEPPCR_RETURN_IF_ERROR(ReadTensors(reader, model, spec));
  spec.num_steps = model.config.num_layers;
  spec.state_dim = model.config.state_dim;
  spec.residual = residual;
  spec.residual_scale = static_cast<float>(model.config.residual_scale);
  spec.activation = model.config.activation;
  spec.weights = model.weights;
  spec.biases = model.biases;
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
