// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/loop/loop_space.h"

#include <algorithm>
#include <atomic>
#include <span>

#include "kernels/iteration/stopping.h"

namespace deeppcr::cuda {

LoopSpace::LoopSpace(Device& device, const SpaceSizes& sizes, const DeviceChain& decode)
    : CudaSpace(device, sizes, decode), tokens_(sizes.group), stopped_(sizes.group) {}

absl::Status LoopSpace::Allocate() {
  DEEPPCR_RETURN_IF_ERROR(CudaSpace::Allocate());
  DEEPPCR_RETURN_IF_ERROR(Take(&cancel_, MemoryKind::kMapped, sizes_.group));
  return Take(&outcomes_, MemoryKind::kMapped, sizes_.group);
}

void LoopSpace::Encode(int32_t sample, const SampleInput& input) {
  CudaSpace::Encode(sample, input);
  tokens_[sample] = input.token;
}

void LoopSpace::Iterate(int32_t num_samples, const StoppingPolicy& policy,
                        float* const* trajectories, Progress* progress) {
  LookAtTokens(num_samples);
  const auto stopped = std::span(stopped_).first(num_samples);
  std::copy_n(cancel_.data(), num_samples, stopped.begin());
  if (std::find(stopped.begin(), stopped.end(), 0) != stopped.end())
    Solve(num_samples, policy, trajectories, *progress);
  const bool failed = !stream_->status().ok();  // status() says the rest
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
// Solves from the guess, whose cost, the same for all samples, is in `start`.
void LoopSpace::Solve(int32_t num_samples, const StoppingPolicy& policy, float* const* trajectories,
                      const Progress& start) {
  LaunchEncode(num_samples);
  LaunchGuess(num_samples);
  RunIterations(num_samples, policy, Wanted(trajectories), start);
  LaunchDecode(num_samples);
  stream_->Wait([&] { LookAtTokens(num_samples); });
  CopyTrajectories(num_samples, trajectories);
}

NewtonArgs LoopSpace::ArgsOf(int64_t first, const NewtonShape& shape, const StoppingPolicy& policy,
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

void LoopSpace::LookAtTokens(int32_t num_samples) {
  static_assert(static_cast<int32_t>(Termination::kDirect) == 0, "means: go on");
  for (int32_t b = 0; b < num_samples; ++b) {
    const StopReason reason = tokens_[b] == nullptr ? StopReason::kNone : tokens_[b]->stop_reason();
    const Termination told = reason == StopReason::kDeadline    ? Termination::kDeadline
                             : reason == StopReason::kCancelled ? Termination::kCancelled
                                                                : Termination::kDirect;
    // The device reads the word at the same time.
    std::atomic_ref<int32_t>(cancel_.data()[b])
        .store(static_cast<int32_t>(told), std::memory_order_relaxed);
  }
}

}  // namespace deeppcr::cuda
