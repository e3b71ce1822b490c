// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CPU_STACK_OUTER_PRODUCTS_H_
#define DEEPPCR_KERNELS_CPU_STACK_OUTER_PRODUCTS_H_

// Gradients of the weights and biases of dense layers: OuterArgs of kernels.h. Every element is one
// sum over the samples in their order, whatever the blocks of samples, rows and layers. (Without
// FMA the columns of whole vectors round twice, and the last cols % 4 once.)

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd/simd.h"

namespace deeppcr::cpu::DEEPPCR_CPU_ISA {

// Sums of a block that stay in registers from sample to sample: half of the registers.
constexpr int kOuterSums = kNativeLanes == 16 ? 16 : 8;

// Rows [i, i + R) and columns [k, k + C * N).
template <int N, int R, int C>
DEEPPCR_INLINE void AddOuterBlock(const OuterArgs& args, int64_t i, int64_t k) {
  const int64_t cols = args.cols;
  float* const to = args.matrix + i * cols + k;
  Vec<N> sum[R][C];
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) sum[r][c] = Load<N>(to + r * cols + c * N);
  for (int64_t b = 0; b < args.samples; ++b) {
    const float* x = args.x[b] + args.x_offset + i;
    Vec<N> y[C];
    for (int c = 0; c < C; ++c) y[c] = InRegister(Load<N>(args.y[b] + args.y_offset + k + c * N));
    for (int r = 0; r < R; ++r)
      for (int c = 0; c < C; ++c) sum[r][c] = Fma(Broadcast<N>(x[r]), y[c], sum[r][c]);
  }
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) Store(to + r * cols + c * N, sum[r][c]);
}

// Rows from i on, R at a time as far as they go, and then half as many.
template <int N, int R, int C>
DEEPPCR_INLINE void AddOuterRows(const OuterArgs& args, int64_t i, int64_t k) {
  for (; i + R <= args.rows; i += R) AddOuterBlock<N, R, C>(args, i, k);
  if constexpr (R > 1) AddOuterRows<N, R / 2, C>(args, i, k);
}

// Columns from k on, as far as C whole vectors at a time go; returns the first one that is left.
template <int N, int C>
DEEPPCR_INLINE int64_t AddOuterColumns(const OuterArgs& args, int64_t k) {
  for (; k + C * N <= args.cols; k += C * N) AddOuterRows<N, kOuterSums / C, C>(args, 0, k);
  return k;
}

// Biases from i on, as far as whole vectors go; returns the first one that is left.
template <int N>
DEEPPCR_INLINE int64_t AddBiases(const OuterArgs& args, int64_t i) {
  for (; i + N <= args.rows; i += N) {
    Vec<N> sum = Load<N>(args.bias + i);
    for (int64_t b = 0; b < args.samples; ++b) sum = sum + Load<N>(args.x[b] + args.x_offset + i);
    Store(args.bias + i, sum);
  }
  return i;
}

inline void AddAllBiases(const OuterArgs& args) {
  int64_t i = AddBiases<kNativeLanes>(args, 0);
  if constexpr (kNativeLanes > 8) i = AddBiases<8>(args, i);
  if constexpr (kNativeLanes > 4) i = AddBiases<4>(args, i);
  for (; i < args.rows; ++i)
    for (int64_t b = 0; b < args.samples; ++b) args.bias[i] += args.x[b][args.x_offset + i];
}

inline void AddOuters(const OuterArgs& args) {
  if (args.bias != nullptr) AddAllBiases(args);
  if (args.matrix == nullptr) return;
  int64_t k = AddOuterColumns<kNativeLanes, 2>(args, 0);
  k = AddOuterColumns<kNativeLanes, 1>(args, k);
  if constexpr (kNativeLanes > 8) k = AddOuterColumns<8, 1>(args, k);
  if constexpr (kNativeLanes > 4) k = AddOuterColumns<4, 1>(args, k);
  for (; k < args.cols; ++k)
    for (int64_t i = 0; i < args.rows; ++i)
      for (int64_t b = 0; b < args.samples; ++b)
        args.matrix[i * args.cols + k] =
            __builtin_fmaf(args.x[b][args.x_offset + i], args.y[b][args.y_offset + k],
                           args.matrix[i * args.cols + k]);
}

}  // namespace deeppcr::cpu::DEEPPCR_CPU_ISA

#endif  // DEEPPCR_KERNELS_CPU_STACK_OUTER_PRODUCTS_H_
