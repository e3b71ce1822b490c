// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CPU_STACK_ADVANCE_H_
#define DEEPPCR_KERNELS_CPU_STACK_ADVANCE_H_

// The sequential mode of dense stacks: samples through their steps, in groups, and what the steps
// leave behind.

#include <type_traits>

#include "kernels/cpu/stack/dense_kernels.h"
#include "kernels/cpu/stack/sample_lanes.h"

namespace deeppcr::cpu::DEEPPCR_CPU_ISA {

// Those of samples from this one on.
DEEPPCR_INLINE Traces TracesFrom(Traces traces, int32_t sample) {
  return {.states = traces.states == nullptr ? nullptr : traces.states + sample,
          .sides = traces.sides == nullptr ? nullptr : traces.sides + sample};
}

DEEPPCR_INLINE bool AnyStates(Traces traces, int32_t count) {
  for (int32_t b = 0; traces.states != nullptr && b < count; ++b)
    if (traces.states[b] != nullptr) return true;
  return false;
}

template <int W, int B>
DEEPPCR_INLINE void WriteStates(const LayersView& layers, const float* states, int64_t l,
                                Traces traces) {
  if (traces.states == nullptr) return;
  const int64_t width = Width<W>(layers.width);
  for (int b = 0; b < B; ++b) {
    if (traces.states[b] == nullptr) continue;
    CopyState<W>(layers, states + b * width, traces.states[b] + l * layers.state_dim);
  }
}

// The sides of units from `first` on, whose pre-activations are x, one sample after another.
template <int W, int B>
DEEPPCR_INLINE void WriteSides(const LayersView& layers, int64_t first,
                               const Vec<Shape<W>::kLanes> (&x)[B * Shape<W>::kVectors], int64_t l,
                               uint8_t* const* sides) {
  constexpr int N = Shape<W>::kLanes, V = Shape<W>::kVectors;
#pragma GCC unroll 8
  for (int b = 0; b < B; ++b) {
    uint64_t bits = 0;
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v)
      bits |= uint64_t{GreaterBits(InRegister(x[b * V + v]), Broadcast<N>(0.0F))} << (v * N);
    __builtin_memcpy(sides[b] + l * SideBytes(Width<W>(layers.width)) + first / 8, &bits,
                     SideBytes(V * N));
  }
}

// One sample through steps (begin, end], its state in registers.
template <int W, class Rule>
int64_t AdvanceInRegisters(const LayersView& layers, float* state, int64_t begin, int64_t end,
                           Traces traces) {
  constexpr int N = Shape<W>::kLanes, V = Shape<W>::kVectors;
  Vec<N> z[V];
  for (int v = 0; v < V; ++v) z[v] = Load<N>(state + v * N);
  int64_t stages = 0;
  for (int64_t l = begin; l < end; ++l, ++stages) {
    Vec<N> x[V];
    PreActivationInRegisters<W>(layers, l, state, z, x);
    if constexpr (Rule::kKeepsSides) WriteSides<W, 1>(layers, 0, x, l, traces.sides);
    FinishStep<W, 1, Rule>(layers, 0, state, x, state);
    for (int v = 0; v < V; ++v) z[v] = x[v];
    WriteStates<W, 1>(layers, state, l + 1, traces);
  }
  return stages;
}

// Takes B samples through steps (begin, end]. The chains of samples interleave: the latency of one
// hides behind the others. Not inlined: beside other groups GCC 12 made slower code of it (W = 16,
// AVX2: 8.9 ns a step and sample against 7.9, measured on Zen 4).
template <int W, int B, class Rule>
__attribute__((noinline)) int64_t AdvanceTogether(const LayersView& layers, float* states,
                                                  float* scratch, int64_t begin, int64_t end,
                                                  Traces traces) {
  constexpr int N = Shape<W>::kLanes, V = Shape<W>::kVectors;
  constexpr int S = B < Shape<W>::kSharing ? B : Shape<W>::kSharing;
  // A state that fits into registers is replaced in place; a wider state is written in pieces while
  // all of the old state is still needed.
  constexpr bool kInPlace = V * N == W;
  const int64_t width = Width<W>(layers.width);
  float* target = kInPlace ? states : scratch;
  int64_t stages = 0;
  for (int64_t l = begin; l < end; ++l, ++stages) {
    for (int64_t first = 0; first < width; first += V * N) {
#pragma GCC unroll 1
      for (int g = 0; g < B; g += S) {
        const float* in = states + g * width;
        Vec<N> x[S * V];
        PreActivation<W, S>(layers, l, first, in, x);
        if constexpr (Rule::kKeepsSides) WriteSides<W, S>(layers, first, x, l, traces.sides + g);
        FinishStep<W, S, Rule>(layers, first, in, x, target + g * width);
      }
    }
    if (!kInPlace) {
      for (int64_t i = 0; i < B * width; i += N) Store(states + i, Load<N>(scratch + i));
    }
    WriteStates<W, B>(layers, states, l + 1, traces);
  }
  return stages;
}

