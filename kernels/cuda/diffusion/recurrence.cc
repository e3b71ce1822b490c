// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/diffusion/recurrence.h"

#include <algorithm>
#include <cstdint>
#include <memory>

#include "kernels/base/status_macros.h"
#include "kernels/cuda/diffusion/process_recurrence.h"
#include "kernels/cuda/diffusion/wide_propagation.h"
#include "kernels/cuda/loop/block_shape.h"
#include "kernels/cuda/loop/device_loop.h"
#include "kernels/cuda/loop/grid_launcher.h"
#include "kernels/cuda/loop/pass_loop.h"
#include "kernels/cuda/loop/solve_places.h"
#include "kernels/cuda/tuning.h"

namespace deeppcr::cuda {
namespace {

// Samples whose intervals lie in the workspace at a time.
int64_t SamplesInWorkspace(const LaunchLimits& device, const SpaceSizes& sizes) {
  return ByWarps(sizes.shape.state_dim, device) ? std::min<int64_t>(sizes.group, kWorkspaceGroup)
                                                : sizes.iterative;
}
// Tapes of the intervals of these samples.
int64_t TapeFloats(const LaunchLimits& device, const DiffusionModel& model,
                   const SpaceSizes& sizes) {
  return SamplesInWorkspace(device, sizes) * sizes.intervals *
         DenoiserTape::Floats(model.view().denoiser);
}

// Places and workspace that solves over the whole GPU need, of so many intervals or fewer.
struct GridSolveSizes {
  int64_t places = 0, workspace_bytes = 0;

  GridSolveSizes(const LaunchLimits& device, const DiffusionView& process, int64_t intervals) {
    for (int64_t p = std::min<int64_t>(intervals, kResidentIntervals * device.grid_blocks); p > 0;
         --p) {
      const IntervalTree tree = PlanResidentSolve(process, p, device);
      if (tree.num_intervals == 0) continue;
      places = std::max(places, GridPlaces::Count(GridBlocksOf(tree), process.width));
      workspace_bytes = std::max(workspace_bytes, WorkspaceBytes(process.width, tree));
    }
  }
};

class DiffusionRecurrence final : public ReverseProcessRecurrence<DiffusionView> {
 public:
  DiffusionRecurrence(Workspace& work, const DiffusionModel& model)
      : ReverseProcessRecurrence(work, model.initial_scale()),
        model_(model),
        grid_(work),
        places_(work) {}

  absl::Status Allocate() override {
    DEEPPCR_RETURN_IF_ERROR(ReverseProcessRecurrence::Allocate());
    const SpaceSizes& sizes = work_.sizes;
    const int64_t group = sizes.group, hidden = model_.view().denoiser.hidden_dim;
    DEEPPCR_RETURN_IF_ERROR(work_.Take(&table_of_, MemoryKind::kDevice, group));
    if (model_.is_resident())
      DEEPPCR_RETURN_IF_ERROR(
          work_.Take(&tape_, MemoryKind::kDevice, TapeFloats(work_.limits, model_, sizes)));
    if (model_.is_wide() && sizes.intervals > 0)
      DEEPPCR_RETURN_IF_ERROR(wide_.Allocate(work_.device, model_, sizes.intervals));
    DEEPPCR_RETURN_IF_ERROR(grid_.Allocate(PlanGrid(model_.view(), work_.limits)));
    const GridSolveSizes solve(work_.limits, model_.view(), sizes.intervals);
    DEEPPCR_RETURN_IF_ERROR(places_.Allocate(solve.places));
    if (!model_.tables_per_sample()) return absl::OkStatus();
    DEEPPCR_RETURN_IF_ERROR(work_.Take(&conditions_, MemoryKind::kMapped, group * hidden));
    return work_.Take(&tables_, MemoryKind::kDevice, group * model_.table_floats());
  }

  const DeviceChain& decode() const override { return model_.decode(); }
  int64_t StepsPerPoll(int32_t num_samples) const override {
    const int64_t weights = work_.shape.step_weights;
    const double step =
        grid_.Takes(num_samples)
            ? grid_.NanosecondsOf(num_samples, weights)
            : kDenoiserStepNanoseconds + kWeightNanoseconds * static_cast<double>(weights);
    return std::max<int64_t>(1, static_cast<int64_t>(kLaunchNanoseconds / step));
  }

  void Encode(int32_t sample, const SampleInput& input) override {
    const bool own_table = model_.tables_per_sample(), has_classes = work_.shape.num_classes > 0;
    EncodeNoise(sample, input, own_table ? sample : has_classes ? input.label : 0);
    const int64_t hidden = model_.view().denoiser.hidden_dim;
    if (own_table && has_classes)
      std::copy_n(model_.class_embedding().data() + input.label * hidden, hidden,
                  conditions_.data() + sample * hidden);
  }
  void LaunchEncode(int32_t num_samples) override {
    LaunchNoise(num_samples, table_of_.data());
    if (model_.tables_per_sample()) LaunchModulation(num_samples);
  }

  void LaunchSteps(int32_t num_samples, int64_t begin, int64_t end, float* trajectories) override {
    if (!grid_.Takes(num_samples))
      return BlockRecurrence::LaunchSteps(num_samples, begin, end, trajectories);
    grid_.Launch(SequentialArgsOf(num_samples, begin, end, trajectories));
  }
  void LaunchPropagation(const Propagation& propagation) override {
    if (model_.is_resident()) return LaunchResident(propagation);
    if (!model_.is_wide()) return BlockRecurrence::LaunchPropagation(propagation);
    const DiffusionView process = ProcessFrom(propagation.first);
    for (int32_t i = 0; i < propagation.num_members; ++i)
      wide_.Launch(*work_.stream, process, propagation.intervals,
                   propagation.intervals.members.at[i], propagation.kind);
  }
  bool needs_kind() const override { return model_.is_wide(); }

