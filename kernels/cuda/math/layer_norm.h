// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_MATH_LAYER_NORM_H_
#define DEEPPCR_KERNELS_CUDA_MATH_LAYER_NORM_H_

// n = (h - mean) / sqrt(variance + epsilon) of a vector of `dim` elements and its tangents, by a
// warp. Vectors are functions of an index: h(i), t(i).

#include <math.h>

#include "kernels/cuda/runtime/device_code.h"

namespace deeppcr::cuda {

// The sum of x over the lanes of the warp, in all of them.
template <class Context, class T>
DEEPPCR_DEVICE T SumOfWarp(Context& context, T x) {
  DEEPPCR_UNROLL
  for (int mask = kWarpSize / 2; mask > 0; mask /= 2) x += context.ShuffleXor(x, mask);
  return x;
}
// Calls f(x(i)) for i = first, first + 32, ... below `end`, one after another; some of them are
// loaded before the first is taken, for which a kernel needs registers.
template <class X, class F>
DEEPPCR_DEVICE void ForLaneAhead(int first, int end, const X& x, const F& f) {
  constexpr int kAhead = 8;
  int i = first;
  DEEPPCR_AS_WRITTEN
  for (; i + (kAhead - 1) * kWarpSize < end; i += kAhead * kWarpSize) {
    float loaded[kAhead];
    DEEPPCR_UNROLL
    for (int k = 0; k < kAhead; ++k) loaded[k] = x(i + k * kWarpSize);
    DEEPPCR_UNROLL
    for (int k = 0; k < kAhead; ++k) f(loaded[k]);
  }
  DEEPPCR_AS_WRITTEN
  for (; i < end; i += kWarpSize) f(x(i));
}
// The sum of f(0), ..., f(dim - 1), known to all lanes.
template <class Context, class F>
DEEPPCR_DEVICE float SumByWarp(Context& context, int dim, const F& f) {
  float sum = 0.0F;
  for (int i = context.lane(); i < dim; i += kWarpSize) sum += f(i);
  return SumOfWarp(context, sum);
}

struct LayerNorm {
  float mean, inverse;
  DEEPPCR_DEVICE float Of(float h) const { return (h - mean) * inverse; }
  // Size that the effect of the mean's rounding on all elements of n is proportional to.
  DEEPPCR_DEVICE float SizeOfMean() const { return fabsf(mean) * inverse; }
};

// for_lane(f) calls f(h_i) for the elements i = lane, lane + 32, ... below dim, one after another.
template <class Context, class Lane>
DEEPPCR_DEVICE LayerNorm NormOfLanes(Context& context, int dim, float epsilon,
                                     const Lane& for_lane) {
  const float size = static_cast<float>(dim);
  float sum = 0.0F, squares = 0.0F;
  for_lane([&](float h) { sum += h; });
  const float mean = SumOfWarp(context, sum) / size;
  for_lane([&](float h) {
    const float centred = h - mean;
    squares += centred * centred;
  });
  const float variance = SumOfWarp(context, squares) / size;
  // The second term makes a NaN of a variance that overflowed: zeros would hide it.
  return {mean, 1.0F / sqrtf(variance + epsilon) + 0.0F * variance};
}
template <class Context, class F>
DEEPPCR_DEVICE LayerNorm NormOf(Context& context, int dim, float epsilon, const F& h) {
  return NormOfLanes(context, dim, epsilon, [&](const auto& f) {
    for (int i = context.lane(); i < dim; i += kWarpSize) f(h(i));
  });
}

// Calls write(i, gain[i] (dn_i + shift)) of a tangent t for every i < width; zeros beyond dim.
template <class Context, class H, class T, class Write>
DEEPPCR_DEVICE void NormTangent(Context& context, int dim, int width, const LayerNorm& norm,
                                const float* gain, float shift, const H& h, const T& t,
                                const Write& write) {
  const float size = static_cast<float>(dim);
  const float mean = SumByWarp(context, dim, t) / size;
  const float along = SumByWarp(context, dim, [&](int i) { return norm.Of(h(i)) * t(i); }) / size;
  for (int i = context.lane(); i < width; i += kWarpSize) {
    const float n = i < dim ? norm.Of(h(i)) : 0.0F;
    const float rest = i < dim ? t(i) - mean - n * along : 0.0F;
    write(i, i < dim ? fmaf(rest, norm.inverse, shift) * gain[i] : 0.0F);
  }
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_MATH_LAYER_NORM_H_
