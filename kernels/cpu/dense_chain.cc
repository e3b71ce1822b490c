// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/dense_chain.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace deeppcr::cpu {
namespace {

// Columns of the Jacobian that are pushed through together.
constexpr int64_t kTogether = 16;

// out_j = M in_j (+ bias).
void Multiply(const PackedDense& layer, const float* in, const float* bias, int64_t stride,
              int64_t count, float* out) {
  layer.kernels.apply({.width = layer.width,
                       .inner = layer.cols,
                       .matrix = layer.weights.data(),
                       .in = in,
                       .base = bias,
                       .out = out,
                       .in_stride = stride,
                       .base_stride = 0,
                       .out_stride = stride,
                       .count = count,
                       .diagonal = false});
}

}  // namespace

DenseChain::DenseChain(const std::vector<PackedDense>& layers, int64_t state_dim)
    : layers_(layers),
      state_dim_(state_dim),
      widest_(WidestOf(layers, state_dim)),
      values_(2 * widest_),
      slopes_(SumOfWidths(layers)),
      tangents_(layers.empty() ? 0 : 2 * kTogether * widest_),
      row_sums_(layers.empty() ? 0 : layers.back().rows) {}

int64_t DenseChain::Bytes(const std::vector<PackedDense>& layers, int64_t state_dim) {
  const int64_t widest = WidestOf(layers, state_dim);
  const int64_t floats =
      2 * widest + SumOfWidths(layers) + (layers.empty() ? 0 : 2 * kTogether * widest);
  const int64_t doubles = layers.empty() ? 0 : layers.back().rows;
  return floats * int64_t{sizeof(float)} + doubles * int64_t{sizeof(double)};
}

void DenseChain::Apply(const float* z, float* outputs) {
  if (layers_.empty()) {
    std::copy_n(z, state_dim_, outputs);
    return;
  }
  float* value = values_.data();
  float* next = value + widest_;
  std::copy_n(z, state_dim_, value);
  for (const PackedDense& layer : layers_) {
    layer.Apply(value, next);
    std::swap(value, next);
  }
  std::copy_n(value, layers_.back().rows, outputs);
}

double DenseChain::Amplification(const float* z) {
  if (layers_.empty()) return 1;
  RecordSlopes(z);
  const int64_t rows = layers_.back().rows;
  std::fill_n(row_sums_.data(), rows, 0.0);
  for (int64_t first = 0; first < state_dim_; first += kTogether)
    AddColumns(first, std::min(kTogether, state_dim_ - first));
  double largest = 0;
  for (int64_t i = 0; i < rows; ++i) {
    if (std::isnan(row_sums_[i])) return std::numeric_limits<double>::infinity();
    largest = std::max(largest, row_sums_[i]);
  }
  return largest;
}

void DenseChain::RecordSlopes(const float* z) {
  float* value = values_.data();
  float* next = value + widest_;
  float* slope = slopes_.data();
  std::copy_n(z, state_dim_, value);
  for (const PackedDense& layer : layers_) {
    Multiply(layer, value, layer.bias.data(), widest_, 1, next);
    std::copy_n(next, layer.width, slope);
    layer.kernels.differentiate(layer.activation, slope, layer.width);
    layer.kernels.activate(layer.activation, next, layer.width);
    slope += layer.width;
    std::swap(value, next);
  }
}

// Adds the absolute values of columns [first, first + count) of the Jacobian to the row sums.
void DenseChain::AddColumns(int64_t first, int64_t count) {
  float* in = tangents_.data();
  float* out = in + kTogether * widest_;
  std::fill_n(in, count * widest_, 0.0F);
  for (int64_t j = 0; j < count; ++j) in[j * widest_ + first + j] = 1.0F;
  const float* slope = slopes_.data();
  for (const PackedDense& layer : layers_) {
    Multiply(layer, in, nullptr, widest_, count, out);
    for (int64_t j = 0; j < count; ++j)
      for (int64_t i = 0; i < layer.width; ++i) out[j * widest_ + i] *= slope[i];
    slope += layer.width;
    std::swap(in, out);
  }
  for (int64_t j = 0; j < count; ++j)
    for (int64_t i = 0; i < row_sums_.size(); ++i)
      row_sums_[i] += std::fabs(double{in[j * widest_ + i]});
}

}  // namespace deeppcr::cpu
