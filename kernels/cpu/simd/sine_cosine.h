// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CPU_SIMD_SINE_COSINE_H_
#define DEEPPCR_KERNELS_CPU_SIMD_SINE_COSINE_H_

// Sines and cosines in double, several at a time.

#include <cstring>

#include "kernels/cpu/simd/doubles.h"

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
  const Doubles shifted = x * 6.36619772367581382433e-01 + kMagic;
  const Words quadrant = AsWords(shifted);
  const Doubles k = shifted - kMagic;
  const Doubles r = (x - k * 1.57079632673412561417e+00) - k * 6.07710050650619224932e-11;
  const Doubles z = r * r;
  const Doubles sine_series =
      -1.66666666666666324348e-01 +
      z * (8.33333333332248946124e-03 +
           z * (-1.98412698298579493134e-04 +
                z * (2.75573137070700676789e-06 +
                     z * (-2.50507602534068634195e-08 + z * 1.58969099521155010221e-10))));
  const Doubles cosine_series =
      4.16666666666666019037e-02 +
      z * (-1.38888888888741095749e-03 +
           z * (2.48015872894767294178e-05 +
                z * (-2.75573143513906633035e-07 +
                     z * (2.08757232129817482790e-09 + z * -1.13596475577881948265e-11))));
  const Doubles sine = r + r * z * sine_series;
  const Doubles half = 0.5 * z;
  const Doubles head = 1.0 - half;
  const Doubles cosine = head + (((1.0 - head) - half) + z * z * cosine_series);
  // By quadrants: (s, c), (c, -s), (-s, -c), (-c, s).
  const auto odd = (quadrant & 1U) != 0;
  const Words sine_sign = (quadrant & 2U) << 62;
  const Words cosine_sign = ((quadrant + 1U) & 2U) << 62;
  return {AsDoubles(AsWords(odd ? cosine : sine) ^ sine_sign),
          AsDoubles(AsWords(odd ? sine : cosine) ^ cosine_sign)};
}

// The sine, or the cosine, of every element. Of elements beyond kLargestAngle, one by one, what
// `other` says, so that no element depends on its neighbours.
template <bool kSine, class Other>
DEEPPCR_INLINE Wide SineOrCosine(Wide a, const Other& other) {
  Floats halves[2], results[2];
  std::memcpy(halves, &a.v, sizeof(halves));
  for (int half = 0; half < 2; ++half) {
    const SineCosine at = SinesAndCosines(__builtin_convertvector(halves[half], Doubles));
    results[half] = __builtin_convertvector(kSine ? at.sine : at.cosine, Floats);
  }
  Wide result;
  std::memcpy(&result.v, results, sizeof(results));
  int beyond = 0;
  for (int i = 0; i < kNativeLanes; ++i) beyond |= !(__builtin_fabsf(a.v[i]) <= kLargestAngle);
  for (int i = 0; beyond != 0 && i < kNativeLanes; ++i) {
    if (!(__builtin_fabsf(a.v[i]) <= kLargestAngle)) {
      result.v[i] = static_cast<float>(other(double{a.v[i]}));
    }
  }
  return result;
}

}  // namespace deeppcr::cpu::DEEPPCR_CPU_ISA

#endif  // DEEPPCR_KERNELS_CPU_SIMD_SINE_COSINE_H_
