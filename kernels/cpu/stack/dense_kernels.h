// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CPU_STACK_DENSE_KERNELS_H_
#define DEEPPCR_KERNELS_CPU_STACK_DENSE_KERNELS_H_

// Dense building blocks. Variants tried for the primal step, ns per layer at W = 16 with AVX-512
// are in tests/bench/results/NOTES.md.

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd/activations.h"

namespace deeppcr::cpu::DEEPPCR_CPU_ISA {

// The shape of a width at compile time. Width 0 stands for any multiple of 32 known at run time
// only.
template <int W>
struct Shape {
  static constexpr int kWidth = W;
  static constexpr int kLanes = W == 0 ? kNativeLanes : (W < kNativeLanes ? W : kNativeLanes);
  // Vectors of one column handled at a time, so that accumulators stay in registers.
  static constexpr int kVectors = W == 0 ? 2 : (W / kLanes > 4) ? 4 : W / kLanes;
  // Columns handled together.
  static constexpr int kTogether =
      kNativeLanes == 16 ? (kVectors == 1 ? 8 : 4) : (kVectors <= 2 ? 4 : 2);
  // Partial sums of the primal step, which shorten the dependent chain of a narrow layer. They are
  // part of the definition of the step's bits, hence one constant for every caller.
  static constexpr int kPartials = W == 0 || W / kLanes >= 4 ? 1 : 4;
  // Samples that share each load of a weight in the primal step, so that their partial sums stay in
  // registers.
  static constexpr int kSharing = kVectors <= 2 ? 4 : 2;
  // Sums that fit into registers beside a weight and a state.
  static constexpr int kMostSums = kNativeLanes == 16 ? 28 : 12;
  // Three samples take longer than four where four share the weights in registers, and six of one
  // vector each take longer than eight (measured on Zen 4). For states that are replaced in place.
  static constexpr bool kPads = kNativeLanes > 4 && W > 0 && kVectors* kLanes == W;
  static constexpr bool kPadsEights = kPads && kVectors == 1;
  // A narrow state stays in registers from step to step. Its first lanes are broadcast from there,
  // as a value can only be loaded some ten cycles after its store, which is soon enough for the
  // other lanes. The bits are the same.
  static constexpr bool kInRegisters = W > 0 && W <= 16;
  static constexpr int kLanesFromRegisters = 8;
};

template <int W>
DEEPPCR_INLINE int64_t Width(int64_t width) {
  return W == 0 ? width : W;
}

// Copies a state of D floats; one of `from` and `to` may have W. What pads is neither read nor
// written.
template <int W>
DEEPPCR_INLINE void CopyState(const LayersView& layers, const float* from, float* to) {
  constexpr int N = Shape<W>::kLanes;
  const int64_t width = Width<W>(layers.width);
  if (layers.state_dim == width) {
    for (int64_t at = 0; at < width; at += N) Store(to + at, Load<N>(from + at));
  } else {
    for (int64_t i = 0; i < layers.state_dim; ++i) to[i] = from[i];
  }
}

// Adds partial sums, always in this order: part of the definition of the primal step's bits.
template <int A, int V, int N>
DEEPPCR_INLINE void AddPartials(const Vec<N> (&sum)[A][V], Vec<N>* out) {
  static_assert(A == 1 || A == 4);
  for (int v = 0; v < V; ++v) {
    if constexpr (A == 4) {
      out[v] = (sum[0][v] + sum[1][v]) + (sum[2][v] + sum[3][v]);
    } else {
      out[v] = sum[0][v];
    }
  }
}

// PreActivation of a narrow layer for some samples, one partial sum after another: the sums of all
// samples stay in registers.
template <int W, int B>
DEEPPCR_INLINE void PreActivationInTurns(const LayersView& layers, int64_t step, const float* in,
                                         Vec<Shape<W>::kLanes> (&out)[B * Shape<W>::kVectors]) {
  constexpr int N = Shape<W>::kLanes, V = Shape<W>::kVectors;
  const float* weights = layers.weights + step * W * W;
  const float* bias = layers.biases + step * W;
  Vec<N> half[2][B * V];
#pragma GCC unroll 4
  for (int a = 0; a < 4; ++a) {
    Vec<N> sum[B * V];
#pragma GCC unroll 16
    for (int i = 0; i < B * V; ++i)
      sum[i] = a == 0 ? Load<N>(bias + i % V * N) : Broadcast<N>(0.0F);
#pragma GCC unroll 8
    for (int64_t k = a; k < W; k += 4) {
      Vec<N> column[V];
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) column[v] = InRegister(Load<N>(weights + k * W + v * N));
#pragma GCC unroll 8
      for (int b = 0; b < B; ++b) {
        const Vec<N> x = Broadcast<N>(in[b * W + k]);
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) sum[b * V + v] = Fma(column[v], x, sum[b * V + v]);
      }
    }
#pragma GCC unroll 16
    for (int i = 0; i < B * V; ++i) half[a / 2][i] = a % 2 == 0 ? sum[i] : half[a / 2][i] + sum[i];
  }
