// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_MATH_SLOPE_NEAR_H_
#define DEEPPCR_KERNELS_CUDA_MATH_SLOPE_NEAR_H_

#include <math.h>

#include "kernels/cuda/math/activation.h"
#include "kernels/cuda/math/panel_layer.h"
#include "kernels/cuda/math/rounding_source.h"
#include "kernels/cuda/runtime/device_code.h"
#include "kernels/iteration/pass.h"

namespace deeppcr::cuda {

// SlopeReach of a sum whose terms have the size `terms`, with the largest probe `probe`.
DEEPPCR_DEVICE float ReachOf(float terms, float probe) {
  return fminf(SlopeReach(terms, probe), kLargestFloat);
}

DEEPPCR_DEVICE float LargerOf(float a, float b) { return fabsf(b) > fabsf(a) ? b : a; }

// Slopes that a probe may meet.
struct SlopeRange {
  float low = 0.0F, high = 0.0F;

  DEEPPCR_DEVICE float Largest() const { return LargerOf(low, high); }
  // beside + slope * product, with the slope that makes the result largest: the largest slope may
  // cancel `beside`, which a residual path brings.
  DEEPPCR_DEVICE float Carry(float product, float beside) const {
    return LargerOf(fmaf(low, product, beside), fmaf(high, product, beside));
  }
};

// Slopes of factor * act within `reach` of a: `slope` at a itself, the slope towards zero, where
// tanh and sigmoid are steepest, and the slope above, where the other activations are.
template <class ActivationType>
DEEPPCR_DEVICE SlopeRange SlopesNear(const ActivationType& activation, float factor, float a,
                                     float reach, float slope) {
  const float nearer = factor * Differentiate(activation, a - fmaxf(fminf(a, reach), -reach));
  const float above = factor * Differentiate(activation, a + reach);
  return {fminf(fminf(nearer, above), slope), fmaxf(fmaxf(nearer, above), slope)};
}

// The same of act alone for N elements, of which none waits for another.
template <int N>
DEEPPCR_DEVICE void AllSlopesNear(Activation activation, const float (&a)[N],
                                  const float (&reach)[N], SlopeRange (&near)[N]) {
  float slopes[N];
  DEEPPCR_UNROLL
  for (int k = 0; k < N; ++k) slopes[k] = a[k] - fmaxf(fminf(a[k], reach[k]), -reach[k]);
  // The code of a slope, which is long, stands here once.
  DEEPPCR_AS_WRITTEN
  for (int where = 0; where < 3; ++where) {
    DifferentiateAll(activation, slopes);
    DEEPPCR_UNROLL
    for (int k = 0; k < N; ++k) {
      near[k].low = where == 0 ? slopes[k] : fminf(near[k].low, slopes[k]);
      near[k].high = where == 0 ? slopes[k] : fmaxf(near[k].high, slopes[k]);
      slopes[k] = where == 0 ? a[k] + reach[k] : a[k];
    }
  }
}

// The slope at a and those near it, by the four lanes that share a row: each evaluates one.
struct SlopesOfRow {
  float slope;
  SlopeRange near;

  template <class Context>
  DEEPPCR_DEVICE SlopesOfRow(Context& context, Activation activation, float factor, float a,
                             float reach) {
    const int lane = context.lane() % kSegments, first = context.lane() - lane;
    const float below = a - fmaxf(fminf(a, reach), -reach);
    const float mine = factor * Differentiate(activation, lane == 0   ? a
                                                          : lane == 1 ? below
                                                                      : a + reach);
    slope = context.Shuffle(mine, first);
    const float nearer = context.Shuffle(mine, first + 1), above = context.Shuffle(mine, first + 2);
    near = {fminf(fminf(nearer, above), slope), fmaxf(fmaxf(nearer, above), slope)};
  }
};

// The largest product of the probes, which are rows 1 to `probes`, all in the sums' part. By all
// lanes of a warp.
template <int N, class Context>
DEEPPCR_DEVICE float LargestProbe(Context& context, const PanelSums<N>& p, int probes) {
  static_assert(N > kNumProbes);
  float probe = 0.0F;
  p.ForMine(context.lane(), 1 + probes, [&](int r, float sum) {
    if (r >= 1) probe = fmaxf(probe, fabsf(sum));
  });
  DEEPPCR_UNROLL
  for (int mask = 1; mask < kSegments; mask *= 2)
    probe = fmaxf(probe, context.ShuffleXor(probe, mask));
  return probe;
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_MATH_SLOPE_NEAR_H_
