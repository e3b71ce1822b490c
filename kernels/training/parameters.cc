// SPDX-License-Identifier: Apache-2.0
#include "kernels/training/parameters.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/base/strings.h"
#include "kernels/problem/philox.h"
#include "kernels/training/noise_streams.h"

namespace deeppcr::training {
namespace {

// Tensors in the order of the vector.
enum Tensor : size_t {
  kInputWeight,
  kInputBias,
  kLayersWeight,
  kLayersBias,
  kOutputWeight,
  kOutputBias,
};

// Makes the rows of [dim, dim] orthonormal, one after another. A second round removes what rounding
// left of the first.
void Orthonormalize(int64_t dim, double* rows) {
  for (int64_t i = 0; i < dim; ++i) {
    double* const row = rows + i * dim;
    for (int64_t round = 0; round < 2; ++round) {
      for (int64_t j = 0; j < i; ++j) {
        const double* const other = rows + j * dim;
        double product = 0;
        for (int64_t k = 0; k < dim; ++k) product += row[k] * other[k];
        for (int64_t k = 0; k < dim; ++k) row[k] -= product * other[k];
      }
    }
    double squares = 0;
    for (int64_t k = 0; k < dim; ++k) squares += row[k] * row[k];
    for (int64_t k = 0; k < dim; ++k) row[k] /= std::sqrt(squares);
  }
}

void MakeOrthogonal(int64_t dim, double gain, float* matrix) {
  std::vector<double> rows(matrix, matrix + dim * dim);
  Orthonormalize(dim, rows.data());
  for (int64_t i = 0; i < dim * dim; ++i) matrix[i] = static_cast<float>(gain * rows[i]);
}

}  // namespace

void ParameterLayout::Add(std::string name, std::vector<int64_t> shape, int64_t fan_in,
                          bool layers) {
  int64_t size = 1;
  for (const int64_t extent : shape) size *= extent;
  tensors_.push_back({.name = std::move(name),
                      .shape = std::move(shape),
                      .offset = size_,
                      .size = size,
                      .fan_in = fan_in,
                      .layers = layers});
  size_ += size;
}

absl::StatusOr<ParameterLayout> ParameterLayout::Of(const ModelConfig& config) {
  if (config.model_type != "mlp" && config.model_type != "resnet")
    return InvalidArgument("model_type: training takes mlp and resnet, got ",
                           Quoted(config.model_type));
  const int64_t D = config.state_dim, L = config.num_layers;
  ParameterLayout layout;
  layout.Add("input.weight", {D, config.input_dim}, config.input_dim, false);
  layout.Add("input.bias", {D}, 0, false);
  layout.Add("layers.weight", {L, D, D}, D, true);
  layout.Add("layers.bias", {L, D}, 0, true);
  layout.Add("output.weight", {config.output_dim, D}, D, false);
  layout.Add("output.bias", {config.output_dim}, 0, false);
  layout.shape_ = {
      .num_steps = L,
      .state_dim = D,
      .residual = config.model_type == "resnet",
      .residual_scale = static_cast<float>(config.residual_scale),
      .activation = config.activation,
      .encode = {.rows = D, .cols = config.input_dim, .activation = config.input_activation},
      .decode = {.rows = config.output_dim, .cols = D}};
  return layout;
}

DenseStackSpec ParameterLayout::SpecOf(std::span<const float> values) const {
  DenseStackSpec spec = shape_;
  spec.encode.weight = ValuesOf(values, kInputWeight);
  spec.encode.bias = ValuesOf(values, kInputBias);
  spec.weights = ValuesOf(values, kLayersWeight);
  spec.biases = ValuesOf(values, kLayersBias);
  spec.decode.weight = ValuesOf(values, kOutputWeight);
  spec.decode.bias = ValuesOf(values, kOutputBias);
  return spec;
}

ParameterSums ParameterLayout::SumsOf(std::span<float> gradients) const {
  const auto at = [&](size_t tensor) { return gradients.data() + tensors_[tensor].offset; };
  return {.weights = at(kLayersWeight),
          .biases = at(kLayersBias),
          .encode_weight = at(kInputWeight),
          .encode_bias = at(kInputBias),
          .decode_weight = at(kOutputWeight),
          .decode_bias = at(kOutputBias)};
}

void SplitState(const ParameterLayout& layout, int64_t first_read, std::span<float> values) {
  if (first_read == 0) return;
  const auto of = [&](size_t tensor) {
    const ParameterTensor& found = layout.tensors()[tensor];
    return values.subspan(found.offset, found.size);
  };
  const int64_t input_dim = layout.tensors()[kInputWeight].fan_in;
  std::ranges::fill(of(kInputWeight).subspan(first_read * input_dim), 0.0F);
  std::ranges::fill(of(kInputBias).subspan(first_read), 0.0F);
  const int64_t dim = layout.tensors()[kOutputWeight].fan_in;
  for (std::span<float> rows = of(kOutputWeight); !rows.empty(); rows = rows.subspan(dim))
    std::ranges::fill(rows.first(first_read), 0.0F);
}

std::vector<float> InitialParameters(const ParameterLayout& layout,
                                     const Initialization& initialization) {
  std::vector<float> values(layout.size());
  for (size_t t = 0; t < layout.tensors().size(); ++t) {
    const ParameterTensor& tensor = layout.tensors()[t];
    if (tensor.is_bias()) continue;
    float* const first = values.data() + tensor.offset;
    FillNormals(initialization.seed, t, static_cast<uint32_t>(NoiseStream::kInitialParameters),
                tensor.size, first);
    if (tensor.layers && initialization.orthogonal_layers) {
      const int64_t dim = tensor.fan_in;
      for (int64_t begin = 0; begin < tensor.size; begin += dim * dim)
        MakeOrthogonal(dim, initialization.layer_gain, first + begin);
      continue;
    }
    const double gain = tensor.layers ? initialization.layer_gain : initialization.outer_gain;
    const double deviation = gain / std::sqrt(static_cast<double>(tensor.fan_in));
    for (int64_t i = 0; i < tensor.size; ++i)
      first[i] = static_cast<float>(deviation * double{first[i]});
  }
  return values;
}

}  // namespace deeppcr::training
