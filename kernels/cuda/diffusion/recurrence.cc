// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/diffusion/recurrence.h"

#include <algorithm>
#include <vector>

#include "kernels/base/status_macros.h"
#include "kernels/cuda/diffusion/wide_propagation.h"
#include "kernels/cuda/loop/block_shape.h"
#include "kernels/cuda/loop/device_loop.h"
#include "kernels/cuda/loop/pass_loop.h"
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

class DiffusionRecurrence final : public BlockRecurrence<DiffusionView> {
 public:
  DiffusionRecurrence(Workspace& work, const DiffusionModel& model)
      : BlockRecurrence(work), model_(model), step_noise_(work.sizes.group) {}

  absl::Status Allocate() override {
    const SpaceSizes& sizes = work_.sizes;
    const int64_t group = sizes.group, dim = sizes.shape.state_dim;
    const int64_t hidden = model_.view().denoiser.hidden_dim;
    DEEPPCR_RETURN_IF_ERROR(work_.Take(&sources_, MemoryKind::kMapped, group));
    DEEPPCR_RETURN_IF_ERROR(work_.Take(&initial_noise_, MemoryKind::kMapped, group * dim));
    DEEPPCR_RETURN_IF_ERROR(
        work_.Take(&noise_, MemoryKind::kDevice, group * sizes.shape.num_steps * dim));
    DEEPPCR_RETURN_IF_ERROR(work_.Take(&table_of_, MemoryKind::kDevice, group));
    DEEPPCR_RETURN_IF_ERROR(
        work_.Take(&coarse_, MemoryKind::kDevice, sizes.iterative * sizes.intervals * work_.width));
    if (model_.is_resident())
      DEEPPCR_RETURN_IF_ERROR(
          work_.Take(&tape_, MemoryKind::kDevice, TapeFloats(work_.limits, model_, sizes)));
    if (model_.is_wide() && sizes.intervals > 0)
      DEEPPCR_RETURN_IF_ERROR(wide_.Allocate(work_.device, model_, sizes.intervals));
    if (!model_.tables_per_sample()) return absl::OkStatus();
    DEEPPCR_RETURN_IF_ERROR(work_.Take(&conditions_, MemoryKind::kMapped, group * hidden));
    return work_.Take(&tables_, MemoryKind::kDevice, group * model_.table_floats());
  }

  const DeviceChain& decode() const override { return model_.decode(); }
  int64_t StepsPerPoll() const override {
    const double step = kDenoiserStepNanoseconds +
                        kWeightNanoseconds * static_cast<double>(work_.shape.step_weights);
    return std::max<int64_t>(1, static_cast<int64_t>(kLaunchNanoseconds / step));
  }

  void Encode(int32_t sample, const SampleInput& input) override {
    const SystemShape& shape = work_.shape;
    const bool own_table = model_.tables_per_sample();
    sources_.data()[sample] = {.seed = input.seed,
                               .sample = input.sample,
                               .table = own_table               ? sample
                                        : shape.num_classes > 0 ? input.label
                                                                : 0,
                               .given_initial_noise = input.initial_noise != nullptr,
                               .given_step_noise = input.step_noise != nullptr};
    step_noise_[sample] = input.step_noise;
    if (input.initial_noise != nullptr)
      std::copy_n(input.initial_noise, shape.state_dim,
                  initial_noise_.data() + sample * shape.state_dim);
    const int64_t hidden = model_.view().denoiser.hidden_dim;
    if (own_table && shape.num_classes > 0)
      std::copy_n(model_.class_embedding().data() + input.label * hidden, hidden,
                  conditions_.data() + sample * hidden);
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
    const int64_t floats = shape.num_steps * shape.state_dim;
    for (int32_t b = 0; b < num_samples; ++b) {
      if (step_noise_[b] != nullptr)
        work_.stream->CopyToDevice(noise_.data() + b * floats, step_noise_[b],
                                   static_cast<size_t>(floats) * sizeof(float));
    }
    work_.stream->Launch(NoiseArgs{.num_samples = num_samples,
                                   .state_dim = static_cast<int32_t>(shape.state_dim),
                                   .width = work_.width,
                                   .num_steps = shape.num_steps,
                                   .initial_scale = model_.initial_scale(),
                                   .sources = sources_.data(),
                                   .initial_noise = initial_noise_.data(),
                                   .initial_states = work_.initial.data(),
                                   .noise = noise_.data(),
                                   .table_of = table_of_.data()});
    if (model_.tables_per_sample()) LaunchModulation(num_samples);
  }

