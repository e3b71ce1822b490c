// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/diffusion/space.h"

#include <algorithm>

#include "kernels/cuda/diffusion/wide_propagation.h"
#include "kernels/cuda/loop/block_shape.h"
#include "kernels/cuda/loop/loop_space.h"
#include "kernels/cuda/loop/pass_space.h"
#include "kernels/iteration/stopping.h"

namespace deeppcr::cuda {
namespace {

// Nanoseconds of a step, and of each of its weights (assumed, not measured): launches of less than
// 5 ms are not interrupted.
constexpr double kStepNanoseconds = 1500, kWeightNanoseconds = 0.04, kLaunchNanoseconds = 5e6;
// Passes that are launched before the host looks whether the samples still wanted them.
constexpr int kPassesAhead = 3;

// Base of the spaces with either kind of loop.
template <class Space>
class DiffusionSpaceOn : public Space {
 public:
  DiffusionSpaceOn(Device& device, const DiffusionModel& model, const SpaceSizes& sizes)
      : Space(device, sizes, model.decode()), model_(model), step_noise_(sizes.group) {}

  absl::Status Allocate() override {
    const int64_t group = sizes_.group, hidden = model_.view().denoiser.hidden_dim;
    DEEPPCR_RETURN_IF_ERROR(Space::Allocate());
    DEEPPCR_RETURN_IF_ERROR(Space::Take(&sources_, MemoryKind::kMapped, group));
    DEEPPCR_RETURN_IF_ERROR(
        Space::Take(&initial_noise_, MemoryKind::kMapped, group * shape_.state_dim));
    DEEPPCR_RETURN_IF_ERROR(
        Space::Take(&noise_, MemoryKind::kDevice, group * shape_.num_steps * shape_.state_dim));
    DEEPPCR_RETURN_IF_ERROR(Space::Take(&table_of_, MemoryKind::kDevice, group));
    DEEPPCR_RETURN_IF_ERROR(
        Space::Take(&coarse_, MemoryKind::kDevice, sizes_.iterative * sizes_.intervals * width_));
    if (model_.is_wide() && sizes_.intervals > 0)
      DEEPPCR_RETURN_IF_ERROR(wide_.Allocate(Space::device_, model_, sizes_.intervals));
    if (!model_.tables_per_sample()) return absl::OkStatus();
    DEEPPCR_RETURN_IF_ERROR(Space::Take(&conditions_, MemoryKind::kMapped, group * hidden));
    return Space::Take(&tables_, MemoryKind::kDevice, group * model_.table_floats());
  }

  int64_t StepsPerLook(int32_t) const override {
    const double step = kStepNanoseconds + kWeightNanoseconds * shape_.step_weights;
    return std::max<int64_t>(1, static_cast<int64_t>(kLaunchNanoseconds / step));
  }

  void Encode(int32_t sample, const SampleInput& input) override {
    Space::Encode(sample, input);
    const bool own_table = model_.tables_per_sample();
    sources_.data()[sample] = {.seed = input.seed,
                               .sample = input.sample,
                               .table = own_table                ? sample
                                        : shape_.num_classes > 0 ? input.label
                                                                 : 0,
                               .given_initial_noise = input.initial_noise != nullptr,
                               .given_step_noise = input.step_noise != nullptr};
    step_noise_[sample] = input.step_noise;
    if (input.initial_noise != nullptr)
      std::copy_n(input.initial_noise, shape_.state_dim,
                  initial_noise_.data() + sample * shape_.state_dim);
    const int64_t hidden = model_.view().denoiser.hidden_dim;
    if (own_table && shape_.num_classes > 0)
      std::copy_n(model_.class_embedding().data() + input.label * hidden, hidden,
                  conditions_.data() + sample * hidden);
  }

  PassCount GuessCoarse(int32_t) override {
    Space::guess_ = {.states = coarse_.data()};
    PassCount cost;
    cost.columns = 1;
    for (int64_t l = 0; l < shape_.num_steps; l += CoarseStride(shape_.num_steps)) ++cost.stages;
    return cost;
  }
  // Falls back to the constant guess: no map is fitted for diffusion models.
  void GuessAffine(int32_t sample) override { Space::GuessConstant(sample); }

 protected:
  using Space::shape_;
  using Space::sizes_;
  using Space::stream_;
  using Space::width_;

  DiffusionView View(int64_t first) const {
    DiffusionView view = model_.view();
    view.noise = noise_.data() + first * shape_.num_steps * shape_.state_dim;
    view.table_of = table_of_.data() + first;
    if (model_.tables_per_sample()) view.tables = tables_.data();
    return view;
  }

  TeamShape Teams(int32_t num_samples) const {
    return ChooseTeams(model_.view(), num_samples, Space::limits_);
  }

