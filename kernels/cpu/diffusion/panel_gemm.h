// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CPU_DIFFUSION_PANEL_GEMM_H_
#define DEEPPCR_KERNELS_CPU_DIFFUSION_PANEL_GEMM_H_

// Products of few rows with a panel-packed matrix. Per output the terms are added in one fixed
// order for any number of rows: the states of a sequential run, of a batch and of an interval have
// the same bits.

#include "kernels/cpu/diffusion/kernels.h"
#include "kernels/cpu/simd/simd.h"

namespace deeppcr::cpu::DEEPPCR_CPU_ISA {

// Shape of the computation of panels of P outputs.
template <int P>
struct PanelShape {
  static constexpr int kLanes = kNativeLanes;
  static constexpr int kVectors = P / kLanes;  // vectors of one panel
  // Partial sums of one output, over every kPartials-th input: a narrow panel has too few outputs
  // to hide the latency of an addition. Part of the definition of the bits.
  static constexpr int kPartials = kVectors >= 4 ? 1 : 4 / kVectors;
  // Many rows: kRows rows x kBlock vectors at a time, as many accumulators as registers allow.
  static constexpr int kRows = kLanes == 4 ? 4 : 6;
  static constexpr int kBlock = (kLanes == 16 ? 4 : 2) / kPartials;
  // One row: all vectors of a panel, or half of them, or two panels: eight accumulators.
  static constexpr int kRowBlock = kVectors < 8 ? kVectors : 8;
  static constexpr bool kPairs = kVectors == 4 && kLanes == 16;
};

template <int A, int V, int N>
DEEPPCR_INLINE Vec<N> SumPartials(const Vec<N> (&sum)[A][V], int v) {
  static_assert(A == 1 || A == 2 || A == 4);
  if constexpr (A == 4) {
    return (sum[0][v] + sum[1][v]) + (sum[2][v] + sum[3][v]);
  } else if constexpr (A == 2) {
    return sum[0][v] + sum[1][v];
  } else {
    return sum[0][v];
  }
}

// R rows x V vectors of each of S consecutive panels, from output `first` of the matrix on.
template <int P, int R, int V, int S>
DEEPPCR_INLINE void PanelBlock(const GemmArgs& g, int64_t first, int64_t row) {
  constexpr int N = PanelShape<P>::kLanes, A = PanelShape<P>::kPartials;
  const int64_t cols = g.layer->cols;
  const float* weights = g.layer->weights + first / P * P * cols + first % P;
  const float* in = g.in + row * g.in_stride;
  const int64_t in_stride = g.in_stride;
  Vec<N> sum[R][A][S * V];
#pragma GCC unroll 8
  for (int v = 0; v < S * V; ++v) {
    const int64_t at = first + v / V * P + v % V * N;
    const Vec<N> start = g.bias == nullptr ? Broadcast<N>(0.0F) : Load<N>(g.bias + at);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int a = 0; a < A; ++a) sum[r][a][v] = a == 0 ? start : Broadcast<N>(0.0F);
  }
  for (int64_t k = 0; k < cols; k += A) {
#pragma GCC unroll 4
    for (int a = 0; a < A; ++a) {
      Vec<N> x[R];
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) x[r] = Broadcast<N>(in[r * in_stride + k + a]);
#pragma GCC unroll 8
      for (int v = 0; v < S * V; ++v) {
        const Vec<N> w = Load<N>(weights + v / V * P * cols + (k + a) * P + v % V * N);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) sum[r][a][v] = Fma(w, x[r], sum[r][a][v]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < S * V; ++v)
      Store(g.out + (row + r) * g.out_stride + first + v / V * P + v % V * N,
            SumPartials(sum[r], v));
}

template <int P>
DEEPPCR_INLINE void OneRow(const GemmArgs& g, int64_t row) {
  constexpr int V = PanelShape<P>::kRowBlock;
  int64_t first = 0;
  if constexpr (PanelShape<P>::kPairs) {
    for (; first + 2 * P <= g.layer->width; first += 2 * P) PanelBlock<P, 1, V, 2>(g, first, row);
  }
  for (; first < g.layer->width; first += V * PanelShape<P>::kLanes)
    PanelBlock<P, 1, V, 1>(g, first, row);
}

// Rows from `row` on, R at a time and the rest in smaller groups, of the outputs of one block.
template <int P, int R>
DEEPPCR_INLINE void BlockRows(const GemmArgs& g, int64_t first, int64_t row, int64_t end) {
  if constexpr (R > 1) {
    constexpr int V = PanelShape<P>::kBlock;
#pragma GCC unroll 1
    for (; row + R <= end; row += R) PanelBlock<P, R, V, 1>(g, first, row);
    BlockRows<P, R - 1>(g, first, row, end);
  }
}

// Multiplies panel by panel: a panel stays in the first cache level while all rows pass by. A last
// row that is left alone is multiplied as a single row.
template <int P>
void GemmOf(const GemmArgs& g) {
  constexpr int V = PanelShape<P>::kBlock, R = PanelShape<P>::kRows;
  const int64_t grouped = g.count % R == 1 ? g.count - 1 : g.count;
  if (grouped > 0) {
    for (int64_t first = 0; first < g.layer->width; first += V * PanelShape<P>::kLanes)
      BlockRows<P, R>(g, first, 0, grouped);
  }
  if (grouped < g.count) OneRow<P>(g, g.count - 1);
}

inline void Gemm(const GemmArgs& g) {
  switch (g.layer->panel) {
    case 16:
      return GemmOf<16>(g);
    case 32:
      return GemmOf<32>(g);
    default:
      return GemmOf<64>(g);
  }
}

}  // namespace deeppcr::cpu::DEEPPCR_CPU_ISA

#endif  // DEEPPCR_KERNELS_CPU_DIFFUSION_PANEL_GEMM_H_
