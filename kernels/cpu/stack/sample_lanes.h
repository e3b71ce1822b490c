// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CPU_STACK_SAMPLE_LANES_H_
#define DEEPPCR_KERNELS_CPU_STACK_SAMPLE_LANES_H_

// The sequential mode of a narrow stack for many samples, one in each lane: no unit of a step waits
// for what another has stored, as a sample's own units do that are lanes of one vector. Each sample
// has the bits that it has alone.

#include "kernels/cpu/stack/column_lanes.h"

namespace deeppcr::cpu::DEEPPCR_CPU_ISA {

template <int W>
struct SampleLanes {
  static constexpr int kLanes = kNativeLanes;
  // The states of all lanes and the partial sums of kUnits units fit into registers.
  static constexpr bool kOffered = ColumnLanes<W>::kOffered;
  static constexpr int kUnits = 2;  // divides W
  // Fewer samples are through sooner as vectors of units (measured on Sapphire Rapids).
  static constexpr int kLeast = W == 16 ? 13 : W == 8 ? 9 : 5;

  // One step: units from 0 on, of which those of the padding stay zero.
  //   block [W, kLanes] is z_{l-1}, and then z_l.
  template <class Rule>
  static DEEPPCR_INLINE void Step(const LayersView& layers, int64_t step, float* block) {
    constexpr int N = kLanes, A = Shape<W>::kPartials;
    const float* weights = layers.weights + step * W * W;
    const float* bias = layers.biases + step * W;
    const Vec<N> scale = Broadcast<N>(layers.scale);
    Vec<N> z[W];
#pragma GCC unroll 16
    for (int k = 0; k < W; ++k) z[k] = Load<N>(block + k * N);
#pragma GCC unroll 1
    for (int64_t first = 0; first < layers.state_dim; first += kUnits) {
      Vec<N> sum[A][kUnits];
#pragma GCC unroll 4
      for (int a = 0; a < A; ++a)
        for (int u = 0; u < kUnits; ++u) sum[a][u] = Broadcast<N>(a == 0 ? bias[first + u] : 0.0F);
#pragma GCC unroll 16
      for (int k = 0; k < W; ++k) {
#pragma GCC unroll 4
        for (int u = 0; u < kUnits; ++u)
          sum[k % A][u] = Fma(Broadcast<N>(weights[k * W + first + u]), z[k], sum[k % A][u]);
      }
      Vec<N> x[kUnits];
      AddPartials(sum, x);
      Rule::Activate(layers, x);
#pragma GCC unroll 4
      for (int u = 0; u < kUnits; ++u) {
        float* unit = block + (first + u) * N;
        if (Rule::Residual(layers)) x[u] = Fma(scale, x[u], Load<N>(unit));
        Store(unit, x[u]);
      }
    }
    if (layers.state_dim % kUnits != 0) Store(block + layers.state_dim * N, Broadcast<N>(0.0F));
  }

  // Takes n <= kLanes samples through steps (begin, end].
  template <class Rule>
  __attribute__((noinline)) static int64_t Advance(const LayersView& layers, float* states,
                                                   int32_t n, int64_t begin, int64_t end) {
    alignas(64) float rows[kLanes * W];
    alignas(64) float block[W * kLanes];
    // Spare lanes are copies of the first.
    for (int r = 0; r < kLanes; ++r)
      __builtin_memcpy(rows + r * W, states + (r < n ? r : 0) * W, W * sizeof(float));
    ColumnLanes<W>::FromRows(rows, block);
    for (int64_t l = begin; l < end; ++l) Step<Rule>(layers, l, block);
    ColumnLanes<W>::ToRows(block, rows);
    __builtin_memcpy(states, rows, n * W * sizeof(float));
    return end - begin;
  }
};

}  // namespace deeppcr::cpu::DEEPPCR_CPU_ISA

#endif  // DEEPPCR_KERNELS_CPU_STACK_SAMPLE_LANES_H_
