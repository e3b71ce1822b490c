// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CPU_SIMD_SINE_COSINE_H_
#define DEEPPCR_KERNELS_CPU_SIMD_SINE_COSINE_H_

// Sines and cosines, several at a time: of doubles, and of floats.

#include <cstring>

#include "kernels/cpu/program/row_vectors.h"
#include "kernels/cpu/simd/doubles.h"
#include "kernels/cpu/simd/vector_math.h"

namespace deeppcr::cpu::DEEPPCR_CPU_ISA {

// Multiples of pi / 2 below it have 20 bits, whose products with the first part are exact.
inline constexpr float kLargestAngle = 1048576.0F;

struct SineCosine {
  Doubles sine, cosine;
};

// Sine and cosine of |x| <= kLargestAngle, of x that is a float or not next to a multiple of pi /
// 2: by pi / 2 in two parts, 33 bits and the rest, and the polynomials of fdlibm.
DEEPPCR_INLINE SineCosine SinesAndCosines(Doubles x) {
  constexpr double kMagic = 6755399441055744.0;  // 1.5 * 2^52: the sum is rounded to an integer
  const Doubles shifted = FmaOf(x, AllDoubles(6.36619772367581382433e-01), AllDoubles(kMagic));
  const Words quadrant = AsWords(shifted);
  const Doubles k = shifted - kMagic;
  const Doubles r = FmaOf(k, AllDoubles(-6.07710050650619224932e-11),
                          FmaOf(k, AllDoubles(-1.57079632673412561417e+00), x));
  const Doubles z = r * r;
  const Doubles sine_series = PolynomialInDoubles(
      z, 1.58969099521155010221e-10, -2.50507602534068634195e-08, 2.75573137070700676789e-06,
      -1.98412698298579493134e-04, 8.33333333332248946124e-03, -1.66666666666666324348e-01);
  const Doubles cosine_series = PolynomialInDoubles(
      z, -1.13596475577881948265e-11, 2.08757232129817482790e-09, -2.75573143513906633035e-07,
      2.48015872894767294178e-05, -1.38888888888741095749e-03, 4.16666666666666019037e-02);
  const Doubles sine = FmaOf(r * z, sine_series, r);
  const Doubles head = FmaOf(z, AllDoubles(-0.5), AllDoubles(1.0));
  const Doubles lost = FmaOf(z, AllDoubles(-0.5), 1.0 - head);
  const Doubles cosine = head + FmaOf(z * z, cosine_series, lost);
  // By quadrants: (s, c), (c, -s), (-s, -c), (-c, s).
  const auto odd = (quadrant & 1U) != 0;
  const Words sine_sign = (quadrant & 2U) << 62;
  const Words cosine_sign = ((quadrant + 1U) & 2U) << 62;
  return {AsDoubles(AsWords(odd ? cosine : sine) ^ sine_sign),
          AsDoubles(AsWords(odd ? sine : cosine) ^ cosine_sign)};
}

// x = quadrant pi / 2 + head + rest: near multiples of pi / 2 one float would have lost the angle.
struct ReducedAngle {
  Wide head, rest;
  Wide::Bits quadrant;
};
struct ReducedHalf {
  Floats head, rest;
  HalfWords quadrant;
};
DEEPPCR_INLINE ReducedHalf ReduceHalf(Floats a) {
  constexpr double kMagic = 6755399441055744.0;
  const Doubles x = __builtin_convertvector(a, Doubles);
  const Doubles shifted = FmaOf(x, AllDoubles(6.36619772367581382433e-01), AllDoubles(kMagic));
  const Doubles k = shifted - kMagic;
  const Doubles r = FmaOf(k, AllDoubles(-6.07710050650619224932e-11),
                          FmaOf(k, AllDoubles(-1.57079632673412561417e+00), x));
  const Floats head = __builtin_convertvector(r, Floats);
  const Floats rest = __builtin_convertvector(r - __builtin_convertvector(head, Doubles), Floats);
  return {head, rest, __builtin_convertvector(AsWords(shifted), HalfWords)};
}
// Reduced in double, for |a| <= kLargestAngle.
DEEPPCR_INLINE ReducedAngle ReduceInDouble(Wide a) {
  const Halves<Floats> halves = HalvesOf(a);
  const ReducedHalf low = ReduceHalf(halves.low), high = ReduceHalf(halves.high);
  return {{WholeOf<Floats>({low.head, high.head})},
          {WholeOf<Floats>({low.rest, high.rest})},
          WholeOf<HalfWords>({low.quadrant, high.quadrant})};
}

#if defined(__FMA__)
// Multiples of pi / 2 below it have 15 bits.
inline constexpr float kLargestAngleInFloats = 32768.0F;

// Reduced in floats, for |a| <= kLargestAngleInFloats: by pi / 2 in three parts, the first of which
// leaves what a float holds, as all of it are multiples of 2^-24 and below 1. The second's product
// and sum keep what they lose by rounding.
DEEPPCR_INLINE ReducedAngle ReduceInFloats(Wide a) {
  const Wide magic = All(12582912.0F);  // 1.5 * 2^23: the sum is rounded to an integer
  const Wide shifted = Fma(a, All(0.636619772F), magic), k = shifted - magic;
  const Wide left = Fma(k, All(-1.57079637F), a);
  const Wide second = k * All(4.37113883e-8F);
  const Wide lost = Fma(k, All(1.71512451e-15F), Fma(k, All(4.37113883e-8F), -second));
  const Wide head = left + second, grown = head - left;
  const Wide rest = (left - (head - grown)) + (second - grown);
  return {head, rest + lost, shifted.bits()};
}
#endif

// True if a lane is not at most `most`.
DEEPPCR_INLINE bool AnyBeyond(Wide a, Wide most) {
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask(a.v, most.v, _CMP_NLE_UQ) != 0;
#elif defined(__AVX2__)
  return _mm256_movemask_ps(_mm256_cmp_ps(a.v, most.v, _CMP_NLE_UQ)) != 0;
#else
  return _mm_movemask_ps(_mm_cmpnle_ps(a.v, most.v)) != 0;
#endif
}

// Of |a| <= kLargestAngle, in floats where they do.
DEEPPCR_INLINE ReducedAngle ReduceAngle(Wide a) {
#if defined(__FMA__)
  const ReducedAngle floats = ReduceInFloats(a);
  const Wide most = All(kLargestAngleInFloats), size = Abs(a);
  if (!AnyBeyond(size, most)) [[likely]]
    return floats;
  const ReducedAngle doubles = ReduceInDouble(a);
  return {
      SelectGreater(size, most, doubles.head, floats.head),
      SelectGreater(size, most, doubles.rest, floats.rest),
      SelectGreater(size, most, Wide::FromBits(doubles.quadrant), Wide::FromBits(floats.quadrant))
          .bits()};
#else
  return ReduceInDouble(a);
#endif
}

// Sine and cosine of what is left of an angle, which the quadrant makes those of the angle.
struct AngleSides {
  Wide sine, cosine;
  Wide::Bits quadrant;
};
DEEPPCR_INLINE AngleSides SidesOf(Wide a) {
  const ReducedAngle reduced = ReduceAngle(a);
  const Wide r = reduced.head, z = r * r, one = All(1.0F);
  const Wide sine =
      r + Fma(r * z, Polynomial(z, -1.95146308e-4F, 8.33215604e-3F, -1.66666545e-1F), reduced.rest);
  const Wide half = All(0.5F) * z, head = one - half;
  const Wide series = Polynomial(z, 2.44324111e-5F, -1.38873098e-3F, 4.16666456e-2F);
  const Wide cosine = head + Fma(z * z, series, FmaNegative(r, reduced.rest, (one - head) - half));
  return {sine, cosine, reduced.quadrant};
}

// By quadrants: sines s, c, -s, -c, and cosines one quadrant on.
template <bool kSine>
DEEPPCR_INLINE Wide InQuadrant(const AngleSides& sides) {
  const Wide::Bits quadrant = sides.quadrant + (kSine ? 0U : 1U);
  const Wide side = {(quadrant & 1U) != 0 ? sides.cosine.v : sides.sine.v};
  return Wide::FromBits(side.bits() ^ (quadrant & 2U) << 30);
}

// Elements of a beyond kLargestAngle, one by one, get what `other` says, so that none depends on
// its neighbours.
template <class Other>
DEEPPCR_INLINE void ReplaceBeyond(Wide a, const Other& other, Wide* result) {
  if (!AnyBeyond(Abs(a), All(kLargestAngle))) return;
  for (int i = 0; i < kNativeLanes; ++i) {
    if (!(__builtin_fabsf(a.v[i]) <= kLargestAngle))
      result->v[i] = static_cast<float>(other(double{a.v[i]}));
  }
}

DEEPPCR_INLINE Wide Sine(Wide a) {
  Wide sine = InQuadrant<true>(SidesOf(a));
  ReplaceBeyond(
      a, [](double x) { return __builtin_sin(x); }, &sine);
  return sine;
}
DEEPPCR_INLINE Wide Cosine(Wide a) {
  Wide cosine = InQuadrant<false>(SidesOf(a));
  ReplaceBeyond(
      a, [](double x) { return __builtin_cos(x); }, &cosine);
  return cosine;
}
// Both of them for little more than one.
DEEPPCR_INLINE void SineAndCosine(Wide a, Wide* sine, Wide* cosine) {
  const AngleSides sides = SidesOf(a);
  *sine = InQuadrant<true>(sides);
  *cosine = InQuadrant<false>(sides);
  ReplaceBeyond(
      a, [](double x) { return __builtin_sin(x); }, sine);
  ReplaceBeyond(
      a, [](double x) { return __builtin_cos(x); }, cosine);
}

}  // namespace deeppcr::cpu::DEEPPCR_CPU_ISA

#endif  // DEEPPCR_KERNELS_CPU_SIMD_SINE_COSINE_H_