  void LaunchEncode(int32_t num_samples) override {
    const int64_t floats = shape_.num_steps * shape_.state_dim;
    for (int32_t b = 0; b < num_samples; ++b) {
      if (step_noise_[b] != nullptr)
        stream_->CopyToDevice(noise_.data() + b * floats, step_noise_[b],
                              static_cast<size_t>(floats) * sizeof(float));
    }
    stream_->Launch(NoiseArgs{.num_samples = num_samples,
                              .state_dim = static_cast<int32_t>(shape_.state_dim),
                              .width = width_,
                              .num_steps = shape_.num_steps,
                              .sources = sources_.data(),
                              .initial_noise = initial_noise_.data(),
                              .initial_states = Space::initial_.data(),
                              .noise = noise_.data(),
                              .table_of = table_of_.data()});
    if (model_.tables_per_sample()) LaunchModulation(num_samples);
  }

  void LaunchSteps(int32_t num_samples, int64_t begin, int64_t end, float* trajectories) override {
    const float* const from = begin == 0 ? Space::initial_.data() : Space::current_.data();
    stream_->Launch(
        BlockSequentialArgs<DiffusionView>{.process = View(0),
                                           .team = Teams(num_samples),
                                           .num_samples = num_samples,
                                           .begin = begin,
                                           .end = end,
                                           .states = from,
                                           .final_states = Space::current_.data(),
                                           .trajectories = trajectories,
                                           .num_dependent = Space::num_dependent_.data()},
        num_samples);
  }

  void LaunchGuess(int32_t num_samples) override {
    if (Space::guess_.states != coarse_.data() || coarse_.size() == 0) return;
    stream_->Launch(CoarseArgs{.process = View(0),
                               .num_blocks = Teams(1).num_blocks,
                               .shooting_interval = static_cast<int32_t>(Space::interval_),
                               .num_intervals = static_cast<int32_t>(Space::intervals_),
                               .initial_states = Space::initial_.data(),
                               .guesses = coarse_.data()},
                    num_samples);
  }

  const DiffusionModel& model_;
  WidePropagation wide_;  // for a wide denoiser

 private:
  void LaunchModulation(int32_t num_samples) {
    if (shape_.input_dim > 0)
      Space::LaunchChain(model_.condition(),
                         {.inputs = Space::inputs_.data(),
                          .input_stride = shape_.input_dim,
                          .outputs = conditions_.data(),
                          .output_stride = model_.view().denoiser.hidden_dim},
                         num_samples);
    ModulationArgs args = model_.modulation();
    args.conditions = conditions_.data();
    args.tables = tables_.data();
    stream_->Launch(args, num_samples);
  }

  std::vector<const float*> step_noise_;  // the caller's, or null
  // Mapped memory: [G], [G, D], [G, H].
  DeviceBuffer<NoiseSource> sources_;
  DeviceBuffer<float> initial_noise_, conditions_;
  // Device memory: [G, L, D], [G, L, modulation_floats], [iterative, P, W], [G].
  DeviceBuffer<float> noise_, tables_, coarse_;
  DeviceBuffer<int32_t> table_of_;
};

// Space for D <= kMaxWarpStateDim, on GPUs with clusters.
class WarpDiffusionSpace final : public DiffusionSpaceOn<LoopSpace> {
 public:
  using DiffusionSpaceOn::DiffusionSpaceOn;
  absl::Status Allocate() override {
    DEEPPCR_RETURN_IF_ERROR(DiffusionSpaceOn::Allocate());
    return Take(&progress_, MemoryKind::kDevice, kSlabGroup);
  }

 private:
  void RunIterations(int32_t num_samples, const StoppingPolicy& policy, float* trajectories,
                     const Progress& start) override {
    for (int32_t first = 0; first < num_samples; first += kSlabGroup) {
      const int32_t count = std::min<int32_t>(kSlabGroup, num_samples - first);
      SolveInSlabs(first, count, num_samples, policy, start);
      if (trajectories != nullptr) Expand(first, count, trajectories);
    }
  }

  // All solves of diffusion models lie in slabs: propagation is a launch of its own.
  NewtonShape ShapeOf(int32_t count) const {
    NewtonShape shape = ChooseNewtonShape(width_, count, static_cast<int32_t>(intervals_), limits_);
    shape.in_slabs = true;
    return shape;
  }
  IntervalsView Intervals(int32_t count) const {
    return {.tree = IntervalTree(static_cast<int32_t>(intervals_), ShapeOf(count).num_blocks),
            .shooting_interval = static_cast<int32_t>(interval_),
            .members = {{0, 1, 2, 3, 4, 5, 6, 7}},
            .slabs = slabs_.data()};
  }

