// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CPU_SIMD_DOUBLES_H_
#define DEEPPCR_KERNELS_CPU_SIMD_DOUBLES_H_

// Vectors of doubles, half as many as there are lanes of floats, and what several functions need.

#include "kernels/cpu/simd/simd.h"

namespace deeppcr::cpu::DEEPPCR_CPU_ISA {

inline constexpr int kDoubles = kNativeLanes / 2;

typedef double Doubles __attribute__((vector_size(kDoubles * 8)));
typedef uint64_t Words __attribute__((vector_size(kDoubles * 8)));
typedef float Floats __attribute__((vector_size(kDoubles * 4)));
typedef uint32_t HalfWords __attribute__((vector_size(kDoubles * 4)));

// Halves of vectors of 32 bits, and such vectors of halves: by shuffles, as memory that was written
// in halves is slow to read as a whole.
template <class Half>
struct Halves {
  Half low, high;
};
template <class Half, class Whole, int... I>
DEEPPCR_INLINE Halves<Half> HalvesOf(Whole a, Indices<I...>) {
  return {__builtin_shufflevector(a, a, I...), __builtin_shufflevector(a, a, (I + kDoubles)...)};
}
DEEPPCR_INLINE Halves<Floats> HalvesOf(Vec<kNativeLanes> a) {
  return HalvesOf<Floats>(a.v, IndicesBelow<kDoubles>::Type());
}
template <class Half, int... I>
DEEPPCR_INLINE auto WholeOf(const Halves<Half>& a, Indices<I...>) {
  return __builtin_shufflevector(a.low, a.high, I...);
}
template <class Half>
DEEPPCR_INLINE auto WholeOf(const Halves<Half>& a) {
  return WholeOf(a, IndicesBelow<kNativeLanes>::Type());
}

DEEPPCR_INLINE Words AsWords(Doubles x) { return reinterpret_cast<Words>(x); }
DEEPPCR_INLINE Doubles AsDoubles(Words x) { return reinterpret_cast<Doubles>(x); }

DEEPPCR_INLINE Doubles FmaOf(Doubles a, Doubles b, Doubles c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_pd(a, b, c);
#elif defined(__FMA__)
  return _mm256_fmadd_pd(a, b, c);
#else
  return a * b + c;
#endif
}
DEEPPCR_INLINE Doubles AllDoubles(double x) { return x - Doubles{}; }

// Horner's rule, as Polynomial in vector_math.h.
DEEPPCR_INLINE Doubles SumTail(Doubles, Doubles sum) { return sum; }
template <class... Rest>
DEEPPCR_INLINE Doubles SumTail(Doubles x, Doubles sum, double next, Rest... rest) {
  return SumTail(x, FmaOf(sum, x, AllDoubles(next)), rest...);
}
template <class... Rest>
DEEPPCR_INLINE Doubles PolynomialInDoubles(Doubles x, double leading, Rest... rest) {
  return SumTail(x, AllDoubles(leading), rest...);
}

// Converts integers below 2^52.
DEEPPCR_INLINE Doubles ToDoubles(Words x) {
  return AsDoubles(x | 0x4330000000000000U) - 4503599627370496.0;
}

// log(x) of positive normal numbers: x = 2^k (1 + f) with sqrt(1/2) <= 1 + f < sqrt(2), and the
// polynomial of fdlibm's log.
DEEPPCR_INLINE Doubles Logarithms(Doubles x) {
  constexpr uint64_t kRootOfHalf = 0x3FE6A09E667F3BCDU;
  const Words shifted = AsWords(x) + (0x3FF0000000000000U - kRootOfHalf);
  const Doubles k = ToDoubles(shifted >> 52) - 1023.0;
  const Doubles f = AsDoubles((shifted & 0x000FFFFFFFFFFFFFU) + kRootOfHalf) - 1.0;
  const Doubles s = f / (2.0 + f);
  const Doubles z = s * s;
  const Doubles w = z * z;
  const Doubles odd = w * PolynomialInDoubles(w, 1.531383769920937332e-01, 2.222219843214978396e-01,
                                              3.999999999940941908e-01);
  const Doubles even =
      z * PolynomialInDoubles(w, 1.479819860511658591e-01, 1.818357216161805012e-01,
                              2.857142874366239149e-01, 6.666666666666735130e-01);
  const Doubles half_square = 0.5 * f * f;
  const Doubles rest = s * (half_square + (odd + even));
  const Doubles low = FmaOf(k, AllDoubles(1.90821492927058770002e-10), rest);
  return FmaOf(k, AllDoubles(6.93147180369123816490e-01), f - (half_square - low));
}

}  // namespace deeppcr::cpu::DEEPPCR_CPU_ISA

#endif  // DEEPPCR_KERNELS_CPU_SIMD_DOUBLES_H_
