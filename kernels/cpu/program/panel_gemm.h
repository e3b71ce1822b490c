// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CPU_PROGRAM_PANEL_GEMM_H_
#define DEEPPCR_KERNELS_CPU_PROGRAM_PANEL_GEMM_H_

// Products of few rows with a panel-packed matrix. Per output the terms are added in one fixed
// order for any number of rows: the states of a sequential run, of a batch and of an interval have
// the same bits.

#include "kernels/cpu/program/kernels.h"
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
  // Many rows: kRows rows x kBlock vectors at a time, as many accumulators as registers allow, and
  // two vectors where there are that many, as each row's input is loaded for all of them.
  static constexpr int kRows = kLanes == 4 ? 4 : kLanes == 8 ? 6 / kPartials : 6;
  static constexpr int kBlock = kLanes == 16 ? 4 / kPartials : 2;
  // One row: all vectors of a panel, or half of them, or two panels: eight accumulators.
  static constexpr int kRowBlock = kVectors < 8 ? kVectors : 8;
  static constexpr bool kPairs = kVectors == 4 && kLanes == 16;
  static constexpr int kBlocks = P / (kBlock * kLanes);  // blocks of a panel, side by side
  // A panel of more than kInputsAtOnce inputs is multiplied by kInputs at a time, if it has no
  // partial sums: always where blocks are narrower than the panel, each of which skips what the
  // hardware's prefetcher would fetch, and else where the caches ask for it.
  static constexpr bool kMayHaveParts = kPartials == 1, kHasParts = kMayHaveParts && kBlocks > 1;
  static constexpr int64_t kInputs = 64, kInputsAtOnce = 128;
};

inline constexpr int64_t kLineFloats = 16;

// Blocks of rows, of which each takes the weights once.
template <int P>
constexpr int64_t RowBlocks(int64_t rows) {
  constexpr int64_t kRows = PanelShape<P>::kRows;
  return (rows + kRows - 1) / kRows;
}

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

// Inputs [begin, end) of a product: the sums of those before wait in the output.
struct Inputs {
  int64_t begin, end;
};

