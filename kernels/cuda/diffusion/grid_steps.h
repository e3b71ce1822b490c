// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_DIFFUSION_GRID_STEPS_H_
#define DEEPPCR_KERNELS_CUDA_DIFFUSION_GRID_STEPS_H_

// Sequential steps of a wide denoiser by all blocks of a GPU together, which keep its layers in
// their shared memory, each some panels of every layer: what a cluster has to read anew in every
// step, from the L2 through sixteen multiprocessors, is read once a launch. Layers for which there
// is no room are read in every step, through all multiprocessors.

#include <cstdint>

#include "kernels/cuda/diffusion/kernel.h"
#include "kernels/cuda/math/grid_team.h"

namespace deeppcr::cuda {

// A panel that lies in shared memory, where those of a layer are that a block has, or in global
// memory, where all of them are. Groups of weights (panel_layer.h) are loaded some at a time: a
// warp has a scheduler to itself, and nobody to run while it waits for them.
template <int P, class Context>
class OwnPanels {
 public:
  static_assert(P == 1, "neighbouring panels are in different blocks");
  DEEPPCR_DEVICE OwnPanels(Context& context, const PanelLayer& layer, int panel)
      : context_(context),
        groups_(layer.cols / kPanelCols),
        shared_(context.IsShared(layer.weights)),
        weights_(layer.weights +
                 int64_t{shared_ ? Own(context, panel) : panel} * kPanelRows * layer.cols +
                 context.lane() * 4) {}
  template <class F>
  DEEPPCR_DEVICE void ForGroups(const F& f) const {
    if (shared_) {
      // From the beginning of shared memory, so that the compiler sees that it lies there.
      const float* const memory = SharedFloats(context_);
      const auto at = static_cast<int>(weights_ - memory);
      return ForGroupsBy(
          [&](int j, float(&w)[4]) { context_.LoadFour(memory + at + j * kWarpSize * 4, w); }, f);
    }
    ForGroupsBy(
        [&](int j, float(&w)[4]) { context_.LoadConstants(weights_ + j * kWarpSize * 4, w); }, f);
  }

 private:
  template <class Load, class F>
  DEEPPCR_DEVICE void ForGroupsBy(const Load& load, const F& f) const {
    constexpr int kAhead = 16;
    int j = 0;
    DEEPPCR_AS_WRITTEN
    for (; j + kAhead <= groups_; j += kAhead) {
      float w[kAhead][P][4];
      DEEPPCR_UNROLL
      for (int k = 0; k < kAhead; ++k) load(j + k, w[k][0]);
      DEEPPCR_UNROLL
      for (int k = 0; k < kAhead; ++k) f(j + k, w[k]);
    }
    DEEPPCR_AS_WRITTEN
    for (; j < groups_; ++j) {
      float w[P][4];
      load(j, w[0]);
      f(j, w);
    }
  }
  // Number of a panel among those of this block: the quotient of panel by the number of blocks,
  // which is the warp's number unless there are more panels than warps.
  static DEEPPCR_DEVICE int Own(Context& context, int panel) {
    const int blocks = context.num_blocks();
    int own = context.warp();
    while ((own + 1) * blocks <= panel) own += context.num_threads() / kWarpSize;
    return own;
  }

  Context& context_;
  const int groups_;
  const bool shared_;
  const float* const weights_;
};

// Layers of which a block of a grid has its panels in shared memory: the input and the output
// layer, and the first `resident` of those between, in the order of a step. The panels of the
// output layer are in the last blocks, which have the fewest of the others.
struct GridLayers : NoHeldLayers {
  template <int P, class Context>
  using Panels = OwnPanels<P, Context>;
  template <int P, class Context>
  using OuterPanels = Panels<P, Context>;
  template <int P, class Context>
  using AdaLnPanels = Panels<P, Context>;

  // Panels of a layer that a block has, of `panels` from the block `first` on.
  static constexpr int OwnOf(int panels, int first, int block, int blocks) {
    const int place = block >= first ? block - first : block - first + blocks;
    return (panels - place + blocks - 1) / blocks;
  }
  static constexpr int OwnHidden(const DenoiserView& d, int block, int blocks) {
    return OwnOf(d.hidden_width / kPanelRows, 0, block, blocks);
  }
  static constexpr int OwnOutput(const DenoiserView& d, int block, int blocks) {
    const int panels = d.state_cols / kPanelRows;
    return OwnOf(panels, panels < blocks ? blocks - panels : 0, block, blocks);
  }
  static constexpr int HiddenLayers(const DenoiserView& d) {
    return (d.ada_ln ? 2 : 1) * d.num_blocks;
  }
  // Floats of a block's shared memory, aligned to 16 bytes: the most that a block needs.
  static constexpr int64_t Floats(const DenoiserView& d, int blocks, int resident) {
    int64_t most = 0;
    for (int b = 0; b < blocks; ++b) {
      const int64_t hidden = OwnHidden(d, b, blocks), output = OwnOutput(d, b, blocks);
      const int64_t cols = d.state_cols + int64_t{resident} * d.hidden_width;
      const int64_t floats = kPanelRows * (hidden * cols + output * d.hidden_width);
      most = floats > most ? floats : most;
    }
    return most;
  }

