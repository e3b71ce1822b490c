// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_LOOP_BLOCK_INTERVALS_H_
#define DEEPPCR_KERNELS_CUDA_LOOP_BLOCK_INTERVALS_H_

// The shooting intervals of a block of the Newton kernel: where their layers and states lie, and
// what a pass makes of them (stack/propagation.h).

#include <cstdint>

#include "kernels/cuda/loop/block_memory.h"
#include "kernels/cuda/loop/interval_norms.h"
#include "kernels/cuda/loop/newton_args.h"
#include "kernels/cuda/runtime/device_code.h"
#include "kernels/cuda/stack/propagation.h"
#include "kernels/iteration/pass.h"

namespace deeppcr::cuda {

template <int W, bool kInWorkspace, class Context>
class BlockIntervals {
 public:
  // `first`: the block's first interval.
  DEEPPCR_DEVICE BlockIntervals(Context& context, const NewtonArgs& args, const BlockMemory& memory,
                                int32_t first)
      : context_(context), args_(args), memory_(memory), first_(first), row_(context.lane() % W) {}

  // Copies the layers of the block's intervals, those of steps (begin, end], to shared memory,
  // where they stay for the solve, if it has room.
  DEEPPCR_DEVICE void HoldLayers(int64_t begin, int64_t end) {
    if (kInWorkspace || !args_.holds_layers) return;
    constexpr int kRow = BlockMemory::HeldRow(W), kFours = W / 4;
    const auto layers = static_cast<int32_t>(end - begin);
    const HeldLayers held = HeldLayersOf(0);
    float* const weights = memory_.HeldWeights();
    float* const biases = weights + (held.biases - held.weights);
    const float* const from = args_.stack.weights + begin * W * W;
    for (int32_t at = context_.thread(); at < layers * W * kFours; at += context_.num_threads())
      context_.template CopyAsync<4>(from + 4 * at,
                                     weights + at / kFours * kRow + 4 * (at % kFours));
    for (int32_t at = context_.thread(); at < layers * kFours; at += context_.num_threads())
      context_.template CopyAsync<4>(args_.stack.biases + begin * W + 4 * at, biases + 4 * at);
    context_.CommitCopies();
    context_.template WaitForCopies<0>();
  }
  // Propagates interval i of the block, of `steps` steps behind step `begin`.
  DEEPPCR_DEVICE void Propagate(int32_t i, IterationKind kind, int64_t begin, int32_t steps) {
    const int32_t p = first_ + i;
    // d_0 = 0: the first matrix is never used.
    float* const matrix =
        kind.forms_matrices() && p > 0 ? memory_.Matrix(memory_.tree.index_of(0, p)) : nullptr;
    const float entry = EntryAt(kind.confirmation, memory_.State(i), W, p, row_);
    switch (BesideOf(kind, matrix != nullptr)) {
      case Beside::kNothing:
        return PropagateAs<Beside::kNothing>(i, kind, begin, steps, entry, matrix);
      case Beside::kProbes:
        return PropagateAs<Beside::kProbes>(i, kind, begin, steps, entry, matrix);
      case Beside::kDiagonal:
        return PropagateAs<Beside::kDiagonal>(i, kind, begin, steps, entry, matrix);
      case Beside::kTangents:
        return PropagateAs<Beside::kTangents>(i, kind, begin, steps, entry, matrix);
    }
  }

 private:
  // Probes ride with corrections alone (iteration/stopping.h), which form no matrix.
  static DEEPPCR_DEVICE Beside BesideOf(IterationKind kind, bool has_matrix) {
    if (!has_matrix) return kind.probes ? Beside::kProbes : Beside::kNothing;
    return kind.linearization == Linearization::kFull ? Beside::kTangents : Beside::kDiagonal;
  }
  template <Beside kBeside>
  DEEPPCR_DEVICE void PropagateAs(int32_t i, IterationKind kind, int64_t begin, int32_t steps,
                                  float entry, float* matrix) {
    const StackView& stack = args_.stack;
    if (!PiecewiseLinear::Covers(stack.activation)) {
      PropagateBy<kBeside>(i, kind, begin, steps, stack, entry, matrix);
    } else if (W < kWarpSize && stack.residual) {
      PropagateBy<kBeside>(i, kind, begin, steps, PiecewiseRule<Always>(stack, {}), entry, matrix);
    } else {
      PropagateBy<kBeside>(i, kind, begin, steps, PiecewiseRule<bool>(stack, stack.residual), entry,
                           matrix);
    }
  }
  template <Beside kBeside, class Rule>
  DEEPPCR_DEVICE void PropagateBy(int32_t i, IterationKind kind, int64_t begin, int32_t steps,
                                  const Rule& rule, float entry, float* matrix) {
    StackPropagation<W, kBeside, Rule, Context> propagation(
        context_, rule, DrawOfSigns(begin, kind.draw, args_.stack.num_steps), entry, matrix);
    if (!kInWorkspace && args_.holds_layers) {
      propagation.Run(HeldLayersOf(i), steps);
    } else {
      propagation.Run(
          LayerRows<W, W>{args_.stack.weights + begin * W * W, args_.stack.biases + begin * W},
          steps);
    }
    if (context_.lane() >= W) return;
    const float y = EntryAt(kind.confirmation, memory_.State(i + 1), W, first_ + i + 1, row_);
    StorePropagated(i, 0, propagation.state(), y);
    if constexpr (kBeside == Beside::kProbes) {
      DEEPPCR_UNROLL
      for (int v = 0; v < kNumProbes; ++v) StorePropagated(i, 1 + v, propagation.probe(v), 0.0F);
    }
  }
  using HeldLayers = LayerRows<W, BlockMemory::HeldRow(W)>;
  DEEPPCR_DEVICE HeldLayers HeldLayersOf(int32_t i) const {
    const auto layers = static_cast<int32_t>(LayersOfBlock(memory_.tree, args_.shooting_interval));
    HeldLayers held = {memory_.HeldWeights(),
                       memory_.HeldWeights() + layers * W * BlockMemory::HeldRow(W)};
    held.Advance(i * args_.shooting_interval);
    return held;
  }
  // Stores a column of F_p and of the residual F_p - y_p. The residual of a probe is the rounding
  // that it has picked up.
  DEEPPCR_DEVICE void StorePropagated(int32_t i, int column, float value, float end) const {
    const int at = column * W + row_;
    memory_.Propagated(i)[at] = value;
    memory_.Residual(memory_.tree.index_of(0, first_ + i))[at] = value - end;
  }

  Context& context_;
  const NewtonArgs& args_;
  const BlockMemory memory_;
  const int32_t first_;
  const int row_;
};

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_LOOP_BLOCK_INTERVALS_H_
