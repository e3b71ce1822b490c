// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/math/device_halves.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace deeppcr::cuda {
namespace {

// The power of two that takes a row's largest weight to [1, 2).
float ScaleOf(std::span<const float> row) {
  float largest = 0.0F;
  for (const float w : row) largest = std::max(largest, std::fabs(w));
  int exponent = 1;
  if (largest > 0.0F) std::frexp(largest, &exponent);
  return std::ldexp(1.0F, exponent - 1);
}

}  // namespace

uint16_t NearestHalf(float x) {
  constexpr uint32_t kInfinity = 0x7C00, kNan = 0x7E00;
  const uint32_t sign = std::signbit(x) ? 0x8000 : 0;
  const float size = std::fabs(x);
  uint32_t bits = kNan;
  if (size < 0x1p-14F) {
    bits = static_cast<uint32_t>(std::nearbyint(size * 0x1p24F));
  } else if (size <= 0x1p16F) {
    int exponent = 0;
    const float digits = std::frexp(size, &exponent);
    // Digits from 1024 on carry into the exponent, as they should.
    bits = static_cast<uint32_t>((exponent + 13) << 10) +
           static_cast<uint32_t>(std::nearbyint(digits * 2048));
  } else if (size > 0x1p16F) {
    bits = kInfinity;
  }
  return static_cast<uint16_t>(sign | std::min(bits, size == size ? kInfinity : kNan));
}

absl::StatusOr<DeviceHalves> DeviceHalves::Upload(Device& device, int64_t layers, int64_t rows,
                                                  int64_t cols, int64_t padded_rows,
                                                  int64_t padded_cols,
                                                  std::span<const float> weights) {
  const int64_t halves = padded_rows * padded_cols;
  std::vector<uint16_t> packed(layers * halves);
  std::vector<float> scales(layers * padded_rows, 1.0F);
  for (int64_t l = 0; l < layers; ++l) {
    for (int64_t i = 0; i < rows; ++i) {
      const auto row = weights.subspan((l * rows + i) * cols, cols);
      const float scale = scales[l * padded_rows + i] = ScaleOf(row);
      for (int64_t k = 0; k < cols; ++k)
        packed[l * halves + HalfPlace(padded_cols, i, k)] = NearestHalf(row[k] / scale);
    }
  }
  DeviceHalves result;
  DEEPPCR_ASSIGN_OR_RETURN(result.weights_, DeviceBuffer<uint16_t>::Of(device, packed));
  DEEPPCR_ASSIGN_OR_RETURN(result.scales_, DeviceBuffer<float>::Of(device, scales));
  result.first_ = {.weights = result.weights_.data(),
                   .scales = result.scales_.data(),
                   .rows = static_cast<int32_t>(padded_rows),
                   .cols = static_cast<int32_t>(padded_cols)};
  return result;
}

}  // namespace deeppcr::cuda
