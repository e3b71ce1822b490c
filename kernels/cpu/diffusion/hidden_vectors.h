// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CPU_DIFFUSION_HIDDEN_VECTORS_H_
#define DEEPPCR_KERNELS_CPU_DIFFUSION_HIDDEN_VECTORS_H_

// Loops over one row, and the reductions of a layer norm, always in the same order.

#include "kernels/cpu/simd/simd.h"

namespace deeppcr::cpu::DEEPPCR_CPU_ISA {

using Wide = Vec<kNativeLanes>;

// M vectors of one row.
template <int M>
struct Chunk {
  Wide v[M];

  static DEEPPCR_INLINE Chunk Of(const float* from) {
    Chunk c;
    for (int i = 0; i < M; ++i) c.v[i] = Load<kNativeLanes>(from + i * kNativeLanes);
    return c;
  }
  DEEPPCR_INLINE void To(float* to) const {
    for (int i = 0; i < M; ++i) Store(to + i * kNativeLanes, v[i]);
  }
};

// Calls f.template operator()<M>(offset) over `width` floats, four vectors at a time where four are
// left: an elementary function of a single vector is all latency.
template <class F>
DEEPPCR_INLINE void ForChunks(int64_t width, const F& f) {
  int64_t at = 0;
  for (; at + 4 * kNativeLanes <= width; at += 4 * kNativeLanes) f.template operator()<4>(at);
  for (; at < width; at += kNativeLanes) f.template operator()<1>(at);
}

// Calls f(offset) for each vector of `width` floats.
template <class F>
DEEPPCR_INLINE void ForVectors(int64_t width, const F& f) {
  for (int64_t at = 0; at < width; at += kNativeLanes) f(at);
}

DEEPPCR_INLINE Wide LoadWide(const float* from) { return Load<kNativeLanes>(from); }
DEEPPCR_INLINE Wide All(float x) { return Broadcast<kNativeLanes>(x); }

// Sum of the lanes, by halves.
template <int N>
DEEPPCR_INLINE float SumLanes(Vec<N> a) {
  if constexpr (N == 1) {
    return a.v[0];
  } else {
    Vec<N / 2> half[2];
    __builtin_memcpy(half, &a.v, sizeof(a.v));
    return SumLanes(half[0] + half[1]);
  }
}

DEEPPCR_INLINE float SquareRoot(float x) { return Sqrt(Broadcast<4>(x)).v[0]; }

DEEPPCR_INLINE float SumOf(const float* x, int64_t width) {
  Wide sum = All(0.0F);
  ForVectors(width, [&](int64_t at) { sum = sum + LoadWide(x + at); });
  return SumLanes(sum);
}

DEEPPCR_INLINE float DotOf(const float* x, const float* y, int64_t width) {
  Wide sum = All(0.0F);
  ForVectors(width, [&](int64_t at) { sum = Fma(LoadWide(x + at), LoadWide(y + at), sum); });
  return SumLanes(sum);
}

// normed = (x - mean) / sqrt(variance + epsilon) over the first `dim` lanes, zero beyond. Two
// passes, because the squares of the differences from the mean do not cancel.
struct Moments {
  float mean, inverse;  // 1 / standard deviation
};
DEEPPCR_INLINE Moments Normalize(const float* x, const float* mask, int64_t dim, int64_t width,
                                 float epsilon, float* normed) {
  const auto size = static_cast<float>(dim);
  const float sum = SumOf(x, width) / size;
  const Wide mean = All(sum);
  Wide squares = All(0.0F);
  ForVectors(width, [&](int64_t at) {
    const Wide centred = And(LoadWide(x + at) - mean, LoadWide(mask + at));
    squares = Fma(centred, centred, squares);
    Store(normed + at, centred);
  });
  const float variance = SumLanes(squares) / size;
  // The second term makes a NaN of a variance that overflowed: zeros would hide it.
  const float inverse = 1.0F / SquareRoot(variance + epsilon) + 0.0F * variance;
  ForVectors(width, [&](int64_t at) { Store(normed + at, LoadWide(normed + at) * All(inverse)); });
  return {sum, inverse};
}

// out = the image of a tangent under Normalize: inverse (t - mean(t) - normed mean(normed t)).
DEEPPCR_INLINE void NormalizeTangent(const float* tangent, const float* normed, const float* mask,
                                     int64_t dim, int64_t width, float inverse, float* out) {
  const auto size = static_cast<float>(dim);
  const Wide mean = All(SumOf(tangent, width) / size);
  const Wide along = All(DotOf(normed, tangent, width) / size);
  ForVectors(width, [&](int64_t at) {
    const Wide rest = FmaNegative(LoadWide(normed + at), along, LoadWide(tangent + at) - mean);
    Store(out + at, And(rest * All(inverse), LoadWide(mask + at)));
  });
}

}  // namespace deeppcr::cpu::DEEPPCR_CPU_ISA

#endif  // DEEPPCR_KERNELS_CPU_DIFFUSION_HIDDEN_VECTORS_H_
