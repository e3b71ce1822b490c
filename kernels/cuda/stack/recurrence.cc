// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/stack/recurrence.h"

#include <algorithm>
#include <cstdlib>

#include "kernels/cuda/loop/device_loop.h"
#include "kernels/cuda/loop/pass_loop.h"
#include "kernels/cuda/loop/solve_places.h"
#include "kernels/cuda/tuning.h"

namespace deeppcr::cuda {
namespace {

// z_0 by the layers before the first step.
void LaunchInputLayers(Workspace& work, const DenseStackModel& model, int32_t num_samples) {
  work.LaunchChain(model.encode(),
                   {.inputs = work.inputs.data(),
                    .input_stride = work.shape.input_dim,
                    .outputs = work.initial.data(),
                    .output_stride = work.width},
                   num_samples);
}

// Dense stacks of D <= kMaxWarpStateDim, on GPUs with clusters.
class WarpStackRecurrence final : public Recurrence {
 public:
  WarpStackRecurrence(Workspace& work, const StackModel& model) : work_(work), model_(model) {}

  const DeviceChain& decode() const override { return model_.decode(); }
  int64_t StepsPerPoll(int32_t) const override { return kWarpStepsPerPoll; }
  PassCount GuessCoarse() override {
    work_.guess = {};
    return {};
  }
  void GuessAffine() override { work_.guess = model_.guess(); }
  void LaunchEncode(int32_t num_samples) override { LaunchInputLayers(work_, model_, num_samples); }
  void LaunchSteps(int32_t num_samples, int64_t begin, int64_t end, float* trajectories) override {
    work_.stream->Launch(
        SequentialArgs{.stack = model_.view(),
                       .num_samples = num_samples,
                       .begin = begin,
                       .end = end,
                       .states = begin == 0 ? work_.initial.data() : work_.current.data(),
                       .final_states = work_.current.data(),
                       .trajectories = trajectories,
                       .num_dependent = work_.num_dependent.data()},
        work_.width);
  }
  const StackView* whole_solve() const override { return &model_.view(); }
  // The kernel of the whole solve propagates and expands itself.
  void LaunchPropagation(const Propagation&) override { std::abort(); }
  void LaunchExpansion(int64_t, const IntervalsView&, int32_t, float*) override { std::abort(); }

 private:
  Workspace& work_;
  const StackModel& model_;
};

// Places that solves over the whole GPU need, of so many intervals or fewer: more need more places,
// but may have no room in shared memory.
int64_t PlacesOf(const LaunchLimits& device, int width, int64_t intervals) {
  int64_t most = std::min<int64_t>(intervals, MostHelpedIntervals(device));
  while (most > 0 && PlanResidentStack(width, most, 1, device).num_intervals == 0) --most;
  return most == 0 ? 0 : HelpedPlaces::Count(static_cast<int>(most), width);
}

// Wider dense stacks, and all on GPUs without clusters.
class PanelStackRecurrence final : public BlockRecurrence<PanelStackView> {
 public:
  PanelStackRecurrence(Workspace& work, const PanelStackModel& model)
      : BlockRecurrence(work), model_(model), places_(work) {}

  absl::Status Allocate() override {
    return places_.Allocate(PlacesOf(work_.limits, work_.width, work_.sizes.intervals));
  }

  const DeviceChain& decode() const override { return model_.decode(); }
  int64_t StepsPerPoll(int32_t) const override {
    const double weights = static_cast<double>(work_.width) * work_.width;
    return static_cast<int64_t>(kLaunchNanoseconds /
                                (kStackStepNanoseconds + kWeightNanoseconds * weights));
  }
  PassCount GuessCoarse() override {
    work_.guess = {};
    return {};
  }
  void GuessAffine() override { work_.guess = model_.guess(); }
  void LaunchEncode(int32_t num_samples) override { LaunchInputLayers(work_, model_, num_samples); }

  IntervalTree grid_tree(const StoppingPolicy& policy) const override {
    return MaySolveOverGrid(policy, work_.interval)
               ? PlanResidentStack(work_.width, work_.intervals, work_.interval, work_.limits)
               : IntervalTree(0, 1);
  }
  void LaunchGridSolve(int64_t, const NewtonArgs& newton) override {
    work_.stream->Launch(
        ResidentStackArgs{.stack = model_.view(), .solve = {newton, places_.Next()}});
  }

 private:
  PanelStackView ProcessFrom(int64_t) const override { return model_.view(); }
  int RowsPerStep() const override { return model_.rows_per_step(); }

  const PanelStackModel& model_;
  SolvePlaces places_;
};

// Sizes without the workspace.
template <class Model>
SpaceSizes CommonSizes(const LaunchLimits& device, const Model& model, const SpaceLimits& limits) {
  SpaceSizes sizes;
  sizes.shape = model.shape();
  sizes.width = model.width();
  sizes.group = GroupSize(model.shape(), 0);
  sizes.inputs = model.shape().input_dim;
  sizes.scratch =
      std::max(model.encode().ScratchFloats(device), model.decode().ScratchFloats(device));
  if (limits.iterative) sizes.intervals = NumIntervals(model.shape(), limits.min_shooting_interval);
  return sizes;
}

}  // namespace

SpaceSizes SizesOf(const LaunchLimits& device, const StackModel& model, const SpaceLimits& limits) {
  SpaceSizes sizes = CommonSizes(device, model, limits);
  sizes.iterative = sizes.group;
  if (!limits.iterative) return sizes;
  sizes.workspace_bytes =
      std::min<int64_t>(sizes.group, kWorkspaceGroup) * WorkspaceBytesAtOnce(device, sizes);
  sizes.loop_bytes = sizes.group * int64_t{sizeof(Progress)};
  return sizes;
}
SpaceSizes SizesOf(const LaunchLimits& device, const PanelStackModel& model,
                   const SpaceLimits& limits) {
  SpaceSizes sizes = CommonSizes(device, model, limits);
  sizes.iterative = PassGroup(sizes);
  if (!limits.iterative) return sizes;
  sizes.workspace_bytes = PassWorkspaceBytes(sizes);
  sizes.loop_bytes = PassLoopBytes(sizes);
  if (const int64_t places = PlacesOf(device, model.width(), sizes.intervals); places > 0) {
    sizes.solves_at_once = true;
    sizes.loop_bytes += places * int64_t{sizeof(uint64_t)} + DeviceLoopBytes(sizes);
  }
  sizes.product_bytes = kTreeProductBytes;
  return sizes;
}

bool SolvesAtOnce(const LaunchLimits& device, const PanelStackModel& model,
                  int64_t shooting_interval) {
  const int64_t intervals = NumIntervals(model.shape(), shooting_interval);
  return PlanResidentStack(model.width(), intervals, shooting_interval, device).num_intervals > 0;
}

std::unique_ptr<Recurrence> NewRecurrence(Workspace& work, const StackModel& model) {
  return std::make_unique<WarpStackRecurrence>(work, model);
}
std::unique_ptr<Recurrence> NewRecurrence(Workspace& work, const PanelStackModel& model) {
  return std::make_unique<PanelStackRecurrence>(work, model);
}

}  // namespace deeppcr::cuda
