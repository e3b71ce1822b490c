// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_MATH_ROUNDING_SOURCE_H_
#define DEEPPCR_KERNELS_CUDA_MATH_ROUNDING_SOURCE_H_

#include <math.h>

#include <cstdint>

#include "kernels/cuda/runtime/device_code.h"
#include "kernels/iteration/pass.h"

namespace deeppcr::cuda {

inline constexpr float kLargestFloat = 0x1.fffffep127F;

// A power of two near x >= 0, a normal one with a normal inverse: the exponent of x, whose bits are
// 23 to 30. A NaN is no size and counts as zero.
DEEPPCR_DEVICE float PowerOfTwoBelow(float x) {
  const float bounded = fminf(fmaxf(x, 0x1p-126F), 0x1p126F);
  return __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, bounded) & 0x7F800000U);
}
// 1 / PowerOfTwoBelow(x), of that power.
DEEPPCR_DEVICE float InverseOfPower(float power) {
  return __builtin_bit_cast(float, 0x7F000000U - __builtin_bit_cast(uint32_t, power));
}

// Rounding error that probe `v` picks up in element i of a step: +-2^-24 size, and the least float
// where size is not zero; a hash of (v, i, step) decides on the sign and on a quarter more or less
// of the size.
DEEPPCR_DEVICE float RoundingSource(float size, int v, int i, int64_t step) {
  uint32_t h = static_cast<uint32_t>(i * kNumProbes + v + 1) * 0x27D4EB2FU;
  h ^= static_cast<uint32_t>(step) * 0x9E3779B9U;
  h *= 0x85EBCA6BU;
  h ^= h >> 13;
  h *= 0xC2B2AE35U;
  const float fraction = static_cast<float>(h & 0x007FFFFFU) * 0x1p-23F;
  const float unit = fmaf(fraction, 0x1p-25F, 0x1.8p-25F);
  const float source = size > 0.0F ? fmaf(size, unit, 0x1p-149F) : size;
  return (h & 0x80000000U) != 0 ? -source : source;
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_MATH_ROUNDING_SOURCE_H_
