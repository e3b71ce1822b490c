// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/cuda_space.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/backend/common.h"
#include "kernels/base/strings.h"
#include "kernels/cuda/device_buffer.h"
#include "kernels/solver/stopping.h"

namespace deeppcr::cuda {
namespace {

constexpr int64_t kTrajectoryBytes = int64_t{64} << 20;
constexpr int64_t kMaxGroup = 256;
// At some 70 ns each: launches of less than 5 ms are not interrupted.
constexpr int64_t kStepsPerLook = int64_t{1} << 16;
// From here on a solve may take longer than that and looks at its cancel word.
constexpr int64_t kLongSolve = int64_t{1} << 14;

int64_t IntervalsOf(const StackModel& model, int64_t shooting_interval) {
  return (model.shape().num_steps - 1) / shooting_interval + 1;
}

// Samples whose intervals lie in global memory at a time.
constexpr int64_t kSlabGroup = 8;

// Sizes of a space's buffers, in values.
struct SpaceSizes {
  int64_t inputs, outputs, samples, states, guesses, trajectories, scratch;
  int64_t slab_bytes;
  int64_t bytes() const {
    return (inputs + outputs + 2 * samples + 3 * states + guesses + trajectories + scratch) *
               int64_t{sizeof(float)} +
           samples * int64_t{sizeof(Progress)} + slab_bytes;
  }
};

// 0 where the shared memory of a cluster is enough.
int64_t SlabBytesOf(const LaunchLimits& device, int width, int64_t intervals) {
  const NewtonShape shape = ChooseNewtonShape(width, 1, static_cast<int32_t>(intervals), device);
  if (!shape.in_slabs) return 0;
  return SlabBytes(width, IntervalTree(static_cast<int32_t>(intervals), shape.num_blocks));
}

SpaceSizes SizesOf(const LaunchLimits& device, const StackModel& model, const SpaceLimits& limits) {
  const SystemShape& shape = model.shape();
  const int64_t group = GroupSize(model), width = model.width();
  const int64_t intervals = limits.iterative ? IntervalsOf(model, limits.min_shooting_interval) : 0;
  return {.inputs = group * shape.input_dim,
          .outputs = group * shape.output_dim,
          .samples = group,
          .states = group * width,
          .guesses = group * intervals * width,
          .trajectories = group * (shape.num_steps + 1) * shape.state_dim,
          .scratch = group * std::max(model.encode().ScratchFloats(device),
                                      model.decode().ScratchFloats(device)),
          .slab_bytes = std::min(group, kSlabGroup) *
                        (limits.iterative ? SlabBytesOf(device, model.width(), intervals) : 0)};
}

// Where there are none, the sequential solver alone is left.
bool HasClusters(const LaunchLimits& device) { return device.max_cluster_blocks > 0; }

// Memory that the host and the device both write while a solve runs.
void StoreRelaxed(int32_t* word, int32_t value) {
  std::atomic_ref<int32_t>(*word).store(value, std::memory_order_relaxed);
}

class CudaSpace final : public SolveSpace, public IterationLoop {
 public:
  CudaSpace(Device& device, const StackModel& model)
      : limits_(device.limits()),
        model_(model),
        shape_(model.shape()),
        width_(model.width()),
        tokens_(GroupSize(model)),
        stopped_(GroupSize(model)) {}

