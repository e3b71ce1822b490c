// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_LOOP_INTERVAL_NORMS_H_
#define DEEPPCR_KERNELS_CUDA_LOOP_INTERVAL_NORMS_H_

// Norms of an update, from the norms of its intervals. Maxima do not depend on their order.

#include <math.h>

#include "kernels/cuda/runtime/device_code.h"
#include "kernels/iteration/pass.h"

namespace deeppcr::cuda {

// Norms of an interval: largest absolute values of its new state, of the update and of the probes,
// and the largest share of a ball. A maximum may lose a NaN, so flags tell if all values were
// finite.
struct IntervalNorms {
  float state, update, probe, share;
  uint8_t finite, probes_finite;  // 0 or 1
};

DEEPPCR_DEVICE double Larger(double a, double b) { return b > a ? b : a; }

DEEPPCR_DEVICE void Merge(const UpdateNorms& other, UpdateNorms* norms) {
  norms->update = Larger(norms->update, other.update);
  norms->rounding = Larger(norms->rounding, other.rounding);
  norms->combined = Larger(norms->combined, other.combined);
  norms->share = Larger(norms->share, other.share);
  norms->finite = norms->finite && other.finite;
}

DEEPPCR_DEVICE void Merge(const IntervalNorms& other, IntervalNorms* norms) {
  norms->state = fmaxf(norms->state, other.state);
  norms->update = fmaxf(norms->update, other.update);
  norms->probe = fmaxf(norms->probe, other.probe);
  norms->share = fmaxf(norms->share, other.share);
  norms->finite = norms->finite && other.finite;
  norms->probes_finite = norms->probes_finite && other.probes_finite;
}

DEEPPCR_DEVICE UpdateNorms NormsOf(const IntervalNorms& interval, double floor) {
  const double scale = interval.state + floor;
  const double d = interval.update;
  // A NaN that the maximum lost would pass for a probe that has picked up nothing.
  const double e = interval.probes_finite ? interval.probe : static_cast<double>(INFINITY);
  UpdateNorms norms;
  norms.finite = interval.finite;
  norms.share = interval.share;
  if (d == 0.0 && e == 0.0) return norms;
  norms.update = Larger(0.0, d / scale);
  norms.rounding = Larger(0.0, e / scale);
  norms.combined = Larger(0.0, ErrorBound(d, e) / scale);
  return norms;
}

// UpdateNorms as the warps of a cluster exchange them: floats, which a double takes a GPU too long
// for, and no smaller than the doubles would be.
struct RelativeNorms {
  float update = 0.0F, rounding = 0.0F, combined = 0.0F, share = 0.0F;
  int32_t finite = 1;

