// SPDX-License-Identifier: Apache-2.0
#include "kernels/model_parameters.h"

#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace deeppcr {
namespace {

std::vector<TensorShape> TensorsOf(const DenseStackSpec& stack) {
  std::vector<TensorShape> tensors;
  const auto add = [&](const std::string& layer, std::vector<int64_t> shape, bool biased) {
    std::vector<int64_t> of_bias(shape.begin(), shape.end() - 1);
    tensors.push_back({layer + ".weight", std::move(shape)});
    if (biased) tensors.push_back({layer + ".bias", std::move(of_bias)});
  };
  const DenseSpec &in = stack.encode, &out = stack.decode;
  const int64_t dim = stack.state_dim;
  if (in.rows > 0) add("input", {in.rows, in.cols}, !in.bias.empty());
  add("layers", {stack.num_steps, dim, dim}, !stack.biases.empty());
  if (out.rows > 0) add("output", {out.rows, out.cols}, !out.bias.empty());
  return tensors;
}

}  // namespace

ParameterForm ParameterFormOf(const Model& model) {
  if (model.parameters != nullptr) return ParameterForm::kProgram;
  const std::string& type = model.config.model_type;
  return type == "mlp" || type == "resnet" ? ParameterForm::kLayers : ParameterForm::kNone;
}

std::vector<TensorShape> ParametersOf(const Model& model) {
  std::vector<TensorShape> tensors;
  switch (ParameterFormOf(model)) {
    case ParameterForm::kNone:
      break;
    case ParameterForm::kLayers:
      return TensorsOf(std::get<DenseStackSpec>(model.systems.front()));
    case ParameterForm::kProgram:
      for (const ParameterTensor& tensor : model.parameters->tensors)
        tensors.push_back({tensor.name, tensor.shape});
  }
  return tensors;
}

ParameterSums LayerSums(std::span<const TensorShape> tensors, std::span<float* const> sums) {
  constexpr std::array<std::pair<std::string_view, float * ParameterSums::*>, 6> kSums = {{
      {"input.weight", &ParameterSums::encode_weight},
      {"input.bias", &ParameterSums::encode_bias},
      {"layers.weight", &ParameterSums::weights},
      {"layers.bias", &ParameterSums::biases},
      {"output.weight", &ParameterSums::decode_weight},
      {"output.bias", &ParameterSums::decode_bias},
  }};
  ParameterSums result;
  for (size_t i = 0; i < tensors.size(); ++i)
    for (const auto& [name, member] : kSums)
      if (tensors[i].name == name) result.*member = sums[i];
  return result;
}

}  // namespace deeppcr
