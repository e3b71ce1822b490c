// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CPU_STACK_COLUMN_SUMS_H_
#define DEEPPCR_KERNELS_CPU_STACK_COLUMN_SUMS_H_

// The transpose of a narrow layer times one vector, from the weights as they lie: a vector holds
// four weights of each of some columns, the partial sums of each column lie side by side, and the
// bits are those of PreActivation with a transposed layer. Another copy of the weights would not
// fit into the second cache beside the first.

#include "kernels/cpu/stack/dense_kernels.h"

namespace deeppcr::cpu::DEEPPCR_CPU_ISA {

template <int W>
struct ColumnSums {
  static constexpr int N = Shape<W>::kLanes, V = Shape<W>::kVectors;
  static constexpr bool kOffered = Shape<W>::kInRegisters && Shape<W>::kPartials == 4;

  // out_k = bias_k + sum_i W_ik x_i; `weights` has column k at k W. No bias: zeros.
  template <bool kHasBias>
  static DEEPPCR_INLINE void Multiply(const float* weights, const float* bias, const Vec<N> (&x)[V],
                                      Vec<N> (&out)[V]) {
    Vec<N> fours[W / 4];
#pragma GCC unroll 4
    for (int t = 0; t < W / 4; ++t) fours[t] = RepeatFour(x[4 * t / N], 4 * t % N / 4);
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      Vec<N> sums[4];
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        const float* const columns = weights + (v * N + j) * W;
        sums[j] = kHasBias ? FirstOfFour(Load<N>(bias + v * N), j) : Broadcast<N>(0.0F);
#pragma GCC unroll 4
        for (int t = 0; t < W / 4; ++t)
          sums[j] = Fma(LoadFours<N, 4 * W>(columns + 4 * t), fours[t], sums[j]);
      }
      out[v] = AddPairs(AddPairs(sums[0], sums[1]), AddPairs(sums[2], sums[3]));
    }
  }
};

}  // namespace deeppcr::cpu::DEEPPCR_CPU_ISA

#endif  // DEEPPCR_KERNELS_CPU_STACK_COLUMN_SUMS_H_
