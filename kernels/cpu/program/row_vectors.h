// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CPU_PROGRAM_ROW_VECTORS_H_
#define DEEPPCR_KERNELS_CPU_PROGRAM_ROW_VECTORS_H_

// Loops over one row, and its sums, always in the same order.

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

DEEPPCR_INLINE float DotOf(const float* x, const float* y, int64_t width) {
  Wide sum = All(0.0F);
  ForVectors(width, [&](int64_t at) { sum = Fma(LoadWide(x + at), LoadWide(y + at), sum); });
  return SumLanes(sum);
}

}  // namespace deeppcr::cpu::DEEPPCR_CPU_ISA

#endif  // DEEPPCR_KERNELS_CPU_PROGRAM_ROW_VECTORS_H_
