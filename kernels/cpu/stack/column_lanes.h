// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CPU_STACK_COLUMN_LANES_H_
#define DEEPPCR_KERNELS_CPU_STACK_COLUMN_LANES_H_

// Many cotangents of one sample of a narrow stack, one in each lane: a block of cotangents is
// [W, lanes], so that their products with one slope or one weight are one vector, all of whose
// operands but the weight stay in registers. Each cotangent has the bits that it has alone.

#include "kernels/cpu/stack/dense_kernels.h"

namespace deeppcr::cpu::DEEPPCR_CPU_ISA {

template <int W>
struct ColumnLanes {
  static constexpr int kLanes = kNativeLanes;
  // The deltas of a block and the partial sums fit into registers.
  static constexpr bool kOffered = W > 0 && W <= 16 && kNativeLanes == 16;

  // Blocks [kLanes, W] of rows to blocks [W, kLanes], and back.
  static DEEPPCR_INLINE void FromRows(const float* rows, float* block) {
    for (int r = 0; r < kLanes; ++r)
      for (int i = 0; i < W; ++i) block[i * kLanes + r] = rows[r * W + i];
  }
  static DEEPPCR_INLINE void ToRows(const float* block, float* rows) {
    for (int r = 0; r < kLanes; ++r)
      for (int i = 0; i < W; ++i) rows[r * W + i] = block[i * kLanes + r];
  }

  // One layer back: g_k = sum_i W_ik slope_i g_i, plus g_k of a residual stack; the terms in the
  // order in which PreActivation adds those of a transposed layer. `weights` has column k at k W.
  static DEEPPCR_INLINE void Back(const float* weights, const float* slopes, bool residual,
                                  float* g) {
    constexpr int N = kLanes, A = Shape<W>::kPartials;
    Vec<N> delta[W];
#pragma GCC unroll 16
    for (int i = 0; i < W; ++i) delta[i] = Broadcast<N>(slopes[i]) * Load<N>(g + i * N);
    for (int k = 0; k < W; ++k) {
      Vec<N> sum[A][1];
#pragma GCC unroll 4
      for (int a = 0; a < A; ++a) sum[a][0] = Broadcast<N>(0.0F);
#pragma GCC unroll 16
      for (int i = 0; i < W; ++i)
        sum[i % A][0] = Fma(Broadcast<N>(weights[k * W + i]), delta[i], sum[i % A][0]);
      Vec<N> x[1];
      AddPartials(sum, x);
      Store(g + k * N, residual ? Load<N>(g + k * N) + x[0] : x[0]);
    }
  }
};

}  // namespace deeppcr::cpu::DEEPPCR_CPU_ISA

#endif  // DEEPPCR_KERNELS_CPU_STACK_COLUMN_LANES_H_
