// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CPU_STACK_RETREAT_H_
#define DEEPPCR_KERNELS_CPU_STACK_RETREAT_H_

// The backward pass of dense stacks. With the pre-activations a_l = W_l z_{l-1} + b_l,
//
//   delta_l = slope_l g_l      slope_l = act'(a_l), times the scale of a residual stack
//   g_{l-1} = W_l^T delta_l    (+ g_l of a residual stack)
//
// The pre-activations have the bits of the forward step, so that every unit is on the side of its
// kink on which the states were computed.

#include "kernels/cpu/stack/column_lanes.h"
#include "kernels/cpu/stack/column_sums.h"
#include "kernels/cpu/stack/dense_kernels.h"

namespace deeppcr::cpu::DEEPPCR_CPU_ISA {

// Rule: what the steps do after their pre-activations, as in dense_kernels.h.
template <int W, class Rule>
class Retreater {
 public:
  explicit Retreater(const RetreatArgs& args)
      : args_(args),
        rows_(args.samples * args.columns),
        states_(args.scratch),
        slopes_(states_ + kSlopesAhead * args.samples * width()),
        deltas_(slopes_ + kSlopesAhead * args.samples * width()),
        in_lanes_(Lanes::kOffered && args.end - args.begin >= kSlopesAhead
                      ? args.columns / Lanes::kLanes * Lanes::kLanes
                      : 0) {}

  int64_t Run() {
    int64_t stages = 0;
    ForBlocks([](int64_t, float* g, float* block) { Lanes::FromRows(g, block); });
    for (int64_t end = args_.end; end > args_.begin; end -= kSlopesAhead) {
      const int64_t begin = end - kSlopesAhead < args_.begin ? args_.begin : end - kSlopesAhead;
      if (args_.sides == nullptr) TakeStates(begin, end);
      stages += end - begin;
      if constexpr (Sums::kOffered) {
        if (rows_ == 1) {
          BackInRegisters(begin, end);
          continue;
        }
      }
      AllSlopes(begin, end);
      for (int64_t l = end - 1; l >= begin; --l)
        Back(l, slopes_ + (l - begin) * args_.samples * width());
    }
    ForBlocks([](int64_t, float* g, float* block) { Lanes::ToRows(block, g); });
    return stages;
  }

 private:
  using Lanes = ColumnLanes<W>;
  using Sums = ColumnSums<W>;
  static constexpr int N = Shape<W>::kLanes, V = Shape<W>::kVectors;

  // Known to the compiler, where it is a constant: as a member it would be read again, and the
  // addresses of all elements kept on the stack.
  DEEPPCR_INLINE int64_t width() const { return Width<W>(args_.layers.width); }

  // The states that enter layers [begin, end), padded: [layers, samples, W]. Those of the layers
  // before are sent for: they come from further away than the next call of this takes to begin.
  DEEPPCR_INLINE void TakeStates(int64_t begin, int64_t end) {
    constexpr int64_t kLine = 64 / sizeof(float);
    const int64_t dim = args_.layers.state_dim;
    for (int64_t l = begin; l < end; ++l) {
      for (int64_t b = 0; b < args_.samples; ++b) {
        const float* from = args_.states[b] + l * dim;
        for (int64_t at = 0; at < dim && l >= kSlopesAhead; at += kLine)
          __builtin_prefetch(from - kSlopesAhead * dim + at);
        float* to = states_ + ((l - begin) * args_.samples + b) * width();
        CopyState<W>(args_.layers, from, to);
        for (int64_t i = dim; i < width(); ++i) to[i] = 0.0F;
      }
    }
  }

  template <int B>
  DEEPPCR_INLINE void SlopesOfSamples(const LayersView& layer, const float* in, float* slopes) {
    for (int64_t first = 0; first < width(); first += V * N) {
      Vec<N> x[B * V];
      PreActivation<W, B>(layer, 0, first, in, x);
      FinishSlopes<W, B, Rule>(layer, first, x, slopes);
    }
  }
  DEEPPCR_INLINE void SlopesOf(int64_t l, int64_t at) {
    constexpr int B = Shape<W>::kSharing;
    const LayersView layer = LayerAlone(l);
    const int64_t samples = args_.samples;
    const float* in = states_ + at * samples * width();
    float* out = slopes_ + at * samples * width();
    int64_t b = 0;
    for (; b + B <= samples; b += B) SlopesOfSamples<B>(layer, in + b * width(), out + b * width());
    for (; b < samples; ++b) SlopesOfSamples<1>(layer, in + b * width(), out + b * width());
  }

