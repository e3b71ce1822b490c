// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/stack_space.h"

#include <algorithm>

#include "kernels/solver/stopping.h"

namespace deeppcr::cuda {
namespace {

// At 70 ns each (assumed, not measured): launches of less than 5 ms are not interrupted.
constexpr int64_t kStepsPerLook = int64_t{1} << 16;
// From here on a solve may take longer than that and looks at its cancel word.
constexpr int64_t kLongSolve = int64_t{1} << 14;

class StackSpace final : public CudaSpace {
 public:
  StackSpace(Device& device, const StackModel& model, const SpaceSizes& sizes)
      : CudaSpace(device, sizes, model.decode()), model_(model) {}

  int64_t StepsPerLook(int32_t) const override { return kStepsPerLook; }
  PassCount GuessCoarse(int32_t sample) override {
    GuessConstant(sample);
    return {};
  }
  void GuessAffine(int32_t) override { guess_ = model_.guess(); }

 private:
  void LaunchEncode(int32_t num_samples) override {
    LaunchChain(model_.encode(),
                {.inputs = inputs_.data(),
                 .input_stride = shape_.input_dim,
                 .outputs = initial_.data(),
                 .output_stride = width_},
                num_samples);
  }
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
  // All samples at once, or as many as have slabs.
  void RunIterations(int32_t num_samples, const StoppingPolicy& policy, float* trajectories,
                     const Progress& start) override {
    const int32_t intervals = static_cast<int32_t>(intervals_);
    const bool in_slabs = ChooseNewtonShape(width_, 1, intervals, limits_).in_slabs;
    const int32_t most = in_slabs ? static_cast<int32_t>(kSlabGroup) : num_samples;
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

  const StackModel& model_;
};

// 0 where the shared memory of a cluster is enough.
int64_t SlabBytesOf(const LaunchLimits& device, int width, int64_t intervals) {
  const NewtonShape shape = ChooseNewtonShape(width, 1, static_cast<int32_t>(intervals), device);
  if (!shape.in_slabs) return 0;
  return SlabBytes(width, IntervalTree(static_cast<int32_t>(intervals), shape.num_blocks));
}

}  // namespace

SpaceSizes SizesOf(const LaunchLimits& device, const StackModel& model, const SpaceLimits& limits) {
  SpaceSizes sizes;
  sizes.shape = model.shape();
  sizes.width = model.width();
  sizes.group = GroupSize(model.shape(), 0);
  sizes.inputs = model.shape().input_dim;
  sizes.scratch =
      std::max(model.encode().ScratchFloats(device), model.decode().ScratchFloats(device));
  if (!limits.iterative) return sizes;
  sizes.intervals = NumIntervals(model.shape(), limits.min_shooting_interval);
  sizes.slab_bytes =
      std::min(sizes.group, kSlabGroup) * SlabBytesOf(device, model.width(), sizes.intervals);
  return sizes;
}

absl::StatusOr<std::unique_ptr<SolveSpace>> NewSpace(Device& device, const StackModel& model,
                                                     const SpaceSizes& sizes) {
  auto space = std::make_unique<StackSpace>(device, model, sizes);
  DEEPPCR_RETURN_IF_ERROR(space->Allocate());
  return std::unique_ptr<SolveSpace>(std::move(space));
}

}  // namespace deeppcr::cuda
