// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_BASE_FINITE_H_
#define DEEPPCR_KERNELS_BASE_FINITE_H_

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace deeppcr {

// True if no value is a NaN or an infinity.
inline bool AllFinite(std::span<const float> values) {
  // The exponent of infinities and NaNs, found with integers and without an early exit, which makes
  // vectors of the loop.
  constexpr uint32_t kExponent = 0x7F800000;
  uint32_t found = 0;
  for (const float value : values)
    found |= static_cast<uint32_t>((std::bit_cast<uint32_t>(value) & kExponent) == kExponent);
  return found == 0;
}

// Gives all NaNs the same bits: which sign one has depends on how its operands were grouped.
inline void MakeNansAlike(std::span<float> values) {
  for (float& value : values)
    if (std::isnan(value)) value = std::numeric_limits<float>::quiet_NaN();
}

// The nearest float; beyond float's range an infinity, where the conversion alone is undefined.
inline float NarrowToFloat(double value) {
  constexpr double kLargest = std::numeric_limits<float>::max();
  if (value > kLargest) return std::numeric_limits<float>::infinity();
  if (value < -kLargest) return -std::numeric_limits<float>::infinity();
  return static_cast<float>(value);
}

// Index of the first NaN or infinity; values.size() if there is none.
inline size_t FirstNonFinite(std::span<const float> values) {
  if (AllFinite(values)) return values.size();
  const auto bad = std::ranges::find_if(values, [](float value) { return !std::isfinite(value); });
  return static_cast<size_t>(bad - values.begin());
}

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_BASE_FINITE_H_