  DEEPPCR_INLINE void AllSlopes(int64_t begin, int64_t end) {
    if (args_.sides != nullptr) {
      for (int64_t l = begin; l < end; ++l) SlopesOfSides(l, l - begin);
      return;
    }
    if constexpr (Sums::kOffered) {
      if (args_.samples == 1 && in_lanes_ < args_.columns) {
        for (int64_t l = begin; l < end; ++l) SlopesByTransposed(l, l - begin);
        return;
      }
    }
    for (int64_t l = begin; l < end; ++l) SlopesOf(l, l - begin);
  }

  // SlopesOf from pre-activations that are known to be above zero or not.
  DEEPPCR_INLINE void SlopesOfSides(int64_t l, int64_t at) {
    constexpr int64_t kBytes = SideBytes(V * N);
    const LayersView layer = LayerAlone(l);
    for (int64_t b = 0; b < args_.samples; ++b) {
      const uint8_t* sides = args_.sides[b] + l * SideBytes(width());
      float* out = slopes_ + (at * args_.samples + b) * width();
      for (int64_t first = 0; first < width(); first += V * N) {
        uint64_t bits = 0;
        __builtin_memcpy(&bits, sides + first / 8, kBytes);
        Vec<N> x[V];
        for (int v = 0; v < V; ++v)
          x[v] = SelectBits(static_cast<uint32_t>(bits >> (v * N)), Broadcast<N>(1.0F),
                            Broadcast<N>(-1.0F));
        FinishSlopes<W, 1, Rule>(layer, first, x, out);
      }
    }
  }

  // SlopesOf for one sample by the transposed layer, whose weights its cotangents take, too.
  DEEPPCR_INLINE void SlopesByTransposed(int64_t l, int64_t at) {
    Vec<N> z[V], x[V];
    for (int v = 0; v < V; ++v) z[v] = Load<N>(states_ + at * width() + v * N);
    const LayersView layer = LayerAlone(l);
    Sums::template Multiply<true>(args_.transposed + l * width() * width(), layer.biases, z, x);
    FinishSlopes<W, 1, Rule>(layer, 0, x, slopes_ + at * width());
  }

  // A layer as the first one of a view of its own, which the compiler knows that no store changes.
  // Field by field: GCC 12 would keep a copy of the whole on the stack.
  DEEPPCR_INLINE LayersView LayerOf(const float* weights, const float* biases) const {
    return {.num_steps = args_.layers.num_steps,
            .state_dim = args_.layers.state_dim,
            .width = args_.layers.width,
            .weights = weights,
            .biases = biases,
            .lane_mask = args_.layers.lane_mask,
            .probe_seeds = args_.layers.probe_seeds,
            .scale = args_.layers.scale,
            .residual = args_.layers.residual,
            .activation = args_.layers.activation};
  }
  DEEPPCR_INLINE LayersView LayerAlone(int64_t l) const {
    return LayerOf(args_.layers.weights + l * width() * width(), args_.layers.biases + l * width());
  }
  // The transposed layer, without a bias.
  DEEPPCR_INLINE LayersView Transposed(int64_t l) const {
    return LayerOf(args_.transposed + l * width() * width(), args_.zeros);
  }

  // g [B, W] from deltas [B, W].
  template <int B>
  DEEPPCR_INLINE void Multiply(const LayersView& transposed, const float* deltas, float* g) {
    for (int64_t first = 0; first < width(); first += V * N) {
      Vec<N> x[B * V];
      PreActivation<W, B>(transposed, 0, first, deltas, x);
#pragma GCC unroll 16
      for (int i = 0; i < B * V; ++i) {
        float* to = g + i / V * width() + first + i % V * N;
        Store(to, Rule::Residual(args_.layers) ? Load<N>(to) + x[i] : x[i]);
      }
    }
  }

  // Calls f(sample, rows of g, block) for the cotangents that go back one in each lane. A block
  // lies where the deltas of its rows would.
  template <class F>
  DEEPPCR_INLINE void ForBlocks(const F& f) {
    if constexpr (Lanes::kOffered) {
      for (int64_t b = 0; b < args_.samples; ++b) {
        for (int64_t j = 0; j < in_lanes_; j += Lanes::kLanes) {
          const int64_t at = (b * args_.columns + j) * width();
          f(b, args_.g + at, deltas_ + at);
        }
      }
    }
  }

