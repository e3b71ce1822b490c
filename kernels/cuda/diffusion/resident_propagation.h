// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_DIFFUSION_RESIDENT_PROPAGATION_H_
#define DEEPPCR_KERNELS_CUDA_DIFFUSION_RESIDENT_PROPAGATION_H_

// Propagation of shooting intervals of a residual denoiser whose blocks' layers a block of threads
// has shared memory for: they are copied there once for several intervals. The states of these
// intervals go first, all together (DenoiserStep), and leave on a tape the points at which the
// network is linearized; then their probes (resident_probes.h) and the columns of their matrices
// (resident_columns.h) go through all layers.
//
// The operations on tangents are those of DenoiserStep; factors of products are TF32.

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/diffusion/interval_step_kernel.h"
#include "kernels/cuda/diffusion/resident_block.h"
#include "kernels/cuda/diffusion/resident_columns.h"
#include "kernels/cuda/diffusion/resident_probes.h"
#include "kernels/cuda/runtime/device_code.h"
#include "kernels/cuda/tuning.h"

namespace deeppcr::cuda {

// Floats of shared memory of a block: the layers, and the steps of states with what the intervals
// are to end at, whose place the tangents have while they go through the layers.
constexpr int64_t ResidentLayerFloats(const DenoiserView& d) {
  return (int64_t{d.num_blocks} * d.hidden_width + 2 * d.state_cols) * d.hidden_width;
}
constexpr int64_t ResidentFloats(const DenoiserView& d, int together) {
  const int64_t states = DenoiserFloats(d, together) + int64_t{together} * d.state_cols;
  const int64_t slopes = int64_t{kResidentWarps} * ElementNumbers::Floats(d.hidden_width);
  const int64_t probes = ResidentProbeFloats(d, together);
  const int64_t tangents = slopes > probes ? slopes : probes;
  return ResidentLayerFloats(d) + (states > tangents ? states : tangents);
}

template <int kStateTiles, int kHiddenTiles, class Context>
class ResidentPropagation {
 public:
  // `place`: number of the block in the launch.
  DEEPPCR_DEVICE ResidentPropagation(Context& context, const ResidentArgs& args, int place)
      : block_(context, args, place),
        context_(context),
        layers_(SharedFloats(context)),
        rest_(layers_ + ResidentLayerFloats(block_.d)) {}

  // Makes the propagation of a pass that a launch is for.
  DEEPPCR_DEVICE void Run() {
    const auto& propagation = block_.args.propagation;
    IterationKind kind = propagation.kind;
    if (propagation.progress != nullptr) {
      const Progress& progress = propagation.progress[block_.sample];
      if (progress.next == NextPass::kStop) return;
      kind = KindOf(progress, propagation.linearization);
    }
    CopyLayers();
    Propagate(kind);
  }
  // Begins to copy all layers, which the first step waits for.
  DEEPPCR_DEVICE void CopyLayers() {
    const DenoiserView& d = block_.process.denoiser;
    float* const input = Copy(d.first, d.num_blocks, layers_);
    float* const output = Copy(d.input, 1, input);
    Copy(d.output, 1, output);
    context_.CommitCopies();
    TakeLayers();
  }
  // Takes the layers that the block has copied before.
  DEEPPCR_DEVICE void TakeLayers() {
    DenoiserView& d = block_.d;
    d.first.weights = layers_;
    d.input.weights = layers_ + d.num_blocks * d.first.rows * d.first.cols;
    d.output.weights = d.input.weights + d.input.rows * d.input.cols;
  }
  // Takes the block's intervals through their steps.
  DEEPPCR_DEVICE void Propagate(IterationKind kind) {
    kind_ = kind;
    const SampleSteps steps(block_.process, block_.sample, kind_.draw);
    for (int32_t l = 0; l < block_.view.shooting_interval; ++l) {
      const int active = block_.NumActive(l);
      if (active == 0) break;
      if (l > 0) context_.SyncBlock(kAfterResidentTangents);
      StepStates(steps, l, active);
      context_.SyncBlock(kAfterResidentStates);
      if (kind_.probes)
        ResidentProbes<kStateTiles, kHiddenTiles, Context>(block_, rest_).Step(steps, l, active);
      if (kind_.forms_matrices() && kind_.linearization == Linearization::kFull) {
        if (kind_.probes) context_.SyncBlock(kAfterResidentTangents);
        StepColumns(steps, l, active);
      }
    }
  }

