// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/packed_dense.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/backend/common.h"
#include "kernels/base/status_macros.h"

namespace deeppcr::cpu {
namespace {

static_assert(kColumns == kNumColumns);

double LargestRowSum(const DenseSpec& spec) {
  double largest = 0;
  for (int64_t i = 0; i < spec.rows; ++i) {
    double sum = 0;
    for (int64_t k = 0; k < spec.cols; ++k) sum += std::fabs(spec.weight[i * spec.cols + k]);
    largest = std::max(largest, sum);
  }
  return largest;
}

}  // namespace

int64_t PaddedWidth(int64_t state_dim) {
  for (const int64_t width : {4, 8, 16, 32, 64}) {
    if (state_dim <= width) return width;
  }
  return (state_dim + 31) / 32 * 32;
}

void PackColumns(std::span<const float> matrix, int64_t rows, int64_t cols, int64_t width,
                 float* to) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t k = 0; k < cols; ++k) to[k * width + i] = matrix[i * cols + k];
}

absl::Status CheckAllocated(bool ok, int64_t floats) {
  if (ok) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "packed weights: ", floats * int64_t{sizeof(float)}, " bytes of memory could not be had"));
}

absl::Status CheckPackedFloats(int64_t floats, const PackingLimits& limits, int64_t beside) {
  return CheckPackedBytes(floats * int64_t{sizeof(float)}, limits, beside);
}

absl::StatusOr<PackedDense> PackDense(const DenseSpec& spec, Kernels (*kernels)(int64_t width),
                                      const PackingLimits& limits, int64_t beside) {
  PackedDense packed;
  if (spec.rows == 0) return packed;
  packed.rows = spec.rows;
  packed.cols = spec.cols;
  packed.width = PaddedWidth(spec.rows);
  packed.activation = spec.activation;
  DEEPPCR_RETURN_IF_ERROR(CheckPackedFloats((spec.cols + 1) * packed.width, limits, beside));
  packed.weights = AlignedBuffer<float>(spec.cols * packed.width);
  packed.bias = AlignedBuffer<float>(packed.width);
  DEEPPCR_RETURN_IF_ERROR(
      CheckAllocated(packed.weights.ok() && packed.bias.ok(), spec.cols * packed.width));
  RepackDense(spec, &packed);
  packed.kernels = kernels(packed.width);
  return packed;
}

void RepackDense(const DenseSpec& spec, PackedDense* packed) {
  if (spec.rows == 0) return;
  PackColumns(spec.weight, spec.rows, spec.cols, packed->width, packed->weights.data());
  std::copy(spec.bias.begin(), spec.bias.end(), packed->bias.data());
  packed->row_sum = LargestRowSum(spec);
}

void PackedDense::PreActivations(const float* in, float* out) const {
  kernels.sum_columns({.width = width,
                       .cols = cols,
                       .weights = weights.data(),
                       .bias = bias.data(),
                       .in = in,
                       .out = out});
}

void PackedDense::Apply(const float* in, float* out) const {
  PreActivations(in, out);
  kernels.activate(activation, out, width);
}

int64_t WidestOf(std::span<const PackedDense> layers, int64_t dim) {
  int64_t widest = PaddedWidth(dim);
  for (const PackedDense& layer : layers)
    widest = std::max({widest, layer.width, PaddedWidth(layer.cols)});
  return widest;
}

int64_t SumOfWidths(std::span<const PackedDense> layers) {
  int64_t sum = 0;
  for (const PackedDense& layer : layers) sum += layer.width;
  return sum;
}

AlignedBuffer<float> LaneMask(int64_t dim, int64_t width) {
  AlignedBuffer<float> mask(width);
  for (int64_t i = 0; i < dim && mask.ok(); ++i) mask[i] = std::bit_cast<float>(0xFFFFFFFFU);
  return mask;
}

AlignedBuffer<uint32_t> ProbeSeeds(int64_t width) {
  AlignedBuffer<uint32_t> seeds(kNumProbes * width);
  for (int64_t v = 0; v < kNumProbes && seeds.ok(); ++v)
    for (int64_t i = 0; i < width; ++i)
      seeds[v * width + i] = static_cast<uint32_t>(i * kNumProbes + v + 1) * 0x27D4EB2FU;
  return seeds;
}

}  // namespace deeppcr::cpu
