// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CPU_SIMD_SLOPE_NEAR_H_
#define DEEPPCR_KERNELS_CPU_SIMD_SLOPE_NEAR_H_

#include "kernels/cpu/simd/activations.h"
#include "kernels/iteration/pass.h"

namespace deeppcr::cpu::DEEPPCR_CPU_ISA {

// SlopeReach of sums whose terms have the sizes `terms`, with the largest probes `probe`.
template <int N>
DEEPPCR_INLINE Vec<N> ReachOf(Vec<N> terms, Vec<N> probe) {
  const Vec<N> reach =
      Fma(probe, Broadcast<N>(SlopeReach(0, 1)), terms * Broadcast<N>(SlopeReach(1, 0)));
  return Min(reach, Broadcast<N>(kLargestFloat));
}

template <int N>
DEEPPCR_INLINE Vec<N> LargerOf(Vec<N> a, Vec<N> b) {
  return SelectGreater(Abs(b), Abs(a), b, a);
}

// Slopes that a probe may meet.
template <int N>
struct SlopeRange {
  Vec<N> low, high;

  DEEPPCR_INLINE Vec<N> Largest() const { return LargerOf(low, high); }
  // beside + slope * product, with the slope that makes the result largest: the largest slope may
  // cancel `beside`, which a residual path brings.
  DEEPPCR_INLINE Vec<N> Carry(Vec<N> product, Vec<N> beside) const {
    return LargerOf(Fma(low, product, beside), Fma(high, product, beside));
  }
};

// Slopes of factor * act within `reach` of a: `slope` at a itself, the slope towards zero, where
// tanh and sigmoid are steepest, and the slope above, where the other activations are.
template <int N>
DEEPPCR_INLINE SlopeRange<N> SlopesNear(Activation activation, Vec<N> factor, Vec<N> a,
                                        Vec<N> slope, Vec<N> reach) {
  Vec<N> near[2] = {a - Max(Min(a, reach), Broadcast<N>(0.0F) - reach), a + reach};
  Differentiate(activation, near);
  const Vec<N> first = factor * near[0], second = factor * near[1];
  return {Min(Min(first, second), slope), Max(Max(first, second), slope)};
}

}  // namespace deeppcr::cpu::DEEPPCR_CPU_ISA

#endif  // DEEPPCR_KERNELS_CPU_SIMD_SLOPE_NEAR_H_
