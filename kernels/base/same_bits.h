// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_BASE_SAME_BITS_H_
#define DEEPPCR_KERNELS_BASE_SAME_BITS_H_

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>

namespace deeppcr {

// True if the numbers are equal bit for bit: a NaN is equal to itself, and 0 is not to -0.
inline bool SameBits(std::span<const float> a, std::span<const float> b) {
  const auto bits = [](float value) { return std::bit_cast<uint32_t>(value); };
  return std::ranges::equal(a, b, {}, bits, bits);
}

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_BASE_SAME_BITS_H_
