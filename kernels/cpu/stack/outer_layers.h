// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CPU_STACK_OUTER_LAYERS_H_
#define DEEPPCR_KERNELS_CPU_STACK_OUTER_LAYERS_H_

// Layers before and behind the recurrence: each output is one sum in double, its terms in their
// order. Products of two floats are exact in double, so that fusing them changes no bit.

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd/doubles.h"

namespace deeppcr::cpu::DEEPPCR_CPU_ISA {

// Outputs from `first` on, as many as V vectors hold at a time, as far as they go; returns the
// first one that is left.
template <int V>
DEEPPCR_INLINE int64_t SumColumnsBy(const OuterLayerArgs& args, int64_t first) {
  const auto load = [](const float* p) {
    Floats floats;
    __builtin_memcpy(&floats, p, sizeof(floats));
    return __builtin_convertvector(floats, Doubles);
  };
  for (; first + V * kDoubles <= args.width; first += V * kDoubles) {
    Doubles sum[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) sum[v] = load(args.bias + first + v * kDoubles);
    for (int64_t k = 0; k < args.cols; ++k) {
      const float* const column = args.weights + k * args.width + first;
      const Doubles x = AllDoubles(args.in[k]);
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) sum[v] = FmaOf(load(column + v * kDoubles), x, sum[v]);
    }
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      const Floats rounded = __builtin_convertvector(sum[v], Floats);
      __builtin_memcpy(args.out + first + v * kDoubles, &rounded, sizeof(rounded));
    }
  }
  return first;
}

inline void SumColumns(const OuterLayerArgs& args) {
  int64_t first = SumColumnsBy<4>(args, 0);
  first = SumColumnsBy<2>(args, first);
  first = SumColumnsBy<1>(args, first);
  for (; first < args.width; ++first) {
    double sum = args.bias[first];
    for (int64_t k = 0; k < args.cols; ++k)
      sum += double{args.weights[k * args.width + first]} * args.in[k];
    args.out[first] = static_cast<float>(sum);
  }
}

}  // namespace deeppcr::cpu::DEEPPCR_CPU_ISA

#endif  // DEEPPCR_KERNELS_CPU_STACK_OUTER_LAYERS_H_
