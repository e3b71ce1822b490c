// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_STACK_RESIDENT_STACK_H_
#define DEEPPCR_KERNELS_CUDA_STACK_RESIDENT_STACK_H_

// Propagation of a shooting interval of a dense stack by a block of threads whose shared memory
// holds the layers of this interval for a whole solve. The state goes first, layer by layer, and
// leaves the slopes of the activations: alone, a warp for each panel of eight rows, as in
// panel_sequential_kernel.h, or with its probes (PanelStackStep). States have the bits of either.
//
// Then each of the first warps takes sixteen columns of the interval's matrix through all layers,
// on the tensor cores and in registers: x to slope (W x), or to x + slope (W x). What a residual
// path adds is float32, and factors beside it are TF32, as long as the scales of all branches add
// up to kMostBranches at most; else factors are split, as the matrix would lose too much.

#include <math.h>

#include <cstdint>

#include "kernels/cuda/loop/block_recurrence.h"
#include "kernels/cuda/math/panel_layer.h"
#include "kernels/cuda/math/tangent_tiles.h"
#include "kernels/cuda/math/team.h"
#include "kernels/cuda/runtime/device_code.h"
#include "kernels/cuda/stack/jacobian.h"
#include "kernels/cuda/stack/panel_step.h"
#include "kernels/cuda/stack/warp_step.h"
#include "kernels/cuda/tuning.h"
#include "kernels/iteration/pass.h"

namespace deeppcr::cuda {

// The barrier calls of a propagation, beyond those of grid_scan.h.
enum ResidentStackSite : int {
  kAfterStackEntry = 120,
  kAfterStackState,
  kAfterProbesEntry,
  kNumResidentStackSites,
};

// Steps of an interval, begin, ..., end - 1, and the states at both of its ends, [kNumColumns, W].
struct StackInterval {
  int32_t interval;  // p - 1
  int64_t begin, end;
  const float *entry, *exit;
};

template <int W, class BlockContext>
class ResidentStack {
 public:
  using Context = BlockContext;
  static constexpr int kWidth = W;
  static_assert(W % kTileTangents == 0 && W == kResidentWarps * kPanelRows, "a panel a warp");

  // Floats of shared memory for intervals of so many steps: weights, biases and slopes of all
  // layers, then the vectors of a step.
  static constexpr int64_t Floats(int64_t steps) {
    return steps * (W * W + 2 * W) + 2 * VectorShape::For(W, kNumColumns).floats();
  }

  // `memory`: Floats, aligned to 16 bytes. `steps`: of the longest interval.
  DEEPPCR_DEVICE ResidentStack(Context& context, const PanelStackView& stack, int32_t steps,
                               float* memory)
      : context_(context),
        stack_(stack),
        weights_(memory),
        biases_(weights_ + steps * (W * W)),
        slopes_(biases_ + steps * W),
        vectors_(slopes_ + steps * W) {}

  // Begins to copy the layers of an interval, which the first propagation waits for.
  DEEPPCR_DEVICE void CopyLayers(const StackInterval& at) const {
    const auto count = static_cast<int32_t>(at.end - at.begin);
    Copy(stack_.weights + at.begin * (W * W), count * (W * W), weights_);
    Copy(stack_.biases + at.begin * W, count * W, biases_);
    context_.CommitCopies();
  }

  // Makes the propagation of a pass: F and its probes to `propagated` [kNumColumns, W]; F - y_p and
  // the probes to `residual`, likewise; the matrix, where the pass wants it, to `matrix`, in the
  // order of a PanelLayer. The caller synchronises the block before, if threads may still read or
  // write what is read or written here, and after.
  DEEPPCR_DEVICE void Propagate(const StackInterval& at, IterationKind kind, float* propagated,
                                float* residual, float* matrix) const {
    // d_0 = 0: the first matrix is never used.
    const bool forms = kind.forms_matrices() && at.interval > 0;
    const Way way = {at, kind, forms, propagated, residual};
    if (kind.probes) {
      WithStepRule(stack_, [&](const auto& rule) { TakeWithProbes(rule, way); });
    } else {
      WithStepRule(stack_, [&](const auto& rule) { TakeState(rule, way); });
    }
    if (!forms || context_.warp() >= W / kTileTangents) return;
    const auto steps = static_cast<int32_t>(at.end - at.begin);
    const float branches = fabsf(stack_.scale) * static_cast<float>(stack_.num_steps);
    if (stack_.residual && branches <= kMostBranches) {
      TakeColumns<FactorsAre::kTf32>(steps, matrix);
    } else {
      TakeColumns<FactorsAre::kSplit>(steps, matrix);
    }
  }

