// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_DIFFUSION_GRID_STEPS_H_
#define DEEPPCR_KERNELS_CUDA_DIFFUSION_GRID_STEPS_H_

// Sequential steps of a wide denoiser by all blocks of a GPU together, which keep its layers in
// their shared memory, each some panels of every layer: what a cluster has to read anew in every
// step, from the L2 through sixteen multiprocessors, is read once a launch. Layers for which there
// is no room are read in every step, through all multiprocessors.

#include <cstdint>

#include "kernels/cuda/diffusion/kernel.h"
#include "kernels/cuda/loop/grid_args.h"
#include "kernels/cuda/math/grid_team.h"
#include "kernels/cuda/math/own_panels.h"

namespace deeppcr::cuda {

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

  static constexpr int OwnHidden(const DenoiserView& d, int block, int blocks) {
    return OwnPanelsOf(d.hidden_width / kPanelRows, 0, block, blocks);
  }
  static constexpr int OwnOutput(const DenoiserView& d, int block, int blocks) {
    const int panels = d.state_cols / kPanelRows;
    return OwnPanelsOf(panels, panels < blocks ? blocks - panels : 0, block, blocks);
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
    CopyOwnPanels(team, d.input, input_);
    for (int i = 0; i < resident; ++i) CopyOwnPanels(team, Hidden(d, i), hidden_ + i * floats_);
    CopyOwnPanels(team.FromLast(d.state_cols / kPanelRows), d.output, output_);
    context.CommitCopies();
    context.template WaitForCopies<0>();
  }
  DEEPPCR_DEVICE PanelLayer Input(const DenoiserView& d) const {
    return WithOwnPanels(input_, d.input);
  }
  DEEPPCR_DEVICE PanelLayer Output(const DenoiserView& d) const {
    return WithOwnPanels(output_, d.output);
  }
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
    return i < resident_ ? WithOwnPanels(hidden_ + i * floats_, layer) : layer;
  }

  float *input_, *hidden_, *output_;
  int32_t resident_, floats_;  // floats of one of the resident layers
};

// Exchanges of a step: blocks that have no panel of the hidden layers have one of the output layer.
constexpr int32_t ExchangesOf(const DenoiserView& d) { return 2 + GridLayers::HiddenLayers(d); }
// Floats of a block's shared memory.
constexpr int64_t GridFloats(const DiffusionView& process, const GridShape& shape) {
  return FirstHeldFloat(process) +
         GridLayers::Floats(process.denoiser, shape.blocks, shape.resident);
}

// Body of a cooperative launch of args.sequential.team.num_blocks blocks with GridFloats of shared
// memory: bits are those of SolveByTeams.
template <class Context>
DEEPPCR_DEVICE void SolveOverGrid(Context& context, const GridStepsArgs<DiffusionView>& args) {
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
