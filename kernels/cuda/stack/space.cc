// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/stack/space.h"

#include <algorithm>

#include "kernels/cuda/loop/block_shape.h"
#include "kernels/cuda/loop/loop_space.h"
#include "kernels/cuda/loop/pass_space.h"
#include "kernels/iteration/stopping.h"

namespace deeppcr::cuda {
namespace {

// Launches of less than 5 ms are not interrupted. A step by a warp takes some 70 ns, a step by a
// block the nanoseconds given here (assumed, not measured).
constexpr int64_t kWarpStepsPerLook = int64_t{1} << 16;
constexpr double kStepNanoseconds = 300, kWeightNanoseconds = 0.04, kLaunchNanoseconds = 5e6;
// Number of steps from which a solve may take longer than 5 ms and looks at its cancel word.
constexpr int64_t kLongSolve = int64_t{1} << 14;

// Base of the spaces with either kind of loop.
template <class Space, class Model>
class StackSpaceOn : public Space {
 public:
  StackSpaceOn(Device& device, const Model& model, const SpaceSizes& sizes)
      : Space(device, sizes, model.decode()), model_(model) {}

  PassCount GuessCoarse(int32_t sample) override {
    Space::GuessConstant(sample);
    return {};
  }
  void GuessAffine(int32_t) override { Space::guess_ = model_.guess(); }

 protected:
  void LaunchEncode(int32_t num_samples) override {
    Space::LaunchChain(model_.encode(),
                       {.inputs = Space::inputs_.data(),
                        .input_stride = Space::shape_.input_dim,
                        .outputs = Space::initial_.data(),
                        .output_stride = Space::width_},
                       num_samples);
  }

  const Model& model_;
};

// Space for D <= kMaxWarpStateDim, on GPUs with clusters.
class WarpStackSpace final : public StackSpaceOn<LoopSpace, StackModel> {
 public:
  using StackSpaceOn::StackSpaceOn;
  int64_t StepsPerLook(int32_t) const override { return kWarpStepsPerLook; }

 private:
  void LaunchSteps(int32_t num_samples, int64_t begin, int64_t end, float* trajectories) override {
    stream_->Launch(SequentialArgs{.stack = model_.view(),
                                   .num_samples = num_samples,
                                   .begin = begin,
                                   .end = end,
                                   .states = begin == 0 ? initial_.data() : current_.data(),
                                   .final_states = current_.data(),
                                   .trajectories = trajectories,
                                   .num_dependent = num_dependent_.data()},
                    width_);
  }
  // Solves all samples at once, or as many as have slabs.
  void RunIterations(int32_t num_samples, const StoppingPolicy& policy, float* trajectories,
                     const Progress& start) override {
    const int32_t intervals = static_cast<int32_t>(intervals_);
    const bool in_slabs = ChooseNewtonShape(width_, 1, intervals, limits_).in_slabs;
    const int32_t most = in_slabs ? kSlabGroup : num_samples;
    const int64_t floats = (shape_.num_steps + 1) * shape_.state_dim;
    for (int32_t first = 0; first < num_samples; first += most) {
      const NewtonShape shape =
          ChooseNewtonShape(width_, std::min(most, num_samples - first), intervals, limits_);
      NewtonArgs args = ArgsOf(first, shape, policy, start);
      args.stack = model_.view();
      args.trajectories = trajectories == nullptr ? nullptr : trajectories + first * floats;
      if (!in_slabs && policy.max_iterations * interval_ <= kLongSolve) args.cancel = nullptr;
      stream_->Launch(args, shape);
    }
  }
};

class PanelStackSpace final : public StackSpaceOn<PassSpaceOf<PanelStackView>, PanelStackModel> {
 public:
  using StackSpaceOn::StackSpaceOn;
  int64_t StepsPerLook(int32_t) const override {
    const double weights = static_cast<double>(width_) * width_;
    return static_cast<int64_t>(kLaunchNanoseconds /
                                (kStepNanoseconds + kWeightNanoseconds * weights));
  }

 private:
  void LaunchSteps(int32_t num_samples, int64_t begin, int64_t end, float* trajectories) override {
    stream_->Launch(
        BlockSequentialArgs<PanelStackView>{
            .process = model_.view(),
            .team = ChooseTeams(model_.view(), num_samples, limits_),
            .num_samples = num_samples,
            .begin = begin,
            .end = end,
            .states = begin == 0 ? initial_.data() : current_.data(),
            .final_states = current_.data(),
            .trajectories = trajectories,
            .num_dependent = num_dependent_.data()},
        num_samples);
  }
  PanelStackView ProcessOf() const override { return model_.view(); }
  int RowsPerStep() const override { return model_.rows_per_step(); }
};

// Bytes of slabs; 0 where the shared memory of a cluster is enough.
int64_t SlabBytesOf(const LaunchLimits& device, int width, int64_t intervals) {
  const NewtonShape shape = ChooseNewtonShape(width, 1, static_cast<int32_t>(intervals), device);
  if (!shape.in_slabs) return 0;
  return SlabBytes(width, IntervalTree(static_cast<int32_t>(intervals), shape.num_blocks));
}

// Sizes without slabs.
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
  sizes.slab_bytes = std::min<int64_t>(sizes.group, kSlabGroup) *
                     SlabBytesOf(device, model.width(), sizes.intervals);
  sizes.loop_bytes = sizes.group * int64_t{sizeof(Progress)};
  return sizes;
}
SpaceSizes SizesOf(const LaunchLimits& device, const PanelStackModel& model,
                   const SpaceLimits& limits) {
  SpaceSizes sizes = CommonSizes(device, model, limits);
  sizes.iterative = PassGroup(sizes);
  if (!limits.iterative) return sizes;
  sizes.slab_bytes = PassSlabBytes(sizes);
  sizes.loop_bytes = PassLoopBytes(sizes);
  sizes.product_bytes = kTreeProductBytes;
  return sizes;
}

absl::StatusOr<std::unique_ptr<SolveSpace>> NewSpace(Device& device, const StackModel& model,
                                                     const SpaceSizes& sizes) {
  return MakeSpace<WarpStackSpace>(device, model, sizes);
}
absl::StatusOr<std::unique_ptr<SolveSpace>> NewSpace(Device& device, const PanelStackModel& model,
                                                     const SpaceSizes& sizes) {
  return MakeSpace<PanelStackSpace>(device, model, sizes);
}

}  // namespace deeppcr::cuda
