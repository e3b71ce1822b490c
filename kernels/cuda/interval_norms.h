// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_INTERVAL_NORMS_H_
#define DEEPPCR_KERNELS_CUDA_INTERVAL_NORMS_H_

// The norms of an update, from those of its intervals. Maxima do not depend on their order.

#include <math.h>

#include "kernels/backend/iteration.h"
#include "kernels/cuda/device_code.h"

namespace deeppcr::cuda {

// What an interval brings: largest absolute values of its new state, of the update and of the
// probes. A maximum may lose a NaN, so what is finite is told beside it.
struct IntervalNorms {
  float state, update, probe;
  uint8_t finite, probes_finite;  // 0 or 1
};

DEEPPCR_DEVICE double Larger(double a, double b) { return b > a ? b : a; }

DEEPPCR_DEVICE void Merge(const UpdateNorms& other, UpdateNorms* norms) {
  norms->update = Larger(norms->update, other.update);
  norms->rounding = Larger(norms->rounding, other.rounding);
  norms->combined = Larger(norms->combined, other.combined);
  norms->finite = norms->finite && other.finite;
}

DEEPPCR_DEVICE void Merge(const IntervalNorms& other, IntervalNorms* norms) {
  norms->state = fmaxf(norms->state, other.state);
  norms->update = fmaxf(norms->update, other.update);
  norms->probe = fmaxf(norms->probe, other.probe);
  norms->finite = norms->finite && other.finite;
  norms->probes_finite = norms->probes_finite && other.probes_finite;
}

DEEPPCR_DEVICE UpdateNorms NormsOf(const IntervalNorms& interval, double floor) {
  const double scale = interval.state + floor;
  const double d = interval.update;
  // One that is lost would pass for a probe that has picked up nothing.
  const double e = interval.probes_finite ? interval.probe : static_cast<double>(INFINITY);
  UpdateNorms norms;
  norms.finite = interval.finite;
  if (d == 0.0 && e == 0.0) return norms;
  norms.update = Larger(0.0, d / scale);
  norms.rounding = Larger(0.0, e / scale);
  norms.combined = Larger(0.0, (2 * d + e) / scale);
  return norms;
}

// Of all lanes of a warp.
template <class Context>
DEEPPCR_DEVICE float LargestOfWarp(Context& context, float x) {
  DEEPPCR_UNROLL
  for (int mask = 1; mask < kWarpSize; mask *= 2) x = fmaxf(x, context.ShuffleXor(x, mask));
  return x;
}
template <class Context>
DEEPPCR_DEVICE bool AllOfWarp(Context& context, bool x) {
  return LargestOfWarp(context, x ? 0.0F : 1.0F) == 0.0F;
}
template <class Context>
DEEPPCR_DEVICE IntervalNorms MergeOfWarp(Context& context, const IntervalNorms& lane) {
  return {LargestOfWarp(context, lane.state), LargestOfWarp(context, lane.update),
          LargestOfWarp(context, lane.probe), AllOfWarp(context, lane.finite),
          AllOfWarp(context, lane.probes_finite)};
}
template <class Context>
DEEPPCR_DEVICE UpdateNorms MergeOfWarp(Context& context, UpdateNorms norms) {
  DEEPPCR_UNROLL
  for (int mask = 1; mask < kWarpSize; mask *= 2) {
    UpdateNorms other;
    other.update = context.ShuffleXor(norms.update, mask);
    other.rounding = context.ShuffleXor(norms.rounding, mask);
    other.combined = context.ShuffleXor(norms.combined, mask);
    other.finite = context.ShuffleXor(norms.finite ? 1 : 0, mask) != 0;
    Merge(other, &norms);
  }
  return norms;
}

// Of the columns of one interval, element by element.
class IntervalUpdate {
 public:
  // y <- base + correction in column v, 0 the state. F + 0 would turn -0 into +0: where nothing is
  // added the bits stay.
  DEEPPCR_DEVICE void Take(int v, float base, float correction, float* y) {
    const float next = correction == 0.0F ? base : base + correction;
    if (v == 0) {
      norms_.state = fmaxf(norms_.state, fabsf(next));
      norms_.update = fmaxf(norms_.update, fabsf(next - *y));
      norms_.finite = norms_.finite && isfinite(next);
    } else {
      norms_.probe = fmaxf(norms_.probe, fabsf(next));
      norms_.probes_finite = norms_.probes_finite && isfinite(next);
    }
    *y = next;
  }
  DEEPPCR_DEVICE const IntervalNorms& norms() const { return norms_; }

 private:
  IntervalNorms norms_ = {0.0F, 0.0F, 0.0F, 1, 1};
};

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_INTERVAL_NORMS_H_