#pragma GCC unroll 16
  for (int i = 0; i < B * V; ++i) out[i] = half[0][i] + half[1][i];
}

// One layer for B samples: pre-activations of `kVectors` vectors from offset `first`, one sample
// after another.
//   in [B, W] is z_{l-1}.
template <int W, int B>
DEEPPCR_INLINE void PreActivation(const LayersView& layers, int64_t step, int64_t first,
                                  const float* in,
                                  Vec<Shape<W>::kLanes> (&out)[B * Shape<W>::kVectors]) {
  constexpr int N = Shape<W>::kLanes, V = Shape<W>::kVectors, A = Shape<W>::kPartials;
  if constexpr (A == 4 && B > 1 && B * A * V > Shape<W>::kMostSums) {
    PreActivationInTurns<W, B>(layers, step, in, out);
    return;
  }
  const int64_t width = Width<W>(layers.width);
  const float* weights = layers.weights + step * width * width + first;
  const float* bias = layers.biases + step * width + first;
  Vec<N> sum[B][A][V];
  for (int b = 0; b < B; ++b)
    for (int a = 0; a < A; ++a)
      for (int v = 0; v < V; ++v)
        sum[b][a][v] = a == 0 ? Load<N>(bias + v * N) : Broadcast<N>(0.0F);
#pragma GCC unroll 16
  for (int64_t k = 0; k < width; k += A) {
#pragma GCC unroll 4
    for (int a = 0; a < A; ++a) {
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) {
        const Vec<N> column = Load<N>(weights + (k + a) * width + v * N);
#pragma GCC unroll 8
        for (int b = 0; b < B; ++b)
          sum[b][a][v] = Fma(column, Broadcast<N>(in[b * width + k + a]), sum[b][a][v]);
      }
    }
  }
#pragma GCC unroll 8
  for (int b = 0; b < B; ++b) AddPartials(sum[b], out + b * V);
}

// PreActivation for one sample whose state is also in registers: `z` holds the floats at `in`.
template <int W>
DEEPPCR_INLINE void PreActivationInRegisters(const LayersView& layers, int64_t step,
                                             const float* in,
                                             const Vec<Shape<W>::kLanes> (&z)[Shape<W>::kVectors],
                                             Vec<Shape<W>::kLanes> (&out)[Shape<W>::kVectors]) {
  constexpr int N = Shape<W>::kLanes, V = Shape<W>::kVectors, A = Shape<W>::kPartials;
  const float* weights = layers.weights + step * W * W;
  const float* bias = layers.biases + step * W;
  Vec<N> sum[A][V];
  for (int a = 0; a < A; ++a)
    for (int v = 0; v < V; ++v) sum[a][v] = a == 0 ? Load<N>(bias + v * N) : Broadcast<N>(0.0F);
#pragma GCC unroll 16
  for (int k = 0; k < W; ++k) {
    const Vec<N> lane =
        k < Shape<W>::kLanesFromRegisters ? BroadcastLane(z[k / N], k % N) : Broadcast<N>(in[k]);
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v)
      sum[k % A][v] = Fma(Load<N>(weights + k * W + v * N), lane, sum[k % A][v]);
  }
  AddPartials(sum, out);
}

// What a step does after its pre-activations, read at run time. A branch for each is always
// predicted, but keeps the compiler from moving one sample's instructions into another's.
struct StepRuleOfLayers {
  static constexpr bool kKeepsSides = false;  // see Traces
  template <int M, int N>
  static DEEPPCR_INLINE void Activate(const LayersView& layers, Vec<N> (&x)[M]) {
    DEEPPCR_CPU_ISA::Activate(layers.activation, x);
  }
  template <int M, int N>
  static DEEPPCR_INLINE void Differentiate(const LayersView& layers, Vec<N> (&x)[M]) {
    DEEPPCR_CPU_ISA::Differentiate(layers.activation, x);
  }
  static DEEPPCR_INLINE bool Residual(const LayersView& layers) { return layers.residual; }
  // Two groups of four of two vectors each leave the weights sooner than a group of eight does
  // (measured on Zen 4: 6.7 ns against 7.9 for a step of a sample).
  template <int W>
  static constexpr int kGroup =
      Shape<W>::kPartials == 4 && Shape<W>::kVectors == 2 ? 4 : kSequentialGroup;
};

// z + scale relu(a), known at compile time: the steps of deep ResNets. Eight samples in two fours,
// one of which computes while the other's states are on their way from a store to a load.
struct ReluResidualStep {
  static constexpr bool kKeepsSides = false;
  static DEEPPCR_INLINE bool Describes(const LayersView& layers) {
    return layers.residual && layers.activation == Activation::kRelu;
  }
  template <int M, int N>
  static DEEPPCR_INLINE void Activate(const LayersView&, Vec<N> (&x)[M]) {
    DEEPPCR_CPU_ISA::Activate(Activation::kRelu, x);
  }
  template <int M, int N>
  static DEEPPCR_INLINE void Differentiate(const LayersView&, Vec<N> (&x)[M]) {
    DEEPPCR_CPU_ISA::Differentiate(Activation::kRelu, x);
  }
  static DEEPPCR_INLINE bool Residual(const LayersView&) { return true; }
  template <int W>
  static constexpr int kGroup = kSequentialGroup;
};