 private:
  // Copies the weights of layers of one shape; returns the place behind them.
  DEEPPCR_DEVICE float* Copy(const PanelLayer& first, int count, float* to) {
    const int32_t floats = count * first.rows * first.cols;
    for (int32_t i = 4 * context_.thread(); i < floats; i += 4 * context_.num_threads())
      context_.template CopyAsync<4>(first.weights + i, to + i);
    return to + floats;
  }

  DEEPPCR_DEVICE void StepStates(const SampleSteps& steps, int32_t l, int active) {
    DenoiserStep<kResidentIntervals, BlockTeam<Context>, StepRowsAre::kStates, ResidentLayers> step(
        BlockTeam<Context>(context_), block_.d, rest_, active, false);
    step.KeepTape(block_.TapeOf(0));
    // What intervals are to end at, at their last steps.
    float* const ends = rest_ + DenoiserFloats(block_.d, block_.args.together);
    const int i = context_.lane();  // of a state, which has no more elements than a warp has lanes
    static_assert(8 * kStateTiles <= kWarpSize);
    block_.ForIntervals(active, [&](int r) {
      if (i >= step.cols()) return;
      const BlockInterval at = block_.Interval(r);
      float entry = 0.0F, end = 0.0F;
      if (i < block_.width()) {
        entry = l == 0 ? at.EntryAt(kind_.confirmation, i, block_.width())
                       : at.memory.Propagated(at.local)[i];
        if (at.begin + l + 1 == at.end) end = at.EndAt(kind_.confirmation, i, block_.width());
      }
      step.State(r, i) = entry;
      ends[r * step.cols() + i] = end;
    });
    context_.template WaitForCopies<0>();
    context_.SyncBlock(kAfterResidentEntries);
    step.Run(IntervalSteps(steps, int64_t{block_.first} * block_.view.shooting_interval + l,
                           block_.view.shooting_interval));
    block_.ForIntervals(active, [&](int r) {
      if (i >= block_.width()) return;
      const BlockInterval at = block_.Interval(r);
      const float state = step.State(r, i);
      at.memory.Propagated(at.local)[i] = state;
      if (at.begin + l + 1 == at.end) block_.ResidualOf(at)[i] = state - ends[r * step.cols() + i];
    });
  }

  // Takes every tile of columns through a step, a warp each.
  DEEPPCR_DEVICE void StepColumns(const SampleSteps& steps, int32_t l, int active) const {
    const int tiles = (block_.d.state_dim + kTileTangents - 1) / kTileTangents;
    float* const slopes = rest_ + context_.warp() * ElementNumbers::Floats(block_.d.hidden_width);
    for (int job = context_.warp(); job < tiles * active;
         job += context_.num_threads() / kWarpSize) {
      const int r = job % active, tile = job / active;
      // d_0 = 0: the first matrix is never used.
      if (block_.first + r == 0) continue;
      const int64_t begin = int64_t{block_.first + r} * block_.view.shooting_interval;
      ColumnTile<kStateTiles, kHiddenTiles, Context>(block_, r, tile * kTileTangents, slopes)
          .Run(steps.At(begin + l), l);
    }
  }

  ResidentBlock<Context> block_;
  Context& context_;
  float* const layers_;
  float* const rest_;  // memory behind the layers
  IterationKind kind_;
};

// Body of a launch of `groups` blocks of kResidentWarps per sample, with ResidentFloats of shared
// memory.
template <int kStateTiles, int kHiddenTiles, class Context>
DEEPPCR_DEVICE void PropagateResident(Context& context, const ResidentArgs& args) {
  ResidentPropagation<kStateTiles, kHiddenTiles, Context>(context, args, context.cluster()).Run();
}

// Calls f(std::integral_constant<int, kStateTiles>, std::integral_constant<int, kHiddenTiles>) for
// the sizes of a denoiser.
template <class F>
auto WithResidentTiles(const DenoiserView& d, const F& f) {
  const auto with_hidden = [&](auto state) {
    if (d.hidden_width <= 32) return f(state, std::integral_constant<int, 4>{});
    if (d.hidden_width <= 64) return f(state, std::integral_constant<int, 8>{});
    return f(state, std::integral_constant<int, 16>{});
  };
  if (d.state_cols <= 16) return with_hidden(std::integral_constant<int, 2>{});
  return with_hidden(std::integral_constant<int, 4>{});
}
// Widths that there are tiles for: the least one for hidden layers of `dim` elements; 0: none.
constexpr int ResidentWidth(int64_t dim) {
  return dim <= 32 ? 32 : dim <= 64 ? 64 : dim <= 128 ? 128 : 0;
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_DIFFUSION_RESIDENT_PROPAGATION_H_