  // The caller synchronises the block before the first step.
  template <class Team>
  DEEPPCR_DEVICE void Hold(const Team& team, const DenoiserView& d, float* memory, int resident) {
    auto& context = team.context();
    const int block = context.block(), blocks = context.num_blocks();
    const int hidden = OwnHidden(d, block, blocks) * kPanelRows;
    resident_ = resident;
    floats_ = hidden * d.hidden_width;
    input_ = memory;
    hidden_ = input_ + hidden * d.state_cols;
    output_ = hidden_ + resident * floats_;
    Copy(team, d.input, input_);
    for (int i = 0; i < resident; ++i) Copy(team, Hidden(d, i), hidden_ + i * floats_);
    Copy(team.FromLast(d.state_cols / kPanelRows), d.output, output_);
    context.CommitCopies();
    context.template WaitForCopies<0>();
  }
  DEEPPCR_DEVICE PanelLayer Input(const DenoiserView& d) const { return In(input_, d.input); }
  DEEPPCR_DEVICE PanelLayer Output(const DenoiserView& d) const { return In(output_, d.output); }
  DEEPPCR_DEVICE PanelLayer First(const DenoiserView& d, int b) const {
    return Layer(d, d.ada_ln ? 2 * b : b);
  }
  DEEPPCR_DEVICE PanelLayer Second(const DenoiserView& d, int b) const {
    return Layer(d, 2 * b + 1);
  }

 private:
  // The layers between input and output, in the order of a step.
  static DEEPPCR_DEVICE PanelLayer Hidden(const DenoiserView& d, int i) {
    if (!d.ada_ln) return d.first.Next(i);
    return i % 2 == 0 ? d.first.Next(i / 2) : d.second.Next(i / 2);
  }
  DEEPPCR_DEVICE PanelLayer Layer(const DenoiserView& d, int i) const {
    const PanelLayer layer = Hidden(d, i);
    return i < resident_ ? In(hidden_ + i * floats_, layer) : layer;
  }
  static DEEPPCR_DEVICE PanelLayer In(const float* weights, const PanelLayer& layer) {
    return {weights, layer.bias, layer.spreads, layer.rows, layer.cols};
  }
  template <class Team>
  static DEEPPCR_DEVICE void Copy(const Team& team, const PanelLayer& layer, float* to) {
    auto& context = team.context();
    const int floats = kPanelRows * layer.cols;
    for (int panel = team.place(); panel < layer.rows / kPanelRows;
         panel += context.num_blocks(), to += floats) {
      for (int i = 4 * context.thread(); i < floats; i += 4 * context.num_threads())
        context.template CopyAsync<4>(layer.weights + int64_t{panel} * floats + i, to + i);
    }
  }

  float *input_, *hidden_, *output_;
  int32_t resident_, floats_;  // floats of one of the resident layers
};

// Shape of a launch over the whole GPU; no blocks: none is made.
struct GridShape {
  int32_t blocks, resident;
};

struct GridStepsArgs {
  BlockSequentialArgs<DiffusionView> sequential;  // one sample after another, by one team
  GridExchange exchange;
  int32_t resident;
};

// Exchanges of a step: blocks that have no panel of the hidden layers have one of the output layer.
constexpr int32_t ExchangesOf(const DenoiserView& d) { return 2 + GridLayers::HiddenLayers(d); }
// An exchange for the steps of a process, with places [PlacesOf(process)], which are zero.
constexpr int64_t PlacesOf(const DiffusionView& process) {
  return ExchangeSets(ExchangesOf(process.denoiser)) * process.StepFloats(1);
}
constexpr GridExchange ExchangeOf(const DiffusionView& process, uint64_t* places) {
  return {places, ExchangeSets(ExchangesOf(process.denoiser)),
          static_cast<int32_t>(process.StepFloats(1)), 0};
}

// Floats of a block's shared memory.
constexpr int64_t GridFloats(const DiffusionView& process, const GridShape& shape) {
  return FirstHeldFloat(process) +
         GridLayers::Floats(process.denoiser, shape.blocks, shape.resident);
}

// Body of a cooperative launch of args.sequential.team.num_blocks blocks with GridFloats of shared
// memory: bits are those of SolveByTeams.
template <class Context>
DEEPPCR_DEVICE void SolveOverGrid(Context& context, const GridStepsArgs& args) {
  const BlockSequentialArgs<DiffusionView>& sequential = args.sequential;
  const DiffusionView& process = sequential.process;
  const GridTeam<Context> team(context, args.exchange);
  float* const memory = SharedFloats(context);
  DenoiserStep<1, GridTeam<Context>, StepRowsAre::kStates, GridLayers> step(team, process.denoiser,
                                                                            memory, 1, false);
  step.Hold(memory + FirstHeldFloat(process), args.resident);
  for (int sample = 0; sample < sequential.num_samples; ++sample)
    SolveSample(team, sequential, sample, step);
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_DIFFUSION_GRID_STEPS_H_