  absl::Status Allocate(Device& device, const SpaceSizes& sizes) {
    const auto take = [&device](auto* buffer, MemoryKind kind, int64_t size) {
      using Buffer = std::remove_pointer_t<decltype(buffer)>;
      auto made = Buffer::New(device, kind, size);
      if (made.ok()) *buffer = *std::move(made);
      return made.status();
    };
    DEEPPCR_RETURN_IF_ERROR(take(&inputs_, MemoryKind::kMapped, sizes.inputs));
    DEEPPCR_RETURN_IF_ERROR(take(&outputs_, MemoryKind::kMapped, sizes.outputs));
    DEEPPCR_RETURN_IF_ERROR(take(&amplification_, MemoryKind::kMapped, sizes.samples));
    DEEPPCR_RETURN_IF_ERROR(take(&cancel_, MemoryKind::kMapped, sizes.samples));
    DEEPPCR_RETURN_IF_ERROR(take(&outcomes_, MemoryKind::kMapped, sizes.samples));
    DEEPPCR_RETURN_IF_ERROR(take(&final_states_, MemoryKind::kMapped, sizes.states));
    DEEPPCR_RETURN_IF_ERROR(take(&guesses_, MemoryKind::kMapped, sizes.guesses));
    DEEPPCR_RETURN_IF_ERROR(take(&num_dependent_, MemoryKind::kMapped, 1));
    DEEPPCR_RETURN_IF_ERROR(take(&initial_, MemoryKind::kDevice, sizes.states));
    DEEPPCR_RETURN_IF_ERROR(take(&current_, MemoryKind::kDevice, sizes.states));
    DEEPPCR_RETURN_IF_ERROR(take(&trajectories_, MemoryKind::kDevice, sizes.trajectories));
    DEEPPCR_RETURN_IF_ERROR(take(&scratch_, MemoryKind::kDevice, sizes.scratch));
    DEEPPCR_RETURN_IF_ERROR(take(&slabs_, MemoryKind::kDevice, sizes.slab_bytes));
    DEEPPCR_ASSIGN_OR_RETURN(stream_, device.NewStream());
    return absl::OkStatus();
  }

  // ---- One sample, before and after
  void Encode(int32_t sample, const SampleInput& input) override {
    std::copy_n(input.inputs, shape_.input_dim, inputs_.data() + sample * shape_.input_dim);
    tokens_[sample] = input.token;
  }
  void Decode(int32_t sample, float* outputs) override {
    std::copy_n(outputs_.data() + sample * shape_.output_dim, shape_.output_dim, outputs);
  }
  double AmplifyError(int32_t sample, double relative_error, double floor,
                      const float* outputs) override {
    return AmplifiedError(relative_error, FinalState(sample), floor, amplification_.data()[sample],
                          {outputs, static_cast<size_t>(shape_.output_dim)});
  }
  void CopyState(int32_t sample, float* state) const override {
    const std::span<const float> z = FinalState(sample);
    std::copy(z.begin(), z.end(), state);
  }
  bool FinalStateFinite(int32_t sample) const override {
    const std::span<const float> z = FinalState(sample);
    return std::all_of(z.begin(), z.end(), [](float x) { return std::isfinite(x); });
  }

  // ---- Sequential mode
  void Restart(int32_t num_samples) override { LaunchEncode(num_samples); }
  int64_t Advance(int32_t num_samples, int64_t begin, int64_t end,
                  float* const* trajectories) override {
    stream_->Launch(SequentialArgs{.stack = model_.view(),
                                   .num_samples = num_samples,
                                   .begin = begin,
                                   .end = end,
                                   .states = begin == 0 ? initial_.data() : current_.data(),
                                   .final_states = current_.data(),
                                   .trajectories = Wanted(trajectories),
                                   .num_dependent = num_dependent_.data()},
                    width_);
    if (end == shape_.num_steps) {
      LaunchDecode(num_samples);
      CopyTrajectories(num_samples, trajectories);
    }
    stream_->Wait([] {});
    return *num_dependent_.data();
  }
  int64_t StepsPerLook(int32_t) const override { return kStepsPerLook; }

