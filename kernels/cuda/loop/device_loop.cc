// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/loop/device_loop.h"

#include <algorithm>
#include <atomic>
#include <span>

#include "kernels/base/status_macros.h"
#include "kernels/cuda/tuning.h"
#include "kernels/iteration/stopping.h"

namespace deeppcr::cuda {

int64_t DeviceLoopBytes(const SpaceSizes& sizes) {
  constexpr auto kProgress = static_cast<int64_t>(sizeof(Progress));
  return sizes.group * (kProgress + int64_t{sizeof(int32_t)}) + kWorkspaceGroup * kProgress;
}
int64_t WorkspaceBytesAtOnce(const LaunchLimits& device, const SpaceSizes& sizes) {
  const auto width = static_cast<int>(sizes.width);
  const auto intervals = static_cast<int32_t>(sizes.intervals);
  const NewtonShape shape = ChooseNewtonShape(width, 1, intervals, device);
  return shape.in_workspace ? WorkspaceBytes(width, IntervalTree(intervals, shape.num_blocks)) : 0;
}
int64_t WorkspaceBytesInParts(const LaunchLimits& device, const SpaceSizes& sizes) {
  int64_t largest = 0;
  for (int blocks = 1; blocks <= device.max_cluster_blocks; blocks *= 2)
    largest = std::max(largest,
                       WorkspaceBytes(static_cast<int>(sizes.width),
                                      IntervalTree(static_cast<int32_t>(sizes.intervals), blocks)));
  return largest;
}

DeviceLoop::DeviceLoop(Workspace& work, Recurrence& recurrence)
    : work_(work), recurrence_(recurrence), tokens_(work.sizes.group), stopped_(work.sizes.group) {}

absl::Status DeviceLoop::Allocate() {
  DEEPPCR_RETURN_IF_ERROR(work_.Take(&cancel_, MemoryKind::kMapped, work_.sizes.group));
  DEEPPCR_RETURN_IF_ERROR(work_.Take(&outcomes_, MemoryKind::kMapped, work_.sizes.group));
  if (recurrence_.whole_solve() != nullptr) return absl::OkStatus();
  return work_.Take(&progress_, MemoryKind::kDevice, kWorkspaceGroup);
}

void DeviceLoop::Iterate(int32_t num_samples, const StoppingPolicy& policy,
                         float* const* trajectories, Progress* progress) {
  PollTokens(num_samples);
  const auto stopped = std::span(stopped_).first(num_samples);
  std::copy_n(cancel_.data(), num_samples, stopped.begin());
  if (std::find(stopped.begin(), stopped.end(), 0) != stopped.end())
    Solve(num_samples, policy, trajectories, *progress);
  const bool failed = !work_.stream->status().ok();  // status() says the rest
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
void DeviceLoop::Solve(int32_t num_samples, const StoppingPolicy& policy,
                       float* const* trajectories, const Progress& start) {
  float* const to = work_.Wanted(trajectories);
  recurrence_.LaunchEncode(num_samples);
  recurrence_.LaunchGuess(num_samples);
  if (const StackView* stack = recurrence_.whole_solve(); stack != nullptr) {
    SolveAtOnce(*stack, num_samples, policy, to, start);
  } else if (const IntervalTree tree = recurrence_.grid_tree(policy); tree.num_intervals > 0) {
    SolveOverGrid(tree, num_samples, policy, to, start);
  } else {
    const int64_t floats = (work_.shape.num_steps + 1) * work_.shape.state_dim;
    for (int32_t first = 0; first < num_samples; first += kWorkspaceGroup) {
      const int32_t count = std::min<int32_t>(kWorkspaceGroup, num_samples - first);
      SolveInParts(first, count, num_samples, policy, start);
      if (to != nullptr)
        recurrence_.LaunchExpansion(first, IntervalsInParts(count), count, to + first * floats);
    }
  }
  work_.LaunchDecode(recurrence_.decode(), num_samples);
  work_.stream->Wait([&] { PollTokens(num_samples); });
  work_.CopyTrajectories(num_samples, trajectories);
}

// Solves all samples at once, or as many as the workspace holds.
void DeviceLoop::SolveAtOnce(const StackView& stack, int32_t num_samples,
                             const StoppingPolicy& policy, float* trajectories,
                             const Progress& start) {
  const auto intervals = static_cast<int32_t>(work_.intervals);
  const bool in_workspace = ChooseNewtonShape(work_.width, 1, intervals, work_.limits).in_workspace;
  const int32_t most = in_workspace ? kWorkspaceGroup : num_samples;
  const int64_t floats = (work_.shape.num_steps + 1) * work_.shape.state_dim;
  for (int32_t first = 0; first < num_samples; first += most) {
    const NewtonShape shape = ChooseNewtonShape(work_.width, std::min(most, num_samples - first),
                                                intervals, work_.limits);
    NewtonArgs args = ArgsOf(first, shape, policy, start);
    args.stack = stack;
    args.trajectories = trajectories == nullptr ? nullptr : trajectories + first * floats;
    args.holds_layers = !in_workspace && CanHoldLayers(args.tree, args.shooting_interval,
                                                       work_.width, work_.limits.shared_bytes);
    if (!in_workspace && policy.max_iterations * work_.interval <= kLongSolve)
      args.cancel = nullptr;
    work_.stream->Launch(args, shape);
  }
}

// Solves one sample after the other, each over the whole GPU and in the same workspace.
void DeviceLoop::SolveOverGrid(const IntervalTree& tree, int32_t num_samples,
                               const StoppingPolicy& policy, float* trajectories,
                               const Progress& start) {
  const int64_t floats = (work_.shape.num_steps + 1) * work_.shape.state_dim;
  NewtonShape shape = {.width = work_.width, .num_samples = 1, .num_blocks = tree.num_blocks};
  shape.in_workspace = true;
  for (int32_t b = 0; b < num_samples; ++b) {
    if (b > 0 && b % kWorkspaceGroup == 0) work_.stream->Wait([&] { PollTokens(num_samples); });
    const NewtonArgs args = ArgsOf(b, shape, policy, start);
    recurrence_.LaunchGridSolve(b, args);
    if (trajectories == nullptr) continue;
    const IntervalsView intervals = {.tree = tree,
                                     .shooting_interval = args.shooting_interval,
                                     .members = kEveryMember,
                                     .workspace = args.workspace};
    recurrence_.LaunchExpansion(b, intervals, 1, trajectories + b * floats);
  }
}

NewtonShape DeviceLoop::ShapeInParts(int32_t count) const {
  return ChoosePartShape(work_.width, count, static_cast<int32_t>(work_.intervals), work_.limits);
}
IntervalsView DeviceLoop::IntervalsInParts(int32_t count) const {
  const auto intervals = static_cast<int32_t>(work_.intervals);
  return {.tree = IntervalTree(intervals, ShapeInParts(count).num_blocks),
          .shooting_interval = static_cast<int32_t>(work_.interval),
          .members = kEveryMember,
          .workspace = work_.block_memory.data()};
}

// Makes passes over samples first, ..., first + count - 1 until all of these samples have stopped.
void DeviceLoop::SolveInParts(int32_t first, int32_t count, int32_t num_samples,
                              const StoppingPolicy& policy, const Progress& start) {
  const NewtonShape shape = ShapeInParts(count);
  NewtonArgs args = ArgsOf(first, shape, policy, start);
  args.progress = progress_.data();
  args.holds_tree = BlockMemory::TreeBytes(args.tree, work_.width) <= work_.limits.shared_bytes;
  args.part = NewtonPart::kStart;
  work_.stream->Launch(args, shape);
  args.part = NewtonPart::kPass;
  if (recurrence_.needs_kind()) return PassOneByOne(first, count, num_samples, args, shape, start);
  const Propagation propagation = {.first = first,
                                   .intervals = IntervalsInParts(count),
                                   .num_members = count,
                                   .kind = {},
                                   .progress = progress_.data(),
                                   .linearization = policy.linearization};
  do {
    for (int pass = 0; pass < kPassesAhead; ++pass) {
      recurrence_.LaunchPropagation(propagation);
      work_.stream->Launch(args, shape);
    }
    work_.stream->Wait([&] { PollTokens(num_samples); });
    PollTokens(num_samples);
  } while (work_.stream->status().ok() && !AllStopped(first, count));
}

// Makes passes where the host has to know the kind of each pass, and so waits for each.
void DeviceLoop::PassOneByOne(int32_t first, int32_t count, int32_t num_samples,
                              const NewtonArgs& args, const NewtonShape& shape,
                              const Progress& start) {
  std::fill_n(outcomes_.data() + first, count, start);
  Propagation propagation = {
      .first = first, .intervals = IntervalsInParts(count), .num_members = 1, .kind = {}};
  do {
    for (int32_t b = 0; b < count; ++b) {
      const Progress& progress = outcomes_.data()[first + b];
      if (progress.next == NextPass::kStop) continue;
      propagation.intervals.members.at[0] = b;
      propagation.kind = KindOf(progress, args.policy.linearization);
      recurrence_.LaunchPropagation(propagation);
    }
    work_.stream->Launch(args, shape);
    work_.stream->Wait([&] { PollTokens(num_samples); });
    PollTokens(num_samples);
  } while (work_.stream->status().ok() && !AllStopped(first, count));
}

bool DeviceLoop::AllStopped(int32_t first, int32_t count) const {
  const Progress* outcomes = outcomes_.data() + first;
  return std::all_of(outcomes, outcomes + count,
                     [](const Progress& p) { return p.next == NextPass::kStop; });
}

NewtonArgs DeviceLoop::ArgsOf(int64_t first, const NewtonShape& shape, const StoppingPolicy& policy,
                              const Progress& start) const {
  GuessView guess = work_.guess;
  if (guess.states != nullptr) guess.states += first * work_.intervals * work_.width;
  return {.part = NewtonPart::kWhole,
          .stack = {.num_steps = work_.shape.num_steps,
                    .state_dim = static_cast<int32_t>(work_.shape.state_dim)},
          .policy = policy,
          .start = start,
          .tree = IntervalTree(static_cast<int32_t>(work_.intervals), shape.num_blocks),
          .shooting_interval = static_cast<int32_t>(work_.interval),
          .guess = guess,
          .initial_states = work_.initial.data() + first * work_.width,
          .final_states = work_.current.data() + first * work_.width,
          .trajectories = nullptr,
          .outcomes = outcomes_.data() + first,
          .progress = nullptr,
          .cancel = cancel_.data() + first,
          .workspace = shape.in_workspace ? work_.block_memory.data() : nullptr,
          .holds_layers = false,
          .holds_tree = false};
}

void DeviceLoop::PollTokens(int32_t num_samples) {
  static_assert(static_cast<int32_t>(Termination::kDirect) == 0,
                "0 in the word: no reason to stop");
  for (int32_t b = 0; b < num_samples; ++b) {
    const StopReason reason = tokens_[b] == nullptr ? StopReason::kNone : tokens_[b]->stop_reason();
    const Termination stop = reason == StopReason::kDeadline    ? Termination::kDeadline
                             : reason == StopReason::kCancelled ? Termination::kCancelled
                                                                : Termination::kDirect;
    // The device reads the word at the same time.
    std::atomic_ref<int32_t>(cancel_.data()[b])
        .store(static_cast<int32_t>(stop), std::memory_order_relaxed);
  }
}

}  // namespace deeppcr::cuda
