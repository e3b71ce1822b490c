// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/cuda_space.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <utility>

#include "kernels/backend/common.h"
#include "kernels/solver/stopping.h"

namespace deeppcr::cuda {
namespace {

constexpr int64_t kGroupBytes = int64_t{64} << 20;
constexpr int64_t kMaxGroup = 256;

}  // namespace

int64_t SpaceSizes::bytes() const {
  const int64_t states = (shape.num_steps + 1) * shape.state_dim;
  const int64_t floats = inputs + shape.output_dim + 2 + shape.state_dim + intervals * width +
                         2 * width + states + scratch + beside;
  return group * (floats * int64_t{sizeof(float)} + int64_t{sizeof(Progress)}) + slab_bytes;
}

int64_t GroupSize(const SystemShape& shape, int64_t floats_beside) {
  const int64_t floats = (shape.num_steps + 1) * shape.state_dim + floats_beside;
  return std::clamp<int64_t>(kGroupBytes / (floats * int64_t{sizeof(float)}), 1, kMaxGroup);
}

int64_t NumIntervals(const SystemShape& shape, int64_t shooting_interval) {
  return (shape.num_steps - 1) / shooting_interval + 1;
}

CudaSpace::CudaSpace(Device& device, const SpaceSizes& sizes, const DeviceChain& decode)
    : device_(device),
      limits_(device.limits()),
      sizes_(sizes),
      shape_(sizes_.shape),
      width_(static_cast<int>(sizes.width)),
      decode_(decode),
      tokens_(sizes.group),
      stopped_(sizes.group) {}

absl::Status CudaSpace::Allocate() {
  const int64_t group = sizes_.group, states = group * width_;
  DEEPPCR_RETURN_IF_ERROR(Take(&inputs_, MemoryKind::kMapped, group * sizes_.inputs));
  DEEPPCR_RETURN_IF_ERROR(Take(&outputs_, MemoryKind::kMapped, group * shape_.output_dim));
  DEEPPCR_RETURN_IF_ERROR(Take(&amplification_, MemoryKind::kMapped, group));
  DEEPPCR_RETURN_IF_ERROR(Take(&final_states_, MemoryKind::kMapped, group * shape_.state_dim));
  DEEPPCR_RETURN_IF_ERROR(Take(&guesses_, MemoryKind::kMapped, group * sizes_.intervals * width_));
  DEEPPCR_RETURN_IF_ERROR(Take(&cancel_, MemoryKind::kMapped, group));
  DEEPPCR_RETURN_IF_ERROR(Take(&outcomes_, MemoryKind::kMapped, group));
  DEEPPCR_RETURN_IF_ERROR(Take(&num_dependent_, MemoryKind::kMapped, 1));
  DEEPPCR_RETURN_IF_ERROR(Take(&initial_, MemoryKind::kDevice, states));
  DEEPPCR_RETURN_IF_ERROR(Take(&current_, MemoryKind::kDevice, states));
  DEEPPCR_RETURN_IF_ERROR(
      Take(&trajectories_, MemoryKind::kDevice, group * (shape_.num_steps + 1) * shape_.state_dim));
  DEEPPCR_RETURN_IF_ERROR(Take(&scratch_, MemoryKind::kDevice, group * sizes_.scratch));
  DEEPPCR_RETURN_IF_ERROR(Take(&slabs_, MemoryKind::kDevice, sizes_.slab_bytes));
  DEEPPCR_ASSIGN_OR_RETURN(stream_, device_.NewStream());
  return absl::OkStatus();
}

// ---- One sample, before and after
void CudaSpace::Encode(int32_t sample, const SampleInput& input) {
  std::copy_n(input.inputs, shape_.input_dim, inputs_.data() + sample * sizes_.inputs);
  tokens_[sample] = input.token;
}
void CudaSpace::Decode(int32_t sample, float* outputs) {
  std::copy_n(outputs_.data() + sample * shape_.output_dim, shape_.output_dim, outputs);
}
double CudaSpace::AmplifyError(int32_t sample, double relative_error, double floor,
                               const float* outputs) {
  return AmplifiedError(relative_error, FinalState(sample), floor, amplification_.data()[sample],
                        {outputs, static_cast<size_t>(shape_.output_dim)});
}
std::span<const float> CudaSpace::FinalState(int32_t sample) const {
  return {final_states_.data() + sample * shape_.state_dim, static_cast<size_t>(shape_.state_dim)};
}
void CudaSpace::CopyState(int32_t sample, float* state) const {
  const std::span<const float> z = FinalState(sample);
  std::copy(z.begin(), z.end(), state);
}
bool CudaSpace::FinalStateFinite(int32_t sample) const {
  const std::span<const float> z = FinalState(sample);
  return std::all_of(z.begin(), z.end(), [](float x) { return std::isfinite(x); });
}

// ---- Sequential mode
int64_t CudaSpace::Advance(int32_t num_samples, int64_t begin, int64_t end,
                           float* const* trajectories) {
  LaunchSteps(num_samples, begin, end, Wanted(trajectories));
  if (end == shape_.num_steps) LaunchDecode(num_samples);
  stream_->Wait([] {});
  if (end == shape_.num_steps) CopyTrajectories(num_samples, trajectories);
  return stream_->status().ok() ? *num_dependent_.data() : 0;
}

// ---- Iterative mode
void CudaSpace::SetShootingInterval(int64_t steps) {
  interval_ = steps;
  intervals_ = NumIntervals(shape_, steps);
  guess_ = {};
}
void CudaSpace::GuessConstant(int32_t) { guess_ = {}; }
void CudaSpace::GuessTrajectory(int32_t sample, const float* trajectory) {
  const int64_t dim = shape_.state_dim;
  for (int64_t p = 0; p < intervals_; ++p) {
    const int64_t end = std::min((p + 1) * interval_, shape_.num_steps);
    float* const y = guesses_.data() + (sample * intervals_ + p) * width_;
    std::copy_n(trajectory + end * dim, dim, y);
    std::fill(y + dim, y + width_, 0.0F);
  }
  guess_ = {.states = guesses_.data()};
}

void CudaSpace::Iterate(int32_t num_samples, const StoppingPolicy& policy,
                        float* const* trajectories, Progress* progress) {
  LookAtTokens(num_samples);
  const auto stopped = std::span(stopped_).first(num_samples);
  std::copy_n(cancel_.data(), num_samples, stopped.begin());
  if (std::find(stopped.begin(), stopped.end(), 0) != stopped.end())
    Solve(num_samples, policy, trajectories, *progress);
  const bool failed = !stream_->status().ok();  // which says the rest
  for (int32_t b = 0; b < num_samples; ++b) {
    if (stopped[b] != 0) {
      Stop(&progress[b], static_cast<Termination>(stopped[b]));
    } else if (failed) {
      Stop(&progress[b], Termination::kCancelled);
    } else {
      progress[b] = outcomes_.data()[b];
    }
  }
}
// The guess, which `start` tells the cost of, has cost all samples the same.
void CudaSpace::Solve(int32_t num_samples, const StoppingPolicy& policy, float* const* trajectories,
                      const Progress& start) {
  LaunchEncode(num_samples);
  RunIterations(num_samples, policy, Wanted(trajectories), start);
  LaunchDecode(num_samples);
  stream_->Wait([&] { LookAtTokens(num_samples); });
  CopyTrajectories(num_samples, trajectories);
}

NewtonArgs CudaSpace::ArgsOf(int64_t first, const NewtonShape& shape, const StoppingPolicy& policy,
                             const Progress& start) const {
  GuessView guess = guess_;
  if (guess.states != nullptr) guess.states += first * intervals_ * width_;
  return {
      .part = NewtonPart::kWhole,
      .stack = {.num_steps = shape_.num_steps, .state_dim = static_cast<int32_t>(shape_.state_dim)},
      .policy = policy,
      .start = start,
      .tree = IntervalTree(static_cast<int32_t>(intervals_), shape.num_blocks),
      .shooting_interval = static_cast<int32_t>(interval_),
      .guess = guess,
      .initial_states = initial_.data() + first * width_,
      .final_states = current_.data() + first * width_,
      .trajectories = nullptr,
      .outcomes = outcomes_.data() + first,
      .progress = nullptr,
      .cancel = cancel_.data() + first,
      .slabs = shape.in_slabs ? slabs_.data() : nullptr};
}

// ---- What surrounds the recurrence
void CudaSpace::LaunchChain(const DeviceChain& chain, DenseChainArgs args, int32_t num_samples) {
  args.layers = chain.args().layers;
  args.num_layers = chain.args().num_layers;
  args.input_dim = chain.args().input_dim;
  args.output_dim = chain.args().output_dim;
  args.widest = chain.args().widest;
  args.scratch = chain.ScratchFloats(limits_) > 0 ? scratch_.data() : nullptr;
  stream_->Launch(args, num_samples);
}
// The answers, and the final states beside them.
void CudaSpace::LaunchDecode(int32_t num_samples) {
  LaunchChain(decode_,
              {.inputs = current_.data(),
               .input_stride = width_,
               .outputs = outputs_.data(),
               .output_stride = shape_.output_dim,
               .input_copies = final_states_.data(),
               .amplification = amplification_.data()},
              num_samples);
}
void CudaSpace::CopyTrajectories(int32_t num_samples, float* const* trajectories) {
  if (trajectories == nullptr) return;
  const int64_t floats = (shape_.num_steps + 1) * shape_.state_dim;
  for (int32_t b = 0; b < num_samples; ++b) {
    if (trajectories[b] == nullptr) continue;
    stream_->CopyToHost(trajectories[b], trajectories_.data() + b * floats,
                        static_cast<size_t>(floats) * sizeof(float));
  }
  stream_->Wait([] {});
}

void CudaSpace::LookAtTokens(int32_t num_samples) {
  static_assert(static_cast<int32_t>(Termination::kDirect) == 0, "means: go on");
  for (int32_t b = 0; b < num_samples; ++b) {
    const StopReason reason = tokens_[b] == nullptr ? StopReason::kNone : tokens_[b]->stop_reason();
    const Termination told = reason == StopReason::kDeadline    ? Termination::kDeadline
                             : reason == StopReason::kCancelled ? Termination::kCancelled
                                                                : Termination::kDirect;
    // The device reads it at the same time.
    std::atomic_ref<int32_t>(cancel_.data()[b])
        .store(static_cast<int32_t>(told), std::memory_order_relaxed);
  }
}

}  // namespace deeppcr::cuda
