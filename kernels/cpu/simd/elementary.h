// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CPU_SIMD_ELEMENTARY_H_
#define DEEPPCR_KERNELS_CPU_SIMD_ELEMENTARY_H_

// Elementary functions that no activation needs, within 2 units of 2^-24 of the exact value with
// and without fused products (tests/kernels/cpu/program/ulps_test.cc). Special values are those of
// the C library.

#include "kernels/cpu/simd/vector_math.h"

namespace deeppcr::cpu::DEEPPCR_CPU_ISA {

// log(a) = k log 2 + log(1 + f), a = 2^k (1 + f) with sqrt(1/2) <= 1 + f < sqrt(2). The first part
// of log 2 has trailing zeros, so that its product with k is exact (polynomial: Cephes, logf).
template <int N>
DEEPPCR_INLINE Vec<N> Log(Vec<N> a) {
  using Int = typename Vec<N>::Int;
  const Vec<N> zero = Broadcast<N>(0.0F), least = Broadcast<N>(0x1p-126F);
  const Vec<N> infinity = Broadcast<N>(__builtin_inff());
  constexpr uint32_t kRootOfHalf = 0x3F3504F3;
  const Vec<N> normal = SelectGreater(least, a, a * Broadcast<N>(0x1p23F), a);
  const Int shifted = reinterpret_cast<Int>(normal.bits() - kRootOfHalf);
  const Vec<N> exponent = {__builtin_convertvector(shifted >> 23, typename Vec<N>::Float)};
  const Vec<N> k = exponent - SelectGreater(least, a, Broadcast<N>(23.0F), zero);
  const Int mantissa = (shifted & 0x007FFFFF) + int32_t{kRootOfHalf};
  const Vec<N> f = Vec<N>{reinterpret_cast<typename Vec<N>::Float>(mantissa)} - Broadcast<N>(1.0F);
  const Vec<N> series = Polynomial(f, 7.0376836292e-2F, -1.1514610310e-1F, 1.1676998740e-1F,
                                   -1.2420140846e-1F, 1.4249322787e-1F, -1.6668057665e-1F,
                                   2.0000714765e-1F, -2.4999993993e-1F, 3.3333331174e-1F);
  const Vec<N> square = f * f;
  const Vec<N> rest = Fma(k, Broadcast<N>(-2.12194440e-4F), square * f * series);
  const Vec<N> of_mantissa = f + FmaNegative(Broadcast<N>(0.5F), square, rest);
  const Vec<N> log = Fma(k, Broadcast<N>(0.693359375F), of_mantissa);
  // Infinity stays infinity, and what is not above zero has no logarithm, a NaN among it.
  const Vec<N> nan = Broadcast<N>(__builtin_nanf(""));
  const Vec<N> outside = SelectEqual(a, zero, -infinity, SelectEqual(a, infinity, a, nan));
  return SelectGreater(a, zero, SelectGreater(infinity, a, log, outside), outside);
}

// erf(a) = a + a P(a^2) up to 1, and 1 - e^-q(|a|) beyond, up to where that is 1.
template <int N>
DEEPPCR_INLINE Vec<N> Erf(Vec<N> a) {
  const Vec<N> one = Broadcast<N>(1.0F), size = Min(Abs(a), Broadcast<N>(4.0F));
  const Vec<N> series =
      Polynomial(size * size, 7.85385769e-5F, -8.01019252e-4F, 5.18832756e-3F, -2.68538119e-2F,
                 1.12835851e-1F, -3.76126258e-1F, 1.28379166e-1F);
  const Vec<N> q = Polynomial(size, -1.86380086e-4F, 2.94766681e-3F, -2.1838097e-2F, 1.03106821e-1F,
                              6.38144758e-1F, 1.12708923F, 3.41512575e-4F);
  const Vec<N> large = one - BoundedExp(-q);
  return WithSignOf(a, SelectGreater(one, size, Fma(size, series, size), large));
}

// atan(a) = t + t^3 P(t^2) up to 1, and pi / 2 less that of 1 / |a| beyond. Where pi / 2 - t is
// rounded, what it lost goes to the rest.
template <int N>
DEEPPCR_INLINE Vec<N> Atan(Vec<N> a) {
  const Vec<N> one = Broadcast<N>(1.0F), size = Abs(a);
  const Vec<N> t = SelectGreater(size, one, one / size, size), square = t * t;
  const Vec<N> series =
      Polynomial(square, -1.79359385e-3F, 1.09144808e-2F, -3.11776126e-2F, 5.79573592e-2F,
                 -8.40343663e-2F, 1.09521811e-1F, -1.42642408e-1F, 1.99985482e-1F, -3.33332991e-1F);
  const Vec<N> rest = t * square * series;
  const Vec<N> quarter = Broadcast<N>(1.57079637F), head = quarter - t;
  const Vec<N> lost = (quarter - head) - t - Broadcast<N>(4.37113883e-8F);
  return WithSignOf(a, SelectGreater(size, one, head + (lost - rest), t + rest));
}

// The largest integer that is not above a.
template <int N>
DEEPPCR_INLINE Vec<N> Floor(Vec<N> a) {
  constexpr int kDown = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
#if defined(__AVX512F__)
  // _mm512_floor_ps, but GCC 12 warns of a value that it leaves undefined.
  if constexpr (N == 16) return {_mm512_maskz_roundscale_ps(0xFFFF, a.v, kDown)};
#endif
#if defined(__AVX2__)
  if constexpr (N == 8) return {_mm256_round_ps(a.v, kDown)};
#endif
  if constexpr (N == 4) return {_mm_round_ps(a.v, kDown)};
}

}  // namespace deeppcr::cpu::DEEPPCR_CPU_ISA

#endif  // DEEPPCR_KERNELS_CPU_SIMD_ELEMENTARY_H_