  void LaunchGuess(int32_t num_samples) override {
    if (work_.guess.states != coarse_.data() || coarse_.size() == 0) return;
    const DiffusionView process = ProcessFrom(0);
    work_.stream->Launch(
        CoarseArgs<DiffusionView>{.process = process,
                                  .num_blocks = ChooseTeams(process, 1, work_.limits).num_blocks,
                                  .shooting_interval = static_cast<int32_t>(work_.interval),
                                  .num_intervals = static_cast<int32_t>(work_.intervals),
                                  .initial_states = work_.initial.data(),
                                  .guesses = coarse_.data(),
                                  .staged_floats = StagedFloats(process, work_.limits)},
        num_samples);
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

 private:
  DiffusionView ProcessFrom(int64_t first) const override {
    DiffusionView view = model_.view();
    view.noise = noise_.data() + first * work_.shape.num_steps * work_.shape.state_dim;
    view.table_of = table_of_.data() + first;
    if (model_.tables_per_sample()) view.tables = tables_.data();
    return view;
  }
  int RowsPerStep() const override { return model_.rows_per_step(); }

  void LaunchResident(const Propagation& propagation) {
    const PropagationArgs<DiffusionView> args = ArgsOf(propagation);
    const int64_t intervals = int64_t{propagation.num_members} * work_.intervals;
    work_.stream->Launch(
        ResidentArgs{.propagation = args,
                     .together = ResidentTogether(args.process, intervals, work_.limits),
                     .tape = {tape_.data()}},
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
  WidePropagation wide_;                  // for a wide denoiser
  DeviceBuffer<float> tape_;              // of a resident one
  std::vector<const float*> step_noise_;  // the caller's, or null
  // Mapped memory: [G], [G, D], [G, H].
  DeviceBuffer<NoiseSource> sources_;
  DeviceBuffer<float> initial_noise_, conditions_;
  // Device memory: [G, L, D], [G, L, modulation_floats], [iterative, P, W], [G].
  DeviceBuffer<float> noise_, tables_, coarse_;
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
  if (!limits.iterative) return sizes;
  sizes.intervals = NumIntervals(shape, limits.min_shooting_interval);
  const int64_t coarse = sizes.iterative * sizes.intervals * model.width() * int64_t{sizeof(float)};
  if (model.is_wide()) sizes.loop_bytes = WidePropagation::Bytes(model, sizes.intervals);
  if (model.is_resident())
    sizes.loop_bytes = TapeFloats(device, model, sizes) * int64_t{sizeof(float)};
  if (by_warps) {
    sizes.workspace_bytes =
        SamplesInWorkspace(device, sizes) * WorkspaceBytesInParts(device, sizes);
    sizes.loop_bytes += coarse + sizes.group * int64_t{sizeof(Progress)};
    sizes.product_bytes = model.is_wide() ? kLayerProductBytes : 0;
  } else {
    sizes.workspace_bytes = PassWorkspaceBytes(sizes);
    sizes.loop_bytes += coarse + PassLoopBytes(sizes);
    sizes.product_bytes = model.is_wide() ? kLayerProductBytes : kTreeProductBytes;
  }
  return sizes;
}

std::unique_ptr<Recurrence> NewRecurrence(Workspace& work, const DiffusionModel& model) {
  return std::make_unique<DiffusionRecurrence>(work, model);
}

}  // namespace deeppcr::cuda