// Advances samples from *next on, B at a time, as long as B are left. Returns the steps, 0 if there
// were none.
template <int W, int B, class Rule>
DEEPPCR_INLINE int64_t AdvanceGroups(const LayersView& layers, float* states, float* scratch,
                                     int32_t n, int64_t begin, int64_t end, Traces traces,
                                     int32_t* next) {
  int64_t stages = 0;
  for (; *next + B <= n; *next += B) {
    float* group = states + *next * Width<W>(layers.width);
    const Traces to = TracesFrom(traces, *next);
    if constexpr (B == 1 && Shape<W>::kInRegisters) {
      stages = AdvanceInRegisters<W, Rule>(layers, group, begin, end, to);
    } else {
      stages = AdvanceTogether<W, B, Rule>(layers, group, scratch, begin, end, to);
    }
  }
  return stages;
}

// Group of B in whose time fewer samples advance: they are joined by copies of the first.
template <int W, int B, class Rule>
DEEPPCR_INLINE int64_t AdvancePadded(const LayersView& layers, float* states, float* scratch,
                                     int32_t n, int64_t begin, int64_t end, Traces traces) {
  float* states_to[B];
  uint8_t* sides_to[B];
  // One by one: AddressSanitizer of GCC 12 misplaces what a store of 64 bytes would set to zero.
  for (int b = 0; b < B; ++b) {
    states_to[b] = b < n && traces.states != nullptr ? traces.states[b] : nullptr;
    sides_to[b] = Rule::kKeepsSides ? traces.sides[b < n ? b : 0] : nullptr;
    __builtin_memcpy(scratch + b * W, states + (b < n ? b : 0) * W, W * sizeof(float));
  }
  const int64_t stages = AdvanceTogether<W, B, Rule>(
      layers, scratch, nullptr, begin, end,
      {.states = traces.states == nullptr ? nullptr : states_to, .sides = sides_to});
  __builtin_memcpy(states, scratch, n * W * sizeof(float));
  return stages;
}

// Groups run one after the other, but no group waits for another: the stages are those of one
// group.
template <int W, class Rule>
int64_t AdvanceBy(const LayersView& layers, float* states, float* scratch, int32_t n, int64_t begin,
                  int64_t end, Traces traces) {
  int32_t next = 0;
  int64_t stages = 0;
  const auto add = [&](int64_t of_group) { stages = of_group > stages ? of_group : stages; };
  const auto rest = [&] { return n - next; };
  if constexpr (SampleLanes<W>::kOffered && !Rule::kKeepsSides) {
    using Lanes = SampleLanes<W>;
    while (rest() >= Lanes::kLeast) {
      const int32_t count = rest() < Lanes::kLanes ? rest() : Lanes::kLanes;
      if (AnyStates(TracesFrom(traces, next), count)) break;
      add(Lanes::template Advance<Rule>(layers, states + next * W, count, begin, end));
      next += count;
    }
  }
  add(AdvanceGroups<W, Rule::template kGroup<W>, Rule>(layers, states, scratch, n, begin, end,
                                                       traces, &next));
  const auto pad = [&]<int B>(std::integral_constant<int, B>) {
    add(AdvancePadded<W, B, Rule>(layers, states + next * W, scratch, rest(), begin, end,
                                  TracesFrom(traces, next)));
    next = n;
  };
  if constexpr (Shape<W>::kPadsEights) {
    if (rest() >= 6) pad(std::integral_constant<int, 8>{});
  }
  add(AdvanceGroups<W, 4, Rule>(layers, states, scratch, n, begin, end, traces, &next));
  if constexpr (Shape<W>::kPads) {
    if (rest() == 3) pad(std::integral_constant<int, 4>{});
  }
  add(AdvanceGroups<W, 2, Rule>(layers, states, scratch, n, begin, end, traces, &next));
  add(AdvanceGroups<W, 1, Rule>(layers, states, scratch, n, begin, end, traces, &next));
  return stages;
}

// See Kernels.
template <int W>
inline constexpr int32_t kMostTogether =
    SampleLanes<W>::kOffered ? SampleLanes<W>::kLanes : kSequentialGroup;
template <int W>
inline constexpr int32_t kPaddedSamples = SampleLanes<W>::kOffered ? kSequentialGroup
                                          : Shape<W>::kPadsEights  ? 4
                                                                   : 1;

template <int W>
int64_t Advance(const LayersView& layers, float* states, float* scratch, int32_t n, int64_t begin,
                int64_t end, Traces traces) {
  const auto by = [&]<class Rule>(Rule) {
    const auto advance =
        traces.sides == nullptr ? &AdvanceBy<W, Rule> : &AdvanceBy<W, KeepingSides<Rule>>;
    return advance(layers, states, scratch, n, begin, end, traces);
  };
  return ReluResidualStep::Describes(layers) ? by(ReluResidualStep{}) : by(StepRuleOfLayers{});
}

}  // namespace deeppcr::cpu::DEEPPCR_CPU_ISA

#endif  // DEEPPCR_KERNELS_CPU_STACK_ADVANCE_H_