  // ---- Iterative mode
  void SetShootingInterval(int64_t steps) override {
    interval_ = steps;
    intervals_ = IntervalsOf(model_, steps);
    guess_ = {};
  }
  int64_t num_intervals() const override { return intervals_; }
  void GuessConstant(int32_t) override { guess_ = {}; }
  PassCount GuessCoarse(int32_t sample) override {
    GuessConstant(sample);
    return {};
  }
  void GuessAffine(int32_t) override { guess_ = model_.guess(); }
  void GuessTrajectory(int32_t sample, const float* trajectory) override {
    const int64_t dim = shape_.state_dim;
    for (int64_t p = 0; p < intervals_; ++p) {
      const int64_t end = std::min((p + 1) * interval_, shape_.num_steps);
      float* const y = guesses_.data() + (sample * intervals_ + p) * width_;
      std::copy_n(trajectory + end * dim, dim, y);
      std::fill(y + dim, y + width_, 0.0F);
    }
    guess_ = {.states = guesses_.data()};
  }
  std::variant<IterationPasses*, IterationLoop*> iteration() override { return this; }

  void Iterate(int32_t num_samples, const StoppingPolicy& policy, float* const* trajectories,
               Progress* progress) override {
    LookAtTokens(num_samples);
    std::copy_n(cancel_.data(), num_samples, stopped_.data());
    LaunchIterations(num_samples, policy, Wanted(trajectories), *progress);
    LaunchDecode(num_samples);
    CopyTrajectories(num_samples, trajectories);
    stream_->Wait([&] { LookAtTokens(num_samples); });
    for (int32_t b = 0; b < num_samples; ++b) {
      progress[b] = outcomes_.data()[b];
      if (stopped_[b] != 0) Stop(&progress[b], static_cast<Termination>(stopped_[b]));
    }
  }

  absl::Status status() const override { return stream_->status(); }

 private:
  std::span<const float> FinalState(int32_t sample) const {
    return {final_states_.data() + sample * shape_.state_dim,
            static_cast<size_t>(shape_.state_dim)};
  }
  float* Wanted(float* const* trajectories) const {
    return trajectories == nullptr ? nullptr : trajectories_.data();
  }
  bool IsLong(const StoppingPolicy& policy) const {
    return policy.max_iterations * interval_ > kLongSolve;
  }

  // The guess has cost all samples the same.
  void LaunchIterations(int32_t num_samples, const StoppingPolicy& policy, float* trajectories,
                        const Progress& start) {
    const int32_t intervals = static_cast<int32_t>(intervals_);
    const bool in_slabs = ChooseNewtonShape(width_, 1, intervals, limits_).in_slabs;
    const int32_t most = in_slabs ? static_cast<int32_t>(kSlabGroup) : num_samples;
    LaunchEncode(num_samples);
    for (int32_t first = 0; first < num_samples; first += most) {
      const int32_t count = std::min(most, num_samples - first);
      const NewtonShape shape = ChooseNewtonShape(width_, count, intervals, limits_);
      stream_->Launch(ArgsOf(first, shape, policy, trajectories, start), shape);
    }
  }
  // Of samples first, first + 1, ...
  NewtonArgs ArgsOf(int64_t first, const NewtonShape& shape, const StoppingPolicy& policy,
                    float* trajectories, const Progress& start) const {
    const int64_t floats = (shape_.num_steps + 1) * shape_.state_dim;
    GuessView guess = guess_;
    if (guess.states != nullptr) guess.states += first * intervals_ * width_;
    return {.stack = model_.view(),
            .policy = policy,
            .start = start,
            .tree = IntervalTree(static_cast<int32_t>(intervals_), shape.num_blocks),
            .shooting_interval = static_cast<int32_t>(interval_),
            .guess = guess,
            .initial_states = initial_.data() + first * width_,
            .final_states = current_.data() + first * width_,
            .trajectories = trajectories == nullptr ? nullptr : trajectories + first * floats,
            .outcomes = outcomes_.data() + first,
            .cancel = IsLong(policy) ? cancel_.data() + first : nullptr,
            .slabs = shape.in_slabs ? slabs_.data() : nullptr};
  }

