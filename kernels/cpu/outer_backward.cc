// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/outer_backward.h"

#include <algorithm>
#include <utility>

namespace deeppcr::cpu {
OuterBackward::OuterBackward(std::span<const PackedDense> layers, int64_t dim)
    : layers_(layers),
      dim_(dim),
      widest_(WidestOf(layers, dim)),
      values_(2 * widest_),
      slopes_(SumOfWidths(layers)),
      deltas_(2 * widest_) {}

int64_t OuterBackward::Bytes(std::span<const PackedDense> layers, int64_t dim) {
  return (4 * WidestOf(layers, dim) + SumOfWidths(layers)) * int64_t{sizeof(float)};
}

void OuterBackward::At(const float* input) {
  if (layers_.empty()) return;
  float* value = values_.data();
  float* next = value + widest_;
  float* slope = slopes_.data();
  std::copy_n(input, layers_.front().cols, value);
  for (const PackedDense& layer : layers_) {
    if (layer.activation == Activation::kIdentity && &layer == &layers_.back()) {
      std::fill_n(slope, layer.width, 1.0F);
      return;
    }
    layer.PreActivations(value, next);
    std::copy_n(next, layer.width, slope);
    layer.kernels.differentiate(layer.activation, slope, layer.width);
    layer.kernels.activate(layer.activation, next, layer.width);
    slope += layer.width;
    std::swap(value, next);
  }
}

void OuterBackward::Back(const float* result, float* input, float* delta) {
  if (layers_.empty()) {
    if (input != nullptr) std::copy_n(result, dim_, input);
    return;
  }
  float* g = deltas_.data();
  float* next = g + widest_;
  const float* slope = slopes_.data() + slopes_.size();
  std::copy_n(result, layers_.back().rows, g);
  for (int64_t i = std::ssize(layers_) - 1; i >= 0; --i) {
    const PackedDense& layer = layers_[static_cast<size_t>(i)];
    slope -= layer.width;
    for (int64_t k = 0; k < layer.rows; ++k) g[k] *= slope[k];
    std::fill(g + layer.rows, g + layer.width, 0.0F);
    if (i + 1 == std::ssize(layers_) && delta != nullptr) std::copy_n(g, layer.rows, delta);
    layer.kernels.dots(layer.weights.data(), layer.width, layer.cols, g, next);
    std::swap(g, next);
  }
  if (input != nullptr) std::copy_n(g, layers_.front().cols, input);
}

void BeginOutputs(OuterBackward& decode, const SystemShape& shape, int64_t width,
                  const BackwardSample& taken, float* g) {
  const int64_t dim = shape.state_dim;
  std::fill_n(g, taken.columns * width, 0.0F);
  if (taken.of_outputs == nullptr && taken.decode_delta != nullptr)
    std::fill_n(taken.decode_delta, shape.output_dim, 0.0F);
  if (taken.of_outputs != nullptr) decode.At(taken.states + shape.num_steps * dim);
  for (int64_t j = 0; j < taken.columns; ++j) {
    float* column = g + j * width;
    if (taken.of_outputs != nullptr)
      decode.Back(taken.of_outputs + j * shape.output_dim, column, taken.decode_delta);
    for (int64_t i = 0; i < dim && taken.of_final != nullptr; ++i)
      column[i] += taken.of_final[j * dim + i];
  }
}

void FinishInputs(OuterBackward& encode, const SystemShape& shape, int64_t width,
                  const BackwardSample& taken, const float* g) {
  if (taken.inputs == nullptr && taken.encode_delta == nullptr) return;
  encode.At(taken.input->inputs);
  for (int64_t j = 0; j < taken.columns; ++j)
    encode.Back(g + j * width,
                taken.inputs == nullptr ? nullptr : taken.inputs + j * shape.input_dim,
                taken.encode_delta);
}

}  // namespace deeppcr::cpu
