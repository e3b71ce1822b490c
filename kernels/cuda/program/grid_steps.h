// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_PROGRAM_GRID_STEPS_H_
#define DEEPPCR_KERNELS_CUDA_PROGRAM_GRID_STEPS_H_

// Sequential steps of a program of wide layers by all blocks of a GPU together, as
// diffusion/grid_steps.h has them of a wide denoiser. Panels are dealt out to the blocks layer
// after layer, where the last layer left off. A block keeps those of its panels in shared memory
// that come first, as far as there is room; those of matrices that depend on the time are read in
// every step.

#include <cstdint>

#include "kernels/cuda/loop/grid_args.h"
#include "kernels/cuda/math/grid_team.h"
#include "kernels/cuda/math/own_panels.h"
#include "kernels/cuda/program/kernel.h"
#include "kernels/cuda/program/step.h"
#include "kernels/cuda/program/view.h"
#include "kernels/cuda/runtime/device_code.h"

namespace deeppcr::cuda {

// Where an instruction's layer is in a block.
struct OwnLayer {
  int32_t first;  // the block that has its first panel
  int32_t at;     // floats before its panels among those that the block keeps; -1: it keeps none
};

// Panels of the layer of an instruction that make elements of its result; none of an instruction
// that has no layer. Where vectors are copied, padding is no element.
constexpr int PanelsOf(const ProgramInstruction& instruction) {
  if (instruction.kind != program::OpKind::kLinear && instruction.kind != program::OpKind::kProduct)
    return 0;
  if (!instruction.gathers) return instruction.layer.rows / kPanelRows;
  return (instruction.outputs + kPanelRows - 1) / kPanelRows;
}

// Deals out the panels of a section's layers to blocks, one layer after another.
class PanelDeal {
 public:
  explicit constexpr PanelDeal(int blocks) : blocks_(blocks) {}

  // The block that has the first panel of the next layer.
  constexpr int first() const { return first_; }
  // Floats that a block could keep of it.
  constexpr int64_t FloatsOf(const ProgramInstruction& instruction, int block) const {
    if (instruction.layer_stride != 0) return 0;
    const int panels = OwnPanelsOf(PanelsOf(instruction), first_, block, blocks_);
    return int64_t{panels} * kPanelRows * instruction.layer.cols;
  }
  constexpr void Next(const ProgramInstruction& instruction) {
    first_ = (first_ + PanelsOf(instruction)) % blocks_;
  }

 private:
  const int blocks_;
  int first_ = 0;
};

// Layers for a SectionRunner, of which a block keeps its panels.
class OwnLayers {
 public:
  template <int P, class Context>
  using Panels = OwnPanels<P, Context>;

  // Floats for the places of `count` instructions.
  static constexpr int PlaceFloats(int count) { return (2 * count + 3) / 4 * 4; }

  // Copies panels to `memory`, of PlaceFloats(section.count) + `room` floats, aligned to 16 bytes.
  // The caller synchronises the block before the first step.
  template <class Team>
  DEEPPCR_DEVICE OwnLayers(const Team& team, const ProgramSection& section, float* memory, int room)
      : places_(reinterpret_cast<OwnLayer*>(memory)), panels_(memory + PlaceFloats(section.count)) {
    auto& context = team.context();
    PanelDeal deal(context.num_blocks());
    int64_t at = 0;
    for (int i = 0; i < section.count; ++i) {
      const ProgramInstruction& instruction = section.instructions[i];
      const int64_t end = at + deal.FloatsOf(instruction, context.block());
      const bool kept = end > at && end <= room;
      if (kept) {
        const PanelLayer layer = StreamedLayers().LayerOf(instruction, i, 0);
        CopyOwnPanels(From(team, deal.first()), OfElements(instruction, layer), panels_ + at);
      }
      if (context.thread() == 0) places_[i] = {deal.first(), kept ? static_cast<int32_t>(at) : -1};
      if (kept) at = end;
      deal.Next(instruction);
    }
    context.CommitCopies();
    context.template WaitForCopies<0>();
  }

  DEEPPCR_DEVICE PanelLayer LayerOf(const ProgramInstruction& instruction, int at,
                                    int64_t step) const {
    const int place = places_[at].at;
    const PanelLayer layer = StreamedLayers().LayerOf(instruction, at, step);
    return OfElements(instruction, place < 0 ? layer : WithOwnPanels(panels_ + place, layer));
  }
  template <class Team>
  DEEPPCR_DEVICE Team TeamOf(const Team& team, int at) const {
    return From(team, places_[at].first);
  }

 private:
  // A layer without panels that make no element: a block that has no others would not be waited
  // for.
  static DEEPPCR_DEVICE PanelLayer OfElements(const ProgramInstruction& instruction,
                                              const PanelLayer& layer) {
    return {layer.weights, layer.bias, layer.spreads, PanelsOf(instruction) * kPanelRows,
            layer.cols};
  }
  // The team, with the first warps in block `first`.
  template <class Team>
  static DEEPPCR_DEVICE Team From(const Team& team, int first) {
    return team.FromLast(team.context().num_blocks() - first);
  }

  OwnLayer* const places_;  // [instructions]
  float* const panels_;
};

// Body of a cooperative launch of args.sequential.team.num_blocks blocks with GridFloats of shared
// memory: bits are those of SolveByTeams. View: ProgramView or CompiledView.
template <class Context, class View>
DEEPPCR_DEVICE void SolveProgramOverGrid(Context& context, const GridStepsArgs<View>& args) {
  using Team = GridTeam<Context>;
  const BlockSequentialArgs<View>& sequential = args.sequential;
  const View& process = sequential.process;
  const Team team(context, args.exchange);
  float* const memory = SharedFloats(context);
  const OwnLayers layers(team, process.section, memory + process.StepFloats(1), args.resident);
  ProgramStep<1, Team, typename View::Code, OwnLayers> step(team, process, memory, 1, false,
                                                            layers);
  for (int sample = 0; sample < sequential.num_samples; ++sample)
    SolveSample(team, sequential, sample, step);
}

// Floats of a block's shared memory.
constexpr int64_t GridFloats(const ProgramView& process, const GridShape& shape) {
  return process.StepFloats(1) + OwnLayers::PlaceFloats(process.section.count) + shape.resident;
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_PROGRAM_GRID_STEPS_H_
