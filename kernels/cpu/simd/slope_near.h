// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CPU_SIMD_SLOPE_NEAR_H_
#define DEEPPCR_KERNELS_CPU_SIMD_SLOPE_NEAR_H_

#include "kernels/cpu/simd/activations.h"
#include "kernels/iteration/pass.h"

namespace deeppcr::cpu::DEEPPCR_CPU_ISA {

// SlopeReach of sums whose terms have these sizes, where the largest probes are these.
template <int N>
DEEPPCR_INLINE Vec<N> ReachOf(Vec<N> terms, Vec<N> probe) {
  const Vec<N> reach =
      Fma(probe, Broadcast<N>(SlopeReach(0, 1)), terms * Broadcast<N>(SlopeReach(1, 0)));
  return Min(reach, Broadcast<N>(kLargestFloat));
}

// The largest slopes of factor * act within this reach of a, `slope` at a itself: there, on the way
// to zero, where tanh and sigmoid are steepest, and above, where the others are.
template <int N>
DEEPPCR_INLINE Vec<N> SlopeNear(Activation activation, Vec<N> factor, Vec<N> a, Vec<N> slope,
                                Vec<N> reach) {
  Vec<N> near[2] = {a - Max(Min(a, reach), Broadcast<N>(0.0F) - reach), a + reach};
  Differentiate(activation, near);
  Vec<N> largest = slope;
  for (const Vec<N>& x : near) {
    const Vec<N> s = factor * x;
    largest = SelectGreater(Abs(s), Abs(largest), s, largest);
  }
  return largest;
}

}  // namespace deeppcr::cpu::DEEPPCR_CPU_ISA

#endif  // DEEPPCR_KERNELS_CPU_SIMD_SLOPE_NEAR_H_
