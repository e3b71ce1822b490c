// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/program/recurrence.h"

#include <algorithm>

#include "kernels/base/status_macros.h"
#include "kernels/cuda/diffusion/process_recurrence.h"
#include "kernels/cuda/loop/block_shape.h"
#include "kernels/cuda/loop/device_loop.h"
#include "kernels/cuda/loop/grid_launcher.h"
#include "kernels/cuda/loop/pass_loop.h"
#include "kernels/cuda/tuning.h"

namespace deeppcr::cuda {
namespace {

// Launches of a family, of a model that is a program.
template <class Launches>
class ProgramRecurrence : public Launches {
 public:
  template <class... Args>
  explicit ProgramRecurrence(Workspace& work, const ProgramModel& model, const GridPlan& grid,
                             Args... args)
      : Launches(work, args...), model_(model), plan_(grid), grid_(work) {}

  absl::Status Allocate() override {
    DEEPPCR_RETURN_IF_ERROR(Launches::Allocate());
    return grid_.Allocate(plan_);
  }
  const DeviceChain& decode() const override { return model_.decode(); }
  int64_t StepsPerPoll(int32_t num_samples) const override {
    const int64_t weights = work_.shape.step_weights;
    const bool by_grid = grid_.Takes(num_samples);
    const double instructions = kInstructionNanoseconds * model_.view().section.count;
    const double step = by_grid
                            ? num_samples * instructions + grid_.NanosecondsOf(num_samples, weights)
                            : instructions + kWeightNanoseconds * static_cast<double>(weights);
    return std::max<int64_t>(1, static_cast<int64_t>(kLaunchNanoseconds / std::max(step, 1.0)));
  }
  void LaunchSteps(int32_t num_samples, int64_t begin, int64_t end, float* trajectories) override {
    if (!grid_.Takes(num_samples))
      return Launches::LaunchSteps(num_samples, begin, end, trajectories);
    grid_.Launch(this->SequentialArgsOf(num_samples, begin, end, trajectories));
  }

 protected:
  using Launches::work_;

  const ProgramModel& model_;

 private:
  int RowsPerStep() const override { return model_.rows_per_step(); }

  const GridPlan plan_;
  GridLauncher grid_;  // for a program of wide layers
};

// A stack of blocks.
class BlockStackRecurrence final : public ProgramRecurrence<BlockRecurrence<ProgramView>> {
 public:
  using ProgramRecurrence::ProgramRecurrence;

  PassCount GuessCoarse() override {
    work_.guess = {};
    return {};
  }
  void GuessAffine() override { work_.guess = model_.guess(); }
  ProgramView ProcessFrom(int64_t) const override { return model_.view(); }
  void LaunchEncode(int32_t num_samples) override {
    work_.LaunchChain(model_.encode(),
                      {.inputs = work_.inputs.data(),
                       .input_stride = work_.shape.input_dim,
                       .outputs = work_.initial.data(),
                       .output_stride = work_.width},
                      num_samples);
  }
};

// A reverse process, with what the conditions of its samples give.
class ConditionedRecurrence final
    : public ProgramRecurrence<ReverseProcessRecurrence<ProgramView>> {
 public:
  ConditionedRecurrence(Workspace& work, const ProgramModel& model, const GridPlan& grid)
      : ProgramRecurrence(work, model, grid, model.initial_scale()) {}

  absl::Status Allocate() override {
    DEEPPCR_RETURN_IF_ERROR(ProgramRecurrence::Allocate());
    const int64_t group = work_.sizes.group;
    DEEPPCR_RETURN_IF_ERROR(work_.Take(&labels_, MemoryKind::kMapped, group));
    return work_.Take(&conditions_, MemoryKind::kDevice, group * model_.view().given_floats());
  }

  void Encode(int32_t sample, const SampleInput& input) override {
    EncodeNoise(sample, input, 0);
    labels_.data()[sample] = static_cast<float>(input.label);
  }
  ProgramView ProcessFrom(int64_t first) const override {
    ProgramView view = model_.view();
    view.noise = NoiseFrom(first);
    view.conditions = conditions_.data() + first * view.given_floats();
    return view;
  }
  void LaunchEncode(int32_t num_samples) override {
    LaunchNoise(num_samples, nullptr);
    for (const ConditionArgs* args : {&model_.condition(), &model_.mixed()})
      if (args->num_exports > 0) LaunchCondition(*args, num_samples);
  }

 private:
  void LaunchCondition(ConditionArgs args, int32_t num_samples) {
    args.process = ProcessFrom(0);
    args.inputs = work_.inputs.data();
    args.input_stride = work_.sizes.inputs;
    args.labels = labels_.data();
    args.conditions = conditions_.data();
    work_.stream->Launch(args, num_samples);
  }

  DeviceBuffer<float> labels_;      // mapped memory: [G]
  DeviceBuffer<float> conditions_;  // [G, given_floats]
};

std::unique_ptr<BlockRecurrence<ProgramView>> NewRecurrenceBy(const GridPlan& grid, Workspace& work,
                                                              const ProgramModel& model) {
  if (model.shape().draws_noise) return std::make_unique<ConditionedRecurrence>(work, model, grid);
  return std::make_unique<BlockStackRecurrence>(work, model, grid);
}

}  // namespace

SpaceSizes SizesOf(const LaunchLimits& device, const ProgramModel& model,
                   const SpaceLimits& limits) {
  const SystemShape& shape = model.shape();
  SpaceSizes sizes;
  sizes.shape = shape;
  sizes.width = model.width();
  constexpr int64_t kPerSample = (sizeof(NoiseSource) + sizeof(Progress)) / sizeof(float) + 2;
  if (shape.draws_noise)
    sizes.beside = (shape.num_steps + 1) * shape.sample_dim() + model.view().given_floats();
  sizes.beside += kPerSample;
  sizes.group = GroupSize(shape, sizes.beside);
  const bool by_warps = ByWarps(shape.state_dim, device);
  sizes.iterative = by_warps ? sizes.group : PassGroup(sizes);
  sizes.inputs = shape.input_dim;
  sizes.scratch =
      std::max(model.encode().ScratchFloats(device), model.decode().ScratchFloats(device));
  sizes.loop_bytes = model.grid().bytes();
  if (!limits.iterative) return sizes;
  sizes.intervals = NumIntervals(shape, limits.min_shooting_interval);
  if (shape.coarse_guess)
    sizes.loop_bytes += sizes.iterative * sizes.intervals * model.width() * int64_t{sizeof(float)};
  if (by_warps) {
    sizes.workspace_bytes =
        std::min<int64_t>(sizes.group, kWorkspaceGroup) * WorkspaceBytesInParts(device, sizes);
    sizes.loop_bytes += sizes.group * int64_t{sizeof(Progress)};
  } else {
    sizes.workspace_bytes = PassWorkspaceBytes(sizes);
    sizes.loop_bytes += PassLoopBytes(sizes);
    sizes.product_bytes = kTreeProductBytes;
  }
  return sizes;
}

std::unique_ptr<BlockRecurrence<ProgramView>> NewRecurrence(Workspace& work,
                                                            const ProgramModel& model) {
  return NewRecurrenceBy(model.grid(), work, model);
}
std::unique_ptr<BlockRecurrence<ProgramView>> NewRecurrenceOfBlocks(Workspace& work,
                                                                    const ProgramModel& model) {
  return NewRecurrenceBy({}, work, model);
}

}  // namespace deeppcr::cuda