  DEEPPCR_DEVICE UpdateNorms AsDoubles() const {
    UpdateNorms norms;
    norms.update = update;
    norms.rounding = rounding;
    norms.combined = combined;
    norms.share = share;
    norms.finite = finite != 0 ? 1 : 0;
    return norms;
  }
};

DEEPPCR_DEVICE void Merge(const RelativeNorms& other, RelativeNorms* norms) {
  norms->update = fmaxf(norms->update, other.update);
  norms->rounding = fmaxf(norms->rounding, other.rounding);
  norms->combined = fmaxf(norms->combined, other.combined);
  norms->share = fmaxf(norms->share, other.share);
  norms->finite = norms->finite != 0 && other.finite != 0 ? 1 : 0;
}

// NormsOf in floats. Halves keep sums from overflowing; the factor makes up for the rounding of two
// sums and a quotient.
DEEPPCR_DEVICE RelativeNorms RelativeNormsOf(const IntervalNorms& interval, float floor) {
  constexpr float kUp = 1.0F + 0x1p-21F;
  RelativeNorms norms;
  norms.finite = interval.finite;
  norms.share = interval.share;
  const float d = interval.update, e = interval.probes_finite ? interval.probe : INFINITY;
  if (d == 0.0F && e == 0.0F) return norms;
  const float inverse = kUp / fmaf(0.5F, interval.state, 0.5F * floor);
  const auto relative = [&](float x) { return fmaxf(0.0F, 0.5F * x * inverse); };
  const float of_both = fmaf(static_cast<float>(kUpdateFactor), d, e);
  norms.update = relative(d);
  norms.rounding = relative(e);
  norms.combined = relative(fmaxf(of_both, kRoundingFactor * e));
  return norms;
}

template <class Context>
DEEPPCR_DEVICE RelativeNorms MergeOfWarp(Context& context, const RelativeNorms& lane) {
  return {context.LargestOfWarp(lane.update), context.LargestOfWarp(lane.rounding),
          context.LargestOfWarp(lane.combined), context.LargestOfWarp(lane.share),
          context.AllOfWarp(lane.finite != 0) ? 1 : 0};
}
template <class Context>
DEEPPCR_DEVICE IntervalNorms MergeOfWarp(Context& context, const IntervalNorms& lane) {
  return {context.LargestOfWarp(lane.state),   context.LargestOfWarp(lane.update),
          context.LargestOfWarp(lane.probe),   context.LargestOfWarp(lane.share),
          context.AllOfWarp(lane.finite != 0), context.AllOfWarp(lane.probes_finite != 0)};
}
template <class Context>
DEEPPCR_DEVICE UpdateNorms MergeOfWarp(Context& context, UpdateNorms norms) {
  DEEPPCR_UNROLL
  for (int mask = 1; mask < kWarpSize; mask *= 2) {
    UpdateNorms other;
    other.update = context.ShuffleXor(norms.update, mask);
    other.rounding = context.ShuffleXor(norms.rounding, mask);
    other.combined = context.ShuffleXor(norms.combined, mask);
    other.share = context.ShuffleXor(norms.share, mask);
    other.finite = context.ShuffleXor(norms.finite ? 1 : 0, mask) != 0;
    Merge(other, &norms);
  }
  return norms;
}

// Element i of a state y [columns, W] at the end of interval p (0: z_0), as the pass takes it.
DEEPPCR_DEVICE float EntryAt(Confirmation confirmation, const float* y, int width, int64_t p,
                             int i) {
  if (confirmation < Confirmation::kUpdated || p == 0) return y[i];
  return TriedAt(confirmation, y[i], y[kUpdateColumn * width + i], y[kBallColumn * width + i]);
}

// Update of the elements of one interval, column by column: 0 the state, then the probes if they
// are carried.
class IntervalUpdate {
 public:
  DEEPPCR_DEVICE explicit IntervalUpdate(IterationKind kind) : kind_(kind) {}

  // y <- base + correction in column v of an element, y pointing to its state and `width` floats
  // from there to the next column. The columns of an element come in their order. F + 0 would turn
  // -0 into +0: where the correction is zero the bits stay.
  DEEPPCR_DEVICE void Take(int v, float base, float correction, int width, float* y) {
    const float next = correction == 0.0F ? base : base + correction;
    if (v > 0) {
      rho_ = fmaxf(rho_, fabsf(next));
      norms_.probes_finite = norms_.probes_finite && isfinite(next);
    } else if (kind_.confirms()) {
      return Return(next, width, y);
    } else {
      if (kind_.more_probes()) rho_ = y[kRoundingColumn * width];
      correction_ = next - *y;
      *y = next;
      norms_.state = fmaxf(norms_.state, fabsf(next));
      norms_.update = fmaxf(norms_.update, fabsf(correction_));
      norms_.finite = norms_.finite && isfinite(next);
    }
    if (v + 1 == kind_.vectors()) Settle(width, y);
  }
  DEEPPCR_DEVICE const IntervalNorms& norms() const { return norms_; }

 private:
  // Stores the update, and after an update with probes the ball of its error and the largest of all
  // probes.
  DEEPPCR_DEVICE void Settle(int width, float* y) {
    float* const last = y + kUpdateColumn * width;
    if (kind_.probes) {
      const float ball = BallOf(*last, correction_, *y, rho_);
      const float error = fmaf(kRoundingFactor, rho_, fabsf(correction_));
      norms_.share = fmaxf(norms_.share, ShareOfBall(error, ball));
      norms_.probe = fmaxf(norms_.probe, rho_);
      y[kBallColumn * width] = ball;
      y[kRoundingColumn * width] = rho_;
      rho_ = 0.0F;
    }
    *last = correction_;
  }
  // Notes how near the map has come to the state.
  DEEPPCR_DEVICE void Return(float next, int width, float* y) {
    const float way = next - *y;
    float* const ball = y + kBallColumn * width;
    norms_.state = fmaxf(norms_.state, fabsf(*y));
    norms_.update = fmaxf(norms_.update, fabsf(way));
    norms_.share = fmaxf(norms_.share, ShareOfBall(fabsf(way), *ball));
    norms_.finite = norms_.finite && isfinite(way);
    *ball = Along(way, *ball);
    y[kUpdateColumn * width] = way;
  }

  const IterationKind kind_;
  float correction_ = 0.0F, rho_ = 0.0F;
  IntervalNorms norms_ = {0.0F, 0.0F, 0.0F, 0.0F, 1, 1};
};

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_LOOP_INTERVAL_NORMS_H_
