// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CPU_SIMD_ROUNDING_SOURCE_H_
#define DEEPPCR_KERNELS_CPU_SIMD_ROUNDING_SOURCE_H_

#include "kernels/cpu/simd/simd.h"

namespace deeppcr::cpu::DEEPPCR_CPU_ISA {

// Power of two in the exponent of x >= 0, bounded so that it and its inverse are normal.
DEEPPCR_INLINE float PowerOfTwoBelow(float x) {
  const float power = Vec<4>::FromBits(Broadcast<4>(x).bits() & 0x7F800000U).v[0];
  return power >= 0x1p-126F && power <= 0x1p126F ? power : power < 1 ? 0x1p-126F : 0x1p126F;
}

// Rounding error that a probe picks up: +-2^-24 size, and the least float where size is not zero. A
// hash of (probe, lane, step) decides on the sign and on a quarter more or less of the size, so
// that the errors of equal units cancel in no probe.
template <int N>
DEEPPCR_INLINE Vec<N> RoundingSource(Vec<N> size, const uint32_t* seeds, int64_t step) {
  typename Vec<N>::Bits h;
  __builtin_memcpy(&h, seeds, sizeof(h));
  h ^= static_cast<uint32_t>(step) * 0x9E3779B9U;
  h *= 0x85EBCA6BU;
  h ^= h >> 13;
  h *= 0xC2B2AE35U;
  const auto sign = h & 0x80000000U;
  const Vec<N> zero = Broadcast<N>(0.0F);
  const Vec<N> least = SelectGreater(size, zero, Broadcast<N>(0x1p-149F), zero);
  const Vec<N> fraction = Vec<N>::FromBits((h & 0x007FFFFFU) | 0x3F800000U);  // in [1, 2)
  const Vec<N> unit = Fma(fraction, Broadcast<N>(0x1p-25F), Broadcast<N>(0x1p-26F));
  return Vec<N>::FromBits(Fma(size, unit, least).bits() | sign);
}

}  // namespace deeppcr::cpu::DEEPPCR_CPU_ISA

#endif  // DEEPPCR_KERNELS_CPU_SIMD_ROUNDING_SOURCE_H_