  DEEPPCR_INLINE void Back(int64_t l, const float* slopes) {
    const float* weights = args_.layers.weights + l * width() * width();
    ForBlocks([&](int64_t b, float*, float* block) {
      Lanes::Back(weights, slopes + b * width(), Rule::Residual(args_.layers), block);
    });
    if (in_lanes_ < args_.columns) BackInRows(l, slopes);
  }

  // The cotangents that are in no lane: of all samples together, or what each has left of its own.
  DEEPPCR_INLINE void BackInRows(int64_t l, const float* slopes) {
    float *const g = args_.g, *const deltas = deltas_;
    const int64_t samples = args_.samples, columns = args_.columns;
    for (int64_t b = 0; b < samples; ++b) {
      const float* slope = slopes + b * width();
      for (int64_t r = b * columns + in_lanes_; r < (b + 1) * columns; ++r)
        for (int64_t at = 0; at < width(); at += N)
          Store(deltas + r * width() + at, Load<N>(slope + at) * Load<N>(g + r * width() + at));
    }
    GiveDeltas(l);
    const LayersView transposed = Transposed(l);
    if (in_lanes_ == 0) return MultiplyRows(transposed, 0, rows_);
    for (int64_t b = 0; b < samples; ++b)
      MultiplyRows(transposed, b * columns + in_lanes_, (b + 1) * columns);
  }

  DEEPPCR_INLINE void MultiplyRows(const LayersView& transposed, int64_t r, int64_t end) {
    constexpr int B = Shape<W>::kSharing;
    for (; r + B <= end; r += B)
      Multiply<B>(transposed, deltas_ + r * width(), args_.g + r * width());
    for (; r < end; ++r) Multiply<1>(transposed, deltas_ + r * width(), args_.g + r * width());
  }

  // One cotangent, which stays in registers from layer to layer, with the same bits.
  DEEPPCR_INLINE void BackInRegisters(int64_t begin, int64_t end) {
    Vec<N> g[V];
    for (int v = 0; v < V; ++v) g[v] = Load<N>(args_.g + v * N);
    for (int64_t l = end - 1; l >= begin; --l) {
      if (args_.sides == nullptr) {
        SlopesOf(l, l - begin);
      } else {
        SlopesOfSides(l, l - begin);
      }
      Vec<N> delta[V], x[V];
      for (int v = 0; v < V; ++v) {
        delta[v] = Load<N>(slopes_ + (l - begin) * width() + v * N) * g[v];
        Store(deltas_ + v * N, delta[v]);
      }
      GiveDeltas(l);
      Sums::template Multiply<false>(args_.layers.weights + l * width() * width(), nullptr, delta,
                                     x);
      for (int v = 0; v < V; ++v) g[v] = Rule::Residual(args_.layers) ? g[v] + x[v] : x[v];
    }
    for (int v = 0; v < V; ++v) Store(args_.g + v * N, g[v]);
  }

  DEEPPCR_INLINE void GiveDeltas(int64_t l) {
    float* const* const given = args_.deltas;
    if (given == nullptr) return;
    const LayersView layer = LayerAlone(l);
    const float* deltas = deltas_;
    const int64_t samples = args_.samples;
    for (int64_t b = 0; b < samples; ++b) {
      if (given[b] == nullptr) continue;
      CopyState<W>(layer, deltas + b * width(), given[b] + l * layer.state_dim);
    }
  }

  const RetreatArgs& args_;
  const int64_t rows_;
  float *const states_, *const slopes_, *const deltas_;
  // Of each sample's cotangents, the first ones. None where a block's way in and out costs more
  // than so few layers.
  const int64_t in_lanes_;
};

template <int W>
int64_t Retreat(const RetreatArgs& args) {
  return ReluResidualStep::Describes(args.layers) ? Retreater<W, ReluResidualStep>(args).Run()
                                                  : Retreater<W, StepRuleOfLayers>(args).Run();
}

}  // namespace deeppcr::cpu::DEEPPCR_CPU_ISA

#endif  // DEEPPCR_KERNELS_CPU_STACK_RETREAT_H_