  void LaunchEncode(int32_t num_samples) {
    DenseChainArgs args = model_.encode().args();
    args.inputs = inputs_.data();
    args.input_stride = shape_.input_dim;
    args.outputs = initial_.data();
    args.output_stride = width_;
    args.scratch = model_.encode().ScratchFloats(limits_) > 0 ? scratch_.data() : nullptr;
    stream_->Launch(args, num_samples);
  }
  // The answers, and the final states beside them.
  void LaunchDecode(int32_t num_samples) {
    DenseChainArgs args = model_.decode().args();
    args.inputs = current_.data();
    args.input_stride = width_;
    args.outputs = outputs_.data();
    args.output_stride = shape_.output_dim;
    args.input_copies = final_states_.data();
    args.amplification = amplification_.data();
    args.scratch = model_.decode().ScratchFloats(limits_) > 0 ? scratch_.data() : nullptr;
    stream_->Launch(args, num_samples);
  }
  void CopyTrajectories(int32_t num_samples, float* const* trajectories) {
    const int64_t floats = (shape_.num_steps + 1) * shape_.state_dim;
    for (int32_t b = 0; b < num_samples && trajectories != nullptr; ++b) {
      if (trajectories[b] == nullptr) continue;
      stream_->CopyToHost(trajectories[b], trajectories_.data() + b * floats,
                          static_cast<size_t>(floats) * sizeof(float));
    }
  }

  static_assert(static_cast<int32_t>(Termination::kDirect) == 0, "means: go on");
  // Tells the device whose tokens have fired, and why.
  void LookAtTokens(int32_t num_samples) {
    for (int32_t b = 0; b < num_samples; ++b) {
      const StopReason reason =
          tokens_[b] == nullptr ? StopReason::kNone : tokens_[b]->stop_reason();
      const Termination told = reason == StopReason::kDeadline    ? Termination::kDeadline
                               : reason == StopReason::kCancelled ? Termination::kCancelled
                                                                  : Termination::kDirect;
      StoreRelaxed(cancel_.data() + b, static_cast<int32_t>(told));
    }
  }
  const LaunchLimits limits_;
  const StackModel& model_;
  const SystemShape shape_;
  const int width_;
  int64_t interval_ = 1, intervals_ = 0;
  GuessView guess_ = {};
  std::vector<const CancelToken*> tokens_;
  std::vector<int32_t> stopped_;  // before the launch, as cancel_ says it
  // Mapped: [G, input_dim], [G, output_dim], [G], [G], [G], [G, D], [G, P, W], [1].
  DeviceBuffer<float> inputs_, outputs_, amplification_;
  DeviceBuffer<int32_t> cancel_;
  DeviceBuffer<Progress> outcomes_;
  DeviceBuffer<float> final_states_, guesses_;
  DeviceBuffer<int64_t> num_dependent_;
  // The device's: [G, W], [G, W], [G, L + 1, D], [G, ...], [kSlabGroup, ...].
  DeviceBuffer<float> initial_, current_, trajectories_, scratch_;
  DeviceBuffer<std::byte> slabs_;
  std::unique_ptr<Stream> stream_;
};

}  // namespace

int32_t GroupSize(const StackModel& model) {
  const SystemShape& shape = model.shape();
  const int64_t bytes = (shape.num_steps + 1) * model.width() * int64_t{sizeof(float)};
  return static_cast<int32_t>(std::clamp<int64_t>(kTrajectoryBytes / bytes, 1, kMaxGroup));
}

int64_t CudaSpaceBytes(const LaunchLimits& device, const StackModel& model,
                       const SpaceLimits& limits) {
  if (limits.iterative && !HasClusters(device)) return std::numeric_limits<int64_t>::max();
  return SizesOf(device, model, limits).bytes();
}

absl::StatusOr<std::unique_ptr<SolveSpace>> NewCudaSpace(Device& device, const StackModel& model,
                                                         const SpaceLimits& limits) {
  if (limits.iterative && !HasClusters(device.limits()))
    return ResourceExhausted("workspace: this GPU has no clusters for an iterative solver");
  auto space = std::make_unique<CudaSpace>(device, model);
  DEEPPCR_RETURN_IF_ERROR(space->Allocate(device, SizesOf(device.limits(), model, limits)));
  return std::unique_ptr<SolveSpace>(std::move(space));
}

}  // namespace deeppcr::cuda
