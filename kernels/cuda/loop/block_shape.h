// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_LOOP_BLOCK_SHAPE_H_
#define DEEPPCR_KERNELS_CUDA_LOOP_BLOCK_SHAPE_H_

// Sizes of the launches of block_recurrence.h, diffusion/kernel.h, pass_kernel.h and of the kernels
// for wide denoisers.

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/diffusion/grid_steps.h"
#include "kernels/cuda/diffusion/half_denoiser.h"
#include "kernels/cuda/diffusion/kernel.h"
#include "kernels/cuda/diffusion/resident_propagation.h"
#include "kernels/cuda/diffusion/resident_solve.h"
#include "kernels/cuda/diffusion/tangent_kernel.h"
#include "kernels/cuda/loop/block_recurrence.h"
#include "kernels/cuda/loop/newton_shape.h"
#include "kernels/cuda/loop/pass_kernel.h"
#include "kernels/cuda/program/grid_steps.h"
#include "kernels/cuda/program/kernel.h"
#include "kernels/cuda/stack/panel_step.h"
#include "kernels/cuda/stack/resident_stack_solve.h"
#include "kernels/cuda/tuning.h"

namespace deeppcr::cuda {

constexpr int WidestLayer(const DiffusionView& process) { return process.denoiser.hidden_width; }
constexpr int WidestLayer(const PanelStackView& process) { return process.width; }
constexpr int WidestLayer(const ProgramView& process) { return process.section.widest; }
constexpr int WarpsOf(int widest_layer, int num_blocks, int max_warps) {
  const int panels = widest_layer / kPanelRows / num_blocks;
  const int most = max_warps < kMaxBlockWarps ? max_warps : kMaxBlockWarps;
  return panels < most ? panels : most;
}
template <class Process>
constexpr int BlockWarps(const Process& process, int num_blocks, int max_warps) {
  return WarpsOf(WidestLayer(process), num_blocks, max_warps);
}

// Bytes of shared memory of steps of `rows` rows.
template <class Process>
constexpr size_t StepBytes(const Process& process, int rows) {
  return static_cast<size_t>(process.StepFloats(rows)) * sizeof(float);
}
template <class Process>
constexpr size_t CoarseBytes(const Process& process, int64_t staged_floats = 0) {
  return static_cast<size_t>(FirstStagedFloat(process) + staged_floats) * sizeof(float);
}
// Bytes of launches with HeldLayers.
constexpr size_t HeldBytes(const DiffusionView& process) {
  const int64_t floats = FirstHeldFloat(process) + HeldLayers::Floats(process.denoiser);
  return static_cast<size_t>(floats) * sizeof(float);
}
constexpr int CoarseBuffers(const ProgramView&) { return 1; }
constexpr int CoarseBuffers(const DiffusionView& process) {
  return FitsRegisters(process.denoiser) ? 2 : 1;
}
// CoarseArgs::staged_floats; 0 also where a sampler carries a memory.
template <class Process>
constexpr int32_t StagedFloats(const Process& process, const LaunchLimits& limits) {
  if constexpr (Process::kAnySampler) {
    if (process.memory_holds != nullptr) return 0;
  }
  const int64_t room =
      static_cast<int64_t>(limits.shared_bytes) - static_cast<int64_t>(CoarseBytes(process));
  const int64_t floats = HoldScan<int>::Floats(CoarseStride(process.num_steps), SampleDim(process),
                                               CoarseBuffers(process));
  return floats * int64_t{sizeof(float)} <= room ? static_cast<int32_t>(floats) : 0;
}

// Blocks of a team: where layers are wide, all blocks of a cluster make a step, each with panels
// enough, as long as there is room for `teams` clusters side by side.
constexpr int TeamBlocks(int widest_layer, int teams, const LaunchLimits& limits) {
  int blocks = 1;
  while (widest_layer >= kWideLayer && 2 * blocks <= limits.max_cluster_blocks &&
         teams <= limits.ClustersAtOnce(2 * blocks) &&
         2 * blocks * kPanelsPerBlock * kPanelRows <= widest_layer)
    blocks *= 2;
  return blocks;
}
constexpr int MostTeamSamples(const PanelStackView&, const LaunchLimits&) { return 1; }
constexpr int MostTeamSamples(const ProgramView&, const LaunchLimits&) { return 1; }
constexpr int MostTeamSamples(const DiffusionView& process, const LaunchLimits& limits) {
  int samples = WidestLayer(process) < kWideLayer ? 1 : kTeamSamples;
  while (samples > 1 && StepBytes(process, samples) > limits.shared_bytes) --samples;
  return samples;
}
// Teams take samples together where that is possible and there are more samples than clusters; else
// more samples mean smaller teams.
template <class Process>
constexpr TeamShape ChooseTeams(const Process& process, int num_samples,
                                const LaunchLimits& limits) {
  const int most = MostTeamSamples(process, limits);
  if (most == 1) return {TeamBlocks(WidestLayer(process), num_samples, limits), 1};
  const int blocks = TeamBlocks(WidestLayer(process), 1, limits);
  const int room = limits.ClustersAtOnce(blocks);
  const int free = room > 1 ? room : 1;
  const int wanted = (num_samples + free - 1) / free;
  return {blocks, wanted < most ? wanted : most};
}

template <class Process>
constexpr size_t GridBytes(const Process& process, const GridShape& shape) {
  return static_cast<size_t>(GridFloats(process, shape)) * sizeof(float);
}
// A launch over the whole GPU for a wide denoiser: a block for each panel of its hidden and of its
// output layer, if there are as many, with as many layers as their shared memory holds. None where
// blocks cannot wait for one another, or have no room for a step, its input and its output layer.
constexpr GridPlan PlanGrid(const DiffusionView& process, const LaunchLimits& limits) {
  const DenoiserView& d = process.denoiser;
  if (limits.grid_blocks == 0 || d.hidden_width < kWideLayer) return {};
  const int panels = (d.hidden_width + d.state_cols) / kPanelRows;
  GridShape shape = {panels < limits.grid_blocks ? panels : limits.grid_blocks,
                     GridLayers::HiddenLayers(d)};
  while (shape.resident >= 0 && GridBytes(process, shape) > limits.shared_bytes) --shape.resident;
  if (shape.resident < 0) return {};
  return {shape, ExchangesOf(d), process.StepFloats(1)};
}

// True where a block keeps weights in its registers from step to step (HeldLayers).
constexpr bool HoldsLayers(const DiffusionView& process, int num_blocks, int max_warps) {
  const DenoiserView& d = process.denoiser;
  return num_blocks == 1 && FitsRegisters(d) &&
         BlockWarps(process, 1, max_warps) * kPanelRows >= d.hidden_width;
}

// True where a block has room for all layers of the blocks of a residual denoiser
// (resident_propagation.h).
constexpr size_t ResidentBytes(const DiffusionView& process, int together) {
  return static_cast<size_t>(ResidentFloats(process.denoiser, together)) * sizeof(float);
}
constexpr bool IsResident(const DiffusionView& process, const LaunchLimits& limits) {
  const DenoiserView& d = process.denoiser;
  return !d.ada_ln && d.hidden_width == ResidentWidth(d.hidden_dim) &&
         d.state_cols <= kMaxWarpStateDim && ResidentBytes(process, 1) <= limits.shared_bytes;
}
// Intervals of a block, of `intervals` of all samples: as few as keep all multiprocessors at work.
constexpr int ResidentTogether(const DiffusionView& process, int64_t intervals,
                               const LaunchLimits& limits) {
  const int64_t wanted = (intervals + limits.multiprocessors - 1) / limits.multiprocessors;
  int together = wanted < kResidentIntervals ? static_cast<int>(wanted) : kResidentIntervals;
  while (ResidentBytes(process, together) > limits.shared_bytes) --together;
  return together;
}
constexpr ResidentArgs ResidentArgsOf(const PropagationArgs<DiffusionView>& propagation,
                                      int64_t intervals, const LaunchLimits& limits,
                                      const DenoiserTape& tape) {
  const int together = ResidentTogether(propagation.process, intervals, limits);
  const int32_t of_sample = propagation.intervals.tree.num_intervals;
  return {propagation, together, (of_sample + together - 1) / together, tape};
}
constexpr int64_t BlocksOf(const ResidentArgs& args, int num_members) {
  return int64_t{num_members} * args.groups;
}

// The tree of a solve that is one launch over the whole GPU (resident_solve.h), for which samples
// take turns; no intervals where blocks cannot wait for one another, have no room for their layers,
// intervals and states, or where a sample has too few intervals to keep half of them at work.
constexpr size_t ResidentSolveBytes(const DiffusionView& process, const IntervalTree& tree) {
  return static_cast<size_t>(ResidentSolveFloats(process, tree)) * sizeof(float);
}
constexpr IntervalTree PlanResidentSolve(const DiffusionView& process, int64_t num_intervals,
                                         const LaunchLimits& limits) {
  constexpr int kMostBlocks = kResidentWarps * kWarpSize;  // a thread takes the norms of a block
  const int blocks = limits.grid_blocks < kMostBlocks ? limits.grid_blocks : kMostBlocks;
  const IntervalTree none(0, 1);
  if (blocks == 0 || num_intervals == 0 || process.width > 16 || !IsResident(process, limits) ||
      !ByWarps(process.state_dim, limits))
    return none;
  const IntervalTree tree = GridTree(num_intervals, blocks);
  const bool fits = tree.per_block <= kResidentIntervals && 2 * GridBlocksOf(tree) >= blocks &&
                    ResidentSolveBytes(process, tree) <= limits.shared_bytes;
  return fits ? tree : none;
}

// The same of a dense stack (resident_stack_solve.h): the tree of a single block, in whose
// workspace the states are left, of as many intervals as a GPU has blocks for with those that help,
// and whose layers a block has room for.
constexpr size_t ResidentStackBytes(int32_t intervals, int64_t shooting_interval) {
  return static_cast<size_t>(ResidentStackFloats(intervals, shooting_interval)) * sizeof(float);
}
constexpr size_t ResidentStackBytes(const ResidentStackArgs& args) {
  const NewtonArgs& newton = args.solve.newton;
  return ResidentStackBytes(newton.tree.num_intervals, newton.shooting_interval);
}
constexpr int32_t MostHelpedIntervals(const LaunchLimits& limits) {
  constexpr int32_t kMost = kResidentWarps * kWarpSize;  // a thread takes the norms of a block
  int32_t intervals = limits.grid_blocks < kMost ? limits.grid_blocks : kMost;
  while (intervals > 0 && HelpedShape{intervals}.blocks() > limits.grid_blocks) --intervals;
  return intervals;
}
constexpr IntervalTree PlanResidentStack(int width, int64_t num_intervals,
                                         int64_t shooting_interval, const LaunchLimits& limits) {
  const IntervalTree none(0, 1);
  if (width != kResidentStackWidth || num_intervals < 2 ||
      num_intervals > MostHelpedIntervals(limits))
    return none;
  const auto intervals = static_cast<int32_t>(num_intervals);
  return ResidentStackBytes(intervals, shooting_interval) <= limits.shared_bytes
             ? IntervalTree(intervals, 1)
             : none;
}

// Rows that pass through a step together: all, or as many as a block has memory for; 0 where the
// memory is too small for a state, its probes and a column.
template <class Process>
constexpr int StepRows(const Process& process, const LaunchLimits& limits) {
  const int all = 1 + kNumProbes + process.width;
  int rows = all < kMostStepRows ? all : kMostStepRows;
  while (rows > 0 && StepBytes(process, rows) > limits.shared_bytes) --rows;
  return rows >= 2 + kNumProbes ? rows : 0;
}

// Calls f(std::integral_constant<int, S>) for the smallest S, of the sizes that kernels are made
// for, that holds `rows` rows: with columns of 8, 16, or more.
template <class F>
auto WithStepRows(int rows, const F& f) {
  if (rows <= 13) return f(std::integral_constant<int, 13>{});
  if (rows <= 21) return f(std::integral_constant<int, 21>{});
  return f(std::integral_constant<int, kMostStepRows>{});
}

// Blocks of the launches over intervals, states and nodes of `num_samples` samples.
template <class Process>
constexpr int64_t BlocksOf(const PropagationArgs<Process>& args, int num_samples) {
  return int64_t{num_samples} * args.intervals.tree.num_intervals;
}
template <class Process>
constexpr int64_t BlocksOf(const ExpansionArgs<Process>& args, int num_samples) {
  return int64_t{num_samples} * args.intervals.tree.num_intervals;
}
constexpr int64_t BlocksOf(const StartArgs& args, int num_samples) {
  return int64_t{num_samples} * (args.pass.tree.num_intervals + 1);
}
constexpr size_t ConditionBytes(const ConditionArgs& args) {
  return static_cast<size_t>(FrameFloats(args.section, 1)) * sizeof(float);
}
constexpr int64_t BlocksOf(const ConditionArgs& args, int num_samples) {
  return num_samples * (args.per_step ? args.process.num_steps : int64_t{1});
}
constexpr int64_t BlocksOf(const TangentArgs& args) {
  return int64_t{args.range.count} * args.rows.groups();
}

// ---- The rest of a pass
static_assert(int{kNumPassSites} <= int{kBeforeNormTangents}, "sites of their own");
constexpr int PassWarps(int max_warps) { return max_warps < kPassWarps ? max_warps : kPassWarps; }
constexpr size_t CollectBytes(int warps) {
  return static_cast<size_t>(warps) * sizeof(UpdateNorms);
}

constexpr int64_t BlocksOf(const LevelArgs& args, int num_members, int warps) {
  return int64_t{num_members} * RowBlocks(args.pass.tree.nodes(args.level), args.pass.width, warps);
}
constexpr int64_t BlocksOf(const UpdateArgs& args, int num_members, int warps) {
  return int64_t{num_members} * RowBlocks(args.pass.tree.num_intervals, args.pass.width, warps);
}

constexpr int64_t TransitionBytes(Linearization linearization, int width) {
  const int64_t floats = linearization == Linearization::kFull ? width : kNumColumns;
  return floats * width * int64_t{sizeof(float)};
}
// Largest team that all members may have side by side and whose warps all have rows, and the first
// level that it can take; a level beyond the tree's if it can take none.
constexpr TreeShape ChooseTree(const IntervalTree& tree, int width, Linearization linearization,
                               int num_members, const LaunchLimits& limits) {
  TreeShape shape = {1, 0};
  while (2 * shape.num_blocks <= limits.max_cluster_blocks &&
         2 * shape.num_blocks <= RowBlocks(tree.num_intervals, width, kPassWarps) &&
         num_members <= limits.ClustersAtOnce(2 * shape.num_blocks))
    shape.num_blocks *= 2;
  const int64_t most = shape.num_blocks * kTreeBlockBytes;
  while (shape.first_level < tree.levels &&
         tree.nodes(shape.first_level) * TransitionBytes(linearization, width) > most)
    ++shape.first_level;
  return shape;
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_LOOP_BLOCK_SHAPE_H_