  // Makes passes over samples first, ..., first + count - 1 until all of these samples have
  // stopped.
  void SolveInSlabs(int32_t first, int32_t count, int32_t num_samples, const StoppingPolicy& policy,
                    const Progress& start) {
    const NewtonShape shape = ShapeOf(count);
    NewtonArgs args = ArgsOf(first, shape, policy, start);
    args.progress = progress_.data();
    args.part = NewtonPart::kStart;
    stream_->Launch(args, shape);
    args.part = NewtonPart::kPass;
    if (model_.is_wide()) return PassOneByOne(first, count, num_samples, args, shape, start);
    const PropagationArgs<DiffusionView> propagation = {.process = View(first),
                                                        .intervals = Intervals(count),
                                                        .rows = model_.rows_per_step(),
                                                        .progress = progress_.data(),
                                                        .linearization = policy.linearization,
                                                        .kind = {}};
    do {
      for (int pass = 0; pass < kPassesAhead; ++pass) {
        stream_->Launch(propagation, count);
        stream_->Launch(args, shape);
      }
      stream_->Wait([&] { LookAtTokens(num_samples); });
      LookAtTokens(num_samples);
    } while (stream_->status().ok() && !AllStopped(first, count));
  }
  // Makes passes where the host has to know the kind of each pass, and so waits for each.
  void PassOneByOne(int32_t first, int32_t count, int32_t num_samples, const NewtonArgs& args,
                    const NewtonShape& shape, const Progress& start) {
    std::fill_n(outcomes_.data() + first, count, start);
    do {
      for (int32_t b = 0; b < count; ++b) {
        const Progress& progress = outcomes_.data()[first + b];
        if (progress.next == NextPass::kStop) continue;
        wide_.Launch(*stream_, View(first), Intervals(count), b,
                     KindOf(progress.next, progress.probes, args.policy.linearization));
      }
      stream_->Launch(args, shape);
      stream_->Wait([&] { LookAtTokens(num_samples); });
      LookAtTokens(num_samples);
    } while (stream_->status().ok() && !AllStopped(first, count));
  }
  bool AllStopped(int32_t first, int32_t count) const {
    const Progress* outcomes = outcomes_.data() + first;
    return std::all_of(outcomes, outcomes + count,
                       [](const Progress& p) { return p.next == NextPass::kStop; });
  }

  void Expand(int32_t first, int32_t count, float* trajectories) {
    const int64_t floats = (shape_.num_steps + 1) * shape_.state_dim;
    stream_->Launch(ExpansionArgs<DiffusionView>{.process = View(first),
                                                 .intervals = Intervals(count),
                                                 .trajectories = trajectories + first * floats},
                    count);
  }

  DeviceBuffer<Progress> progress_;  // device memory, [kSlabGroup]
};

class BlockDiffusionSpace final : public DiffusionSpaceOn<PassSpaceOf<DiffusionView>> {
 public:
  using DiffusionSpaceOn::DiffusionSpaceOn;

 private:
  void LaunchPropagation(const IntervalsView& intervals, int32_t num_members,
                         IterationKind kind) override {
    if (!model_.is_wide()) return DiffusionSpaceOn::LaunchPropagation(intervals, num_members, kind);
    for (int32_t i = 0; i < num_members; ++i)
      wide_.Launch(*stream_, View(0), intervals, intervals.members.at[i], kind);
  }
  DiffusionView ProcessOf() const override { return View(0); }
  int RowsPerStep() const override { return model_.rows_per_step(); }
};

// Largest slab of a sample over all sizes of clusters that a launch may have.
int64_t LargestSlab(const LaunchLimits& device, const SpaceSizes& sizes) {
  int64_t largest = 0;
  for (int blocks = 1; blocks <= device.max_cluster_blocks; blocks *= 2)
    largest =
        std::max(largest, SlabBytes(static_cast<int>(sizes.width),
                                    IntervalTree(static_cast<int32_t>(sizes.intervals), blocks)));
  return largest;
}

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
  if (by_warps) {
    sizes.slab_bytes = std::min<int64_t>(sizes.group, kSlabGroup) * LargestSlab(device, sizes);
    sizes.loop_bytes += coarse + sizes.group * int64_t{sizeof(Progress)};
    sizes.product_bytes = model.is_wide() ? kLayerProductBytes : 0;
  } else {
    sizes.slab_bytes = PassSlabBytes(sizes);
    sizes.loop_bytes += coarse + PassLoopBytes(sizes);
    sizes.product_bytes = model.is_wide() ? kLayerProductBytes : kTreeProductBytes;
  }
  return sizes;
}

absl::StatusOr<std::unique_ptr<SolveSpace>> NewSpace(Device& device, const DiffusionModel& model,
                                                     const SpaceSizes& sizes) {
  if (ByWarps(sizes.shape.state_dim, device.limits()))
    return MakeSpace<WarpDiffusionSpace>(device, model, sizes);
  return MakeSpace<BlockDiffusionSpace>(device, model, sizes);
}

}  // namespace deeppcr::cuda