 private:
  static constexpr int kTiles = W / 8, kGroups = W / kPanelCols;
  static constexpr VectorShape Shape() { return {W, 1}; }
  using Tiles = TangentTiles<kTiles>;

  DEEPPCR_DEVICE void Copy(const float* from, int32_t floats, float* to) const {
    for (int32_t i = 4 * context_.thread(); i < floats; i += 4 * context_.num_threads())
      context_.template CopyAsync<4>(from + i, to + i);
  }
  // Layer l of the interval.
  DEEPPCR_DEVICE PanelLayer Held(int32_t l) const {
    return {weights_ + l * (W * W), biases_ + l * W, nullptr, W, W};
  }

  // An interval and what its states are propagated to.
  struct Way {
    const StackInterval& at;
    IterationKind kind;
    bool keeps_slopes;
    float *propagated, *residual;
  };

  // Rule: a StepRule of the stack.
  template <class Rule>
  DEEPPCR_DEVICE void TakeState(const Rule& rule, const Way& way) const {
    const StackInterval& at = way.at;
    const Confirmation confirmation = way.kind.confirmation;
    const int row = context_.warp() * kPanelRows + context_.lane() / kSegments;
    const bool leads = context_.lane() % kSegments == 0;
    float z = EntryAt(confirmation, at.entry, W, at.interval, row);
    context_.template WaitForCopies<0>();
    if (leads) State(0)[Shape().Place(0, row)] = z;
    context_.SyncBlock(kAfterStackEntry);
    const auto steps = static_cast<int32_t>(at.end - at.begin);
    Row weights = RowOf(0, row);
    DEEPPCR_AS_WRITTEN
    for (int32_t l = 0; l < steps; ++l) {
      const float a = Multiply(weights, State(l % 2));
      weights = RowOf(l + 1 < steps ? l + 1 : l, row);
      z = FinishStep(rule, row, a, z);
      if (leads) State(1 - l % 2)[Shape().Place(0, row)] = z;
      if (way.keeps_slopes && leads)
        slopes_[l * W + row] = row < stack_.state_dim ? SlopeAt(rule, a) : 0.0F;
      context_.SyncBlock(kAfterStackState);
    }
    if (!leads) return;
    way.propagated[row] = z;
    way.residual[row] = z - EntryAt(confirmation, at.exit, W, at.interval + 1, row);
  }
  // A lane's part of a layer: its quarter of a row.
  struct Row {
    float weights[kGroups][4];
    float bias;
  };
  DEEPPCR_DEVICE Row RowOf(int32_t l, int row) const {
    const float* const from =
        weights_ + l * (W * W) + (context_.warp() * kGroups * kWarpSize + context_.lane()) * 4;
    Row part;
    DEEPPCR_UNROLL
    for (int j = 0; j < kGroups; ++j) context_.LoadFour(from + j * kWarpSize * 4, part.weights[j]);
    part.bias = biases_[l * W + row];
    return part;
  }
  // The pre-activation of the lane's row. The sums are those of QuarterSums and SumsOfRow, in their
  // order.
  DEEPPCR_DEVICE float Multiply(const Row& row, const float* state) const {
    const float* const x = state + context_.lane() % kSegments * Shape().quarter();
    float fours[kGroups][4];
    DEEPPCR_UNROLL
    for (int j = 0; j < kGroups; ++j) context_.LoadFour(x + j * Shape().stride(), fours[j]);
    float even = 0.0F, odd = 0.0F;
    DEEPPCR_UNROLL
    for (int j = 0; j < kGroups; ++j) AddFour(row.weights[j], fours[j], &even, &odd);
    float sum = even + odd;
    sum += context_.ShuffleXor(sum, 1);
    sum += context_.ShuffleXor(sum, 2);
    return sum + row.bias;
  }
  DEEPPCR_DEVICE float* State(int which) const { return vectors_ + which * Shape().floats(); }

