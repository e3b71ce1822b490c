// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CPU_ROUNDING_SOURCE_H_
#define DEEPPCR_KERNELS_CPU_ROUNDING_SOURCE_H_

#include "kernels/cpu/simd.h"

namespace deeppcr::cpu::DEEPPCR_CPU_ISA {

// +-2^-24 size, the sign a hash of (probe, lane, step).
template <int N>
DEEPPCR_INLINE Vec<N> RoundingSource(Vec<N> size, const uint32_t* seeds, int64_t step) {
  typename Vec<N>::Bits h;
  __builtin_memcpy(&h, seeds, sizeof(h));
  h ^= static_cast<uint32_t>(step) * 0x9E3779B9U;
  h *= 0x85EBCA6BU;
  h ^= h >> 13;
  h *= 0xC2B2AE35U;
  const auto sign = h & 0x80000000U;
  return Vec<N>::FromBits((size * Broadcast<N>(0x1p-24F)).bits() | sign);
}

}  // namespace deeppcr::cpu::DEEPPCR_CPU_ISA

#endif  // DEEPPCR_KERNELS_CPU_ROUNDING_SOURCE_H_