template <class Rule>
struct KeepingSides : Rule {
  static constexpr bool kKeepsSides = true;
};

// z_l of B samples from z_{l-1} and the pre-activations x, into `out` and `x`: THE primal step,
// shared by the sequential and the iterative solvers, so that their states can agree in every bit.
//   in, out [B, W]
template <int W, int B, class Rule>
DEEPPCR_INLINE void FinishStep(const LayersView& layers, int64_t first, const float* in,
                               Vec<Shape<W>::kLanes> (&x)[B * Shape<W>::kVectors], float* out) {
  constexpr int N = Shape<W>::kLanes, V = Shape<W>::kVectors;
  const int64_t width = Width<W>(layers.width);
  // Taken before any store, behind which the compiler would have to take them again.
  const Vec<N> scale = Broadcast<N>(layers.scale);
  Vec<N> mask[V];
#pragma GCC unroll 4
  for (int v = 0; v < V; ++v) mask[v] = Load<N>(layers.lane_mask + first + v * N);
  Rule::Activate(layers, x);
#pragma GCC unroll 16
  for (int i = 0; i < B * V; ++i) {
    const int64_t at = i / V * width + first + i % V * N;
    if (Rule::Residual(layers)) x[i] = Fma(scale, x[i], Load<N>(in + at));
    x[i] = And(x[i], mask[i % V]);
    Store(out + at, x[i]);
  }
}

// dz_l/da of the branch for B samples: scale * act'(a), zero in the padding. x, one sample after
// another, is lost.
//   slopes [B, W]
template <int W, int B, class Rule>
DEEPPCR_INLINE void FinishSlopes(const LayersView& layers, int64_t first,
                                 Vec<Shape<W>::kLanes> (&x)[B * Shape<W>::kVectors],
                                 float* slopes) {
  constexpr int N = Shape<W>::kLanes, V = Shape<W>::kVectors;
  const int64_t width = Width<W>(layers.width);
  Rule::Differentiate(layers, x);
  const Vec<N> scale = Broadcast<N>(Rule::Residual(layers) ? layers.scale : 1.0F);
  Vec<N> mask[V];
#pragma GCC unroll 4
  for (int v = 0; v < V; ++v) mask[v] = Load<N>(layers.lane_mask + first + v * N);
#pragma GCC unroll 16
  for (int i = 0; i < B * V; ++i)
    Store(slopes + i / V * width + first + i % V * N, And(scale * x[i], mask[i % V]));
}

// out_j = finish(j, offset, M in_j) for `count` columns; finish combines the product with the terms
// that the caller adds. `out` must not overlap `in`. B columns at a time share each load of M.
template <int W, int B, class Finish>
DEEPPCR_INLINE void ApplyBlock(const float* matrix, int64_t width, int64_t inner, const float* in,
                               int64_t in_stride, int64_t column, float* out, int64_t out_stride,
                               const Finish& finish) {
  constexpr int N = Shape<W>::kLanes, V = Shape<W>::kVectors;
  for (int64_t first = 0; first < width; first += V * N) {
    Vec<N> sum[B][V];
    for (int b = 0; b < B; ++b)
      for (int v = 0; v < V; ++v) sum[b][v] = Broadcast<N>(0.0F);
    for (int64_t k = 0; k < inner; ++k) {
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) {
        const Vec<N> m = Load<N>(matrix + k * width + first + v * N);
#pragma GCC unroll 8
        for (int b = 0; b < B; ++b)
          sum[b][v] = Fma(m, Broadcast<N>(in[(column + b) * in_stride + k]), sum[b][v]);
      }
    }
    for (int b = 0; b < B; ++b)
      for (int v = 0; v < V; ++v) {
        const int64_t at = first + v * N;
        Store(out + (column + b) * out_stride + at, finish(column + b, at, sum[b][v]));
      }
  }
}

template <int W, class Finish>
DEEPPCR_INLINE void ApplyColumns(const float* matrix, int64_t width, int64_t inner, const float* in,
                                 int64_t in_stride, float* out, int64_t out_stride, int64_t count,
                                 const Finish& finish) {
  constexpr int B = Shape<W>::kTogether;
  int64_t j = 0;
  for (; j + B <= count; j += B)
    ApplyBlock<W, B>(matrix, width, inner, in, in_stride, j, out, out_stride, finish);
  for (; j < count; ++j)
    ApplyBlock<W, 1>(matrix, width, inner, in, in_stride, j, out, out_stride, finish);
}

}  // namespace deeppcr::cpu::DEEPPCR_CPU_ISA

#endif  // DEEPPCR_KERNELS_CPU_STACK_DENSE_KERNELS_H_