  template <class Rule>
  DEEPPCR_DEVICE void TakeWithProbes(const Rule& rule, const Way& way) const {
    const StackInterval& at = way.at;
    const Confirmation confirmation = way.kind.confirmation;
    const PanelRule<Rule> stack = {rule, W};
    PanelStackStep<kNumColumns, BlockTeam<Context>, WholeRows<kGroups>::template Panels,
                   PanelRule<Rule>>
        step(BlockTeam<Context>(context_), stack, vectors_, kNumColumns, true);
    for (int i = context_.thread(); i < W; i += context_.num_threads()) {
      step.State(0, i) = EntryAt(confirmation, at.entry, W, at.interval, i);
      for (int r = 1; r < kNumColumns; ++r) step.State(r, i) = 0.0F;
    }
    context_.template WaitForCopies<0>();
    context_.SyncBlock(kAfterProbesEntry);
    const PanelLayers layers(stack_, way.kind.draw);
    DEEPPCR_AS_WRITTEN
    for (int64_t l = at.begin; l < at.end; ++l) {
      const auto local = static_cast<int32_t>(l - at.begin);
      PanelLayers::Layer layer = layers.At(l);
      layer.layer = Held(local);
      if (way.keeps_slopes) step.KeepSlopes(slopes_ + local * W);
      step.Run(layer);
    }
    for (int i = context_.thread(); i < W; i += context_.num_threads()) {
      const float end = EntryAt(confirmation, at.exit, W, at.interval + 1, i);
      for (int r = 0; r < kNumColumns; ++r) {
        const float x = step.State(r, i);
        way.propagated[r * W + i] = x;
        way.residual[r * W + i] = r == 0 ? x - end : x;
      }
    }
  }

  // Takes the warp's columns of the identity through all layers.
  template <FactorsAre kFactors>
  DEEPPCR_DEVICE void TakeColumns(int32_t steps, float* matrix) const {
    const int first = context_.warp() * kTileTangents;
    const bool adds = kFactors == FactorsAre::kTf32 || stack_.residual;
    const TileElements elements(context_, W);
    const int g = context_.lane() / kSegments;
    Tiles x;
    DEEPPCR_UNROLL
    for (int p = 0; p < kTiles; ++p) {
      DEEPPCR_UNROLL
      for (int r = 0; r < 4; ++r) {
        const int i = elements.At(p, r % 2), column = first + g + 8 * (r / 2);
        x.at[p][r] = i == column && column < stack_.state_dim ? 1.0F : 0.0F;
      }
    }
    DEEPPCR_AS_WRITTEN
    for (int32_t l = 0; l < steps; ++l) {
      Tiles product;
      MultiplyTiles<kTiles, kTiles, kFactors>(context_, Held(l), x, product);
      const float* const slopes = slopes_ + l * W;
      DEEPPCR_UNROLL
      for (int p = 0; p < kTiles; ++p) {
        DEEPPCR_UNROLL
        for (int r = 0; r < 4; ++r) {
          const float beside = adds ? x.at[p][r] : 0.0F;
          x.at[p][r] = fmaf(slopes[elements.At(p, r % 2)], product.at[p][r], beside);
        }
      }
    }
    DEEPPCR_UNROLL
    for (int p = 0; p < kTiles; ++p) {
      DEEPPCR_UNROLL
      for (int r = 0; r < 4; ++r)
        matrix[PanelPlace(W, elements.At(p, r % 2), first + g + 8 * (r / 2))] = x.at[p][r];
    }
  }

  Context& context_;
  const PanelStackView& stack_;
  float *const weights_, *const biases_;  // [steps, W W], [steps, W]
  float* const slopes_;                   // [steps, W]
  float* const vectors_;
};

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_STACK_RESIDENT_STACK_H_