  IntervalTree grid_tree(const StoppingPolicy& policy) const override {
    return MaySolveOverGrid(policy, work_.interval)
               ? PlanResidentSolve(model_.view(), work_.intervals, work_.limits)
               : IntervalTree(0, 1);
  }
  void LaunchGridSolve(int64_t sample, const NewtonArgs& newton) override {
    const PropagationArgs<DiffusionView> propagation = {
        .process = ProcessFrom(sample),
        .intervals = {newton.tree, newton.shooting_interval, kEveryMember, newton.workspace},
        .rows = 0,
        .progress = nullptr,
        .linearization = Linearization::kFull,
        .kind = {}};
    work_.stream->Launch(ResidentSolveArgs{
        .resident = {propagation, newton.tree.per_block, GridBlocksOf(newton.tree), {tape_.data()}},
        .solve = {newton, places_.Next()}});
  }

 private:
  DiffusionView ProcessFrom(int64_t first) const override {
    DiffusionView view = model_.view();
    view.noise = NoiseFrom(first);
    view.table_of = table_of_.data() + first;
    if (model_.tables_per_sample()) view.tables = tables_.data();
    return view;
  }
  int RowsPerStep() const override { return model_.rows_per_step(); }

  void LaunchResident(const Propagation& propagation) {
    const PropagationArgs<DiffusionView> args = ArgsOf(propagation);
    const int64_t intervals = int64_t{propagation.num_members} * work_.intervals;
    work_.stream->Launch(ResidentArgsOf(args, intervals, work_.limits, {tape_.data()}),
                         propagation.num_members);
  }

  void LaunchModulation(int32_t num_samples) {
    if (work_.shape.input_dim > 0)
      work_.LaunchChain(model_.condition(),
                        {.inputs = work_.inputs.data(),
                         .input_stride = work_.shape.input_dim,
                         .outputs = conditions_.data(),
                         .output_stride = model_.view().denoiser.hidden_dim},
                        num_samples);
    ModulationArgs args = model_.modulation();
    args.conditions = conditions_.data();
    args.tables = tables_.data();
    work_.stream->Launch(args, num_samples);
  }

  const DiffusionModel& model_;
  GridLauncher grid_;         // for a wide denoiser
  WidePropagation wide_;      // the same
  DeviceBuffer<float> tape_;  // of a resident one
  SolvePlaces places_;        // the same
  // Mapped memory: [G, H].
  DeviceBuffer<float> conditions_;
  // Device memory: [G, L, modulation_floats], [G].
  DeviceBuffer<float> tables_;
  DeviceBuffer<int32_t> table_of_;
};

}  // namespace

SpaceSizes SizesOf(const LaunchLimits& device, const DiffusionModel& model,
                   const SpaceLimits& limits) {
  const SystemShape& shape = model.shape();
  const int64_t own = model.tables_per_sample() ? model.table_floats() : 0;
  SpaceSizes sizes;
  sizes.shape = shape;
  sizes.width = model.width();
  constexpr int64_t kPerSample = (sizeof(NoiseSource) + sizeof(Progress)) / sizeof(float) + 1;
  sizes.beside =
      (shape.num_steps + 1) * shape.state_dim + own + model.view().denoiser.hidden_dim + kPerSample;
  sizes.group = GroupSize(shape, sizes.beside);
  const bool by_warps = ByWarps(shape.state_dim, device);
  sizes.iterative = by_warps ? sizes.group : PassGroup(sizes);
  sizes.inputs = shape.input_dim;
  sizes.scratch =
      std::max({model.decode().ScratchFloats(device), model.condition().ScratchFloats(device)});
  sizes.loop_bytes = PlanGrid(model.view(), device).bytes();
  if (!limits.iterative) return sizes;
  sizes.intervals = NumIntervals(shape, limits.min_shooting_interval);
  const int64_t coarse = sizes.iterative * sizes.intervals * model.width() * int64_t{sizeof(float)};
  if (model.is_wide()) sizes.loop_bytes += WidePropagation::Bytes(model, sizes.intervals);
  const GridSolveSizes solve(device, model.view(), sizes.intervals);
  if (model.is_resident())
    sizes.loop_bytes += TapeFloats(device, model, sizes) * int64_t{sizeof(float)} +
                        solve.places * int64_t{sizeof(uint64_t)};
  if (by_warps) {
    sizes.workspace_bytes =
        std::max(SamplesInWorkspace(device, sizes) * WorkspaceBytesInParts(device, sizes),
                 solve.workspace_bytes);
    sizes.loop_bytes += coarse + sizes.group * int64_t{sizeof(Progress)};
    sizes.product_bytes = model.is_wide() ? kLayerProductBytes : 0;
  } else {
    sizes.workspace_bytes = PassWorkspaceBytes(sizes);
    sizes.loop_bytes += coarse + PassLoopBytes(sizes);
    sizes.product_bytes = model.is_wide() ? kLayerProductBytes : kTreeProductBytes;
  }
  return sizes;
}

bool SolvesAtOnce(const LaunchLimits& device, const DiffusionModel& model,
                  int64_t shooting_interval) {
  const int64_t intervals = NumIntervals(model.shape(), shooting_interval);
  return PlanResidentSolve(model.view(), intervals, device).num_intervals > 0;
}

std::unique_ptr<Recurrence> NewRecurrence(Workspace& work, const DiffusionModel& model) {
  return std::make_unique<DiffusionRecurrence>(work, model);
}

}  // namespace deeppcr::cuda
