// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/program/recurrence.h"

#include <algorithm>
#include <vector>

#include "kernels/base/status_macros.h"
#include "kernels/cuda/diffusion/noise_kernel.h"
#include "kernels/cuda/loop/block_shape.h"
#include "kernels/cuda/loop/device_loop.h"
#include "kernels/cuda/loop/pass_loop.h"
#include "kernels/cuda/tuning.h"

namespace deeppcr::cuda {
namespace {

class ProgramRecurrence : public BlockRecurrence<ProgramView> {
 public:
  ProgramRecurrence(Workspace& work, const ProgramModel& model)
      : BlockRecurrence(work), model_(model) {}

  const DeviceChain& decode() const override { return model_.decode(); }
  int64_t StepsPerPoll() const override {
    const double step = kInstructionNanoseconds * model_.view().section.count +
                        kWeightNanoseconds * static_cast<double>(work_.shape.step_weights);
    return std::max<int64_t>(1, static_cast<int64_t>(kLaunchNanoseconds / std::max(step, 1.0)));
  }

 protected:
  ProgramView ProcessFrom(int64_t) const override { return model_.view(); }

  const ProgramModel& model_;

 private:
  int RowsPerStep() const override { return model_.rows_per_step(); }
};

// A stack of blocks.
class BlockStackRecurrence final : public ProgramRecurrence {
 public:
  using ProgramRecurrence::ProgramRecurrence;

  PassCount GuessCoarse() override {
    work_.guess = {};
    return {};
  }
  void GuessAffine() override { work_.guess = model_.guess(); }
  void LaunchEncode(int32_t num_samples) override {
    work_.LaunchChain(model_.encode(),
                      {.inputs = work_.inputs.data(),
                       .input_stride = work_.shape.input_dim,
                       .outputs = work_.initial.data(),
                       .output_stride = work_.width},
                      num_samples);
  }
};

// A reverse process, with the noise of its samples and what their conditions give.
class ReverseProcessRecurrence final : public ProgramRecurrence {
 public:
  ReverseProcessRecurrence(Workspace& work, const ProgramModel& model)
      : ProgramRecurrence(work, model), step_noise_(work.sizes.group) {}

  absl::Status Allocate() override {
    const SpaceSizes& sizes = work_.sizes;
    const int64_t group = sizes.group, dim = sizes.shape.sample_dim();
    DEEPPCR_RETURN_IF_ERROR(work_.Take(&sources_, MemoryKind::kMapped, group));
    DEEPPCR_RETURN_IF_ERROR(work_.Take(&initial_noise_, MemoryKind::kMapped, group * dim));
    DEEPPCR_RETURN_IF_ERROR(work_.Take(&labels_, MemoryKind::kMapped, group));
    DEEPPCR_RETURN_IF_ERROR(
        work_.Take(&noise_, MemoryKind::kDevice, group * sizes.shape.num_steps * dim));
    DEEPPCR_RETURN_IF_ERROR(
        work_.Take(&conditions_, MemoryKind::kDevice, group * model_.view().given_floats()));
    return work_.Take(&coarse_, MemoryKind::kDevice,
                      sizes.iterative * sizes.intervals * work_.width);
  }

  void Encode(int32_t sample, const SampleInput& input) override {
    sources_.data()[sample] = {.seed = input.seed,
                               .sample = input.sample,
                               .table = 0,
                               .given_initial_noise = input.initial_noise != nullptr,
                               .given_step_noise = input.step_noise != nullptr};
    labels_.data()[sample] = static_cast<float>(input.label);
    step_noise_[sample] = input.step_noise;
    const int64_t dim = work_.shape.sample_dim();
    if (input.initial_noise != nullptr)
      std::copy_n(input.initial_noise, dim, initial_noise_.data() + sample * dim);
  }

  PassCount GuessCoarse() override {
    work_.guess = {.states = coarse_.data()};
    PassCount cost;
    cost.columns = 1;
    for (int64_t l = 0; l < work_.shape.num_steps; l += CoarseStride(work_.shape.num_steps))
      ++cost.stages;
    return cost;
  }
  // Falls back to the constant guess: no map is fitted for diffusion models.
  void GuessAffine() override { work_.guess = {}; }

  void LaunchEncode(int32_t num_samples) override {
    const SystemShape& shape = work_.shape;
    const int64_t floats = shape.num_steps * shape.sample_dim();
    for (int32_t b = 0; b < num_samples; ++b) {
      if (step_noise_[b] != nullptr)
        work_.stream->CopyToDevice(noise_.data() + b * floats, step_noise_[b],
                                   static_cast<size_t>(floats) * sizeof(float));
    }
    work_.stream->Launch(NoiseArgs{.num_samples = num_samples,
                                   .state_dim = static_cast<int32_t>(shape.sample_dim()),
                                   .width = work_.width,
                                   .num_steps = shape.num_steps,
                                   .initial_scale = model_.initial_scale(),
                                   .sources = sources_.data(),
                                   .initial_noise = initial_noise_.data(),
                                   .initial_states = work_.initial.data(),
                                   .noise = noise_.data(),
                                   .table_of = nullptr});
    for (const ConditionArgs* args : {&model_.condition(), &model_.mixed()})
      if (args->num_exports > 0) LaunchCondition(*args, num_samples);
  }

  void LaunchGuess(int32_t num_samples) override {
    if (work_.guess.states != coarse_.data() || coarse_.size() == 0) return;
    const ProgramView process = ProcessFrom(0);
    work_.stream->Launch(
        CoarseArgs<ProgramView>{.process = process,
                                .num_blocks = ChooseTeams(process, 1, work_.limits).num_blocks,
                                .shooting_interval = static_cast<int32_t>(work_.interval),
                                .num_intervals = static_cast<int32_t>(work_.intervals),
                                .initial_states = work_.initial.data(),
                                .guesses = coarse_.data(),
                                .staged_floats = StagedFloats(process, work_.limits)},
        num_samples);
  }

 private:
  ProgramView ProcessFrom(int64_t first) const override {
    ProgramView view = model_.view();
    view.noise = noise_.data() + first * work_.shape.num_steps * work_.shape.sample_dim();
    view.conditions = conditions_.data() + first * view.given_floats();
    return view;
  }

  void LaunchCondition(ConditionArgs args, int32_t num_samples) {
    args.process = ProcessFrom(0);
    args.inputs = work_.inputs.data();
    args.input_stride = work_.sizes.inputs;
    args.labels = labels_.data();
    args.conditions = conditions_.data();
    work_.stream->Launch(args, num_samples);
  }

  std::vector<const float*> step_noise_;  // the caller's, or null
  // Mapped memory: [G], [G, D], [G].
  DeviceBuffer<NoiseSource> sources_;
  DeviceBuffer<float> initial_noise_, labels_;
  // Device memory: [G, L, D], [G, given_floats], [iterative, P, W].
  DeviceBuffer<float> noise_, conditions_, coarse_;
};

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
  if (!limits.iterative) return sizes;
  sizes.intervals = NumIntervals(shape, limits.min_shooting_interval);
  if (shape.coarse_guess)
    sizes.loop_bytes = sizes.iterative * sizes.intervals * model.width() * int64_t{sizeof(float)};
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

std::unique_ptr<Recurrence> NewRecurrence(Workspace& work, const ProgramModel& model) {
  if (model.shape().draws_noise) return std::make_unique<ReverseProcessRecurrence>(work, model);
  return std::make_unique<BlockStackRecurrence>(work, model);
}

}  // namespace deeppcr::cuda