// R rows x V vectors of each of S consecutive panels, from output `first` of the matrix on. It
// prefetches kLines lines with each input, of share `share` of what as many inputs have behind
// `inputs`.
template <int P, int R, int V, int S, int kLines = 0>
DEEPPCR_INLINE void PanelBlock(const GemmArgs& g, int64_t first, int64_t row, Inputs inputs,
                               int64_t share = 0) {
  constexpr int N = PanelShape<P>::kLanes, A = PanelShape<P>::kPartials;
  const int64_t cols = g.layer->cols;
  const float* weights = g.layer->weights + first / P * P * cols + first % P;
  const float* in = g.in + row * g.in_stride;
  const int64_t in_stride = g.in_stride, out_stride = g.out_stride;
  float* const out = g.out + row * out_stride + first;
  const float* ahead = weights - first % P + inputs.end * P +
                       share * (inputs.end - inputs.begin) * kLines * kLineFloats;
  Vec<N> sum[R][A][S * V];
#pragma GCC unroll 8
  for (int v = 0; v < S * V; ++v) {
    const int64_t at = first + v / V * P + v % V * N;
    const Vec<N> start = g.bias == nullptr ? Broadcast<N>(0.0F) : Load<N>(g.bias + at);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int a = 0; a < A; ++a) sum[r][a][v] = a == 0 ? start : Broadcast<N>(0.0F);
      if (inputs.begin > 0) sum[r][0][v] = Load<N>(out + r * out_stride + v / V * P + v % V * N);
    }
  }
  // Inputs of one turn of the loop, which divide those that there are.
  constexpr int kTurn = R > 1 && kLines == 0 && A < 4 ? 2 * A : A;
  for (int64_t k = inputs.begin; k < inputs.end; k += kTurn) {
#pragma GCC unroll 4
    for (int i = 0; i < kTurn; ++i) {
      // Beside the sums there is room for the weights and one input.
      Vec<N> w[S * V];
#pragma GCC unroll 4
      for (int line = 0; line < kLines; ++line) __builtin_prefetch(ahead + line * kLineFloats);
      ahead += kLines * kLineFloats;
#pragma GCC unroll 8
      for (int v = 0; v < S * V; ++v)
        w[v] = Load<N>(weights + v / V * P * cols + (k + i) * P + v % V * N);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const Vec<N> x = Broadcast<N>(in[r * in_stride + k + i]);
#pragma GCC unroll 8
        for (int v = 0; v < S * V; ++v) sum[r][i % A][v] = Fma(w[v], x, sum[r][i % A][v]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < S * V; ++v)
      Store(out + r * out_stride + v / V * P + v % V * N, SumPartials(sum[r], v));
}

// Outputs [begin, end) of a product, whole panels.
struct Outputs {
  int64_t begin, end;
};

template <int P>
DEEPPCR_INLINE void OneRow(const GemmArgs& g, int64_t row, Outputs outputs) {
  constexpr int V = PanelShape<P>::kRowBlock;
  const Inputs all = {0, g.layer->cols};
  int64_t first = outputs.begin;
  if constexpr (PanelShape<P>::kPairs) {
    for (; first + 2 * P <= outputs.end; first += 2 * P) PanelBlock<P, 1, V, 2>(g, first, row, all);
  }
  for (; first < outputs.end; first += V * PanelShape<P>::kLanes)
    PanelBlock<P, 1, V, 1>(g, first, row, all);
}

// `rows` rows from `row` on, 2 <= rows <= R, of the outputs of one block.
template <int P, int R, int kLines>
DEEPPCR_INLINE void BlockRows(const GemmArgs& g, int64_t first, int64_t row, int64_t rows,
                              Inputs inputs, int64_t share) {
  if constexpr (R > 2) {
    if (rows < R) return BlockRows<P, R - 1, kLines>(g, first, row, rows, inputs, share);
  }
  PanelBlock<P, R, PanelShape<P>::kBlock, 1, kLines>(g, first, row, inputs, share);
}

// All rows by some inputs of a panel, in blocks as equal as can be: small ones take as long as
// large ones. They prefetch the inputs behind, kLines lines with each input, in turns: where there
// are many blocks, a line more than once.
template <int P, int kLines>
DEEPPCR_INLINE void PanelRows(const GemmArgs& g, int64_t panel, Inputs inputs) {
  using Shape = PanelShape<P>;
  constexpr int64_t kShares = kLines == 0 ? 1 : P / kLineFloats / kLines;
  const int64_t blocks = RowBlocks<P>(g.count), least = g.count / blocks;
  // The last ones have a row more.
  const int64_t short_blocks = blocks - g.count % blocks;
  for (int64_t i = 0, row = 0, rows; i < blocks; ++i, row += rows) {
    rows = least + (i >= short_blocks ? 1 : 0);
    for (int64_t k = 0; k < Shape::kBlocks; ++k) {
      const int64_t first = panel + k * Shape::kBlock * Shape::kLanes;
      BlockRows<P, Shape::kRows, kLines>(g, first, row, rows, inputs,
                                         (i * Shape::kBlocks + k) % kShares);
    }
  }
}

// Multiplies panel by panel, or part by part, each of which stays in the first-level cache while
// all blocks pass by.
template <int P>
void GemmOf(const GemmArgs& g) {
  using Shape = PanelShape<P>;
  const Outputs outputs = {g.begin_panel * P, g.end_panel > 0 ? g.end_panel * P : g.layer->width};
  if (g.count == 1) return OneRow<P>(g, 0, outputs);
  const int64_t cols = g.layer->cols, blocks = RowBlocks<P>(g.count) * Shape::kBlocks;
  const bool in_parts = cols > Shape::kInputsAtOnce && blocks > 1 &&
                        (Shape::kHasParts || (Shape::kMayHaveParts && g.layer->in_parts));
  for (int64_t panel = outputs.begin; panel < outputs.end; panel += P) {
    if (!in_parts) {
      PanelRows<P, 0>(g, panel, {0, cols});
      continue;
    }
    for (int64_t k = 0; k < cols; k += Shape::kInputs) {
      const Inputs inputs = {k, k + Shape::kInputs < cols ? k + Shape::kInputs : cols};
      // So that all blocks together prefetch all lines.
      constexpr int kLines = P / kLineFloats;
      if (blocks >= kLines) {
        PanelRows<P, 1>(g, panel, inputs);
      } else {
        PanelRows<P, (kLines > 2 ? 2 : 1)>(g, panel, inputs);
      }
    }
  }
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

// A share of the panels of a product.
inline void GemmShare(void* product, int64_t share, int64_t shares) {
  GemmArgs g = *static_cast<const GemmArgs*>(product);
  const int64_t panels = g.layer->width / g.layer->panel;
  g.begin_panel = share * panels / shares;
  g.end_panel = (share + 1) * panels / shares;
  if (g.begin_panel < g.end_panel) Gemm(g);
}

// A product by one thread or, where it is large enough, by those that share products.
inline void SharedGemm(const Sharing* sharing, const GemmArgs& args) {
  const PanelView& layer = *args.layer;
  if (sharing == nullptr || layer.width * layer.cols * args.count < kSharedProduct)
    return Gemm(args);
  GemmArgs product = args;
  sharing->share(sharing->team, &GemmShare, &product, layer.width / layer.panel);
}

}  // namespace deeppcr::cpu::DEEPPCR_CPU_ISA

#endif  // DEEPPCR_KERNELS_CPU_PROGRAM_PANEL_GEMM_H_
