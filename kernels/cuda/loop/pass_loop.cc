// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/loop/pass_loop.h"

#include <algorithm>

#include "kernels/base/status_macros.h"
#include "kernels/cuda/loop/block_shape.h"
#include "kernels/cuda/tuning.h"

namespace deeppcr::cuda {

namespace {

int64_t WorkspaceBytesOf(const SpaceSizes& sizes, int64_t intervals) {
  return WorkspaceBytes(static_cast<int>(sizes.width),
                        IntervalTree(static_cast<int32_t>(intervals), 1));
}
int64_t NumNorms(const SpaceSizes& sizes) {
  return sizes.iterative * sizes.intervals * (sizes.width / kPassRows);
}
Members MembersOf(std::span<const int32_t> samples) {
  Members members = {};
  std::copy(samples.begin(), samples.end(), members.at);
  return members;
}

}  // namespace

int64_t PassGroup(const SpaceSizes& sizes) {
  const int64_t fit = kWorkspaceBudget / WorkspaceBytesOf(sizes, NumIntervals(sizes.shape, 1));
  return std::clamp<int64_t>(std::min(fit, sizes.group), 1, kWorkspaceGroup);
}
int64_t PassWorkspaceBytes(const SpaceSizes& sizes) {
  return sizes.iterative * WorkspaceBytesOf(sizes, sizes.intervals);
}
int64_t PassLoopBytes(const SpaceSizes& sizes) {
  const int64_t norms = NumNorms(sizes) * int64_t{sizeof(IntervalNorms)};
  return sizes.iterative * int64_t{sizeof(UpdateNorms)} + norms;
}

absl::Status PassLoop::Allocate() {
  const int64_t samples = work_.sizes.iterative;
  if (work_.sizes.intervals == 0) return absl::OkStatus();
  DEEPPCR_RETURN_IF_ERROR(work_.Take(&outcomes_, MemoryKind::kMapped, samples));
  return work_.Take(&norms_, MemoryKind::kDevice, NumNorms(work_.sizes));
}

IntervalsView PassLoop::Intervals(std::span<const int32_t> samples) const {
  return {Tree(), static_cast<int32_t>(work_.interval), MembersOf(samples),
          work_.block_memory.data()};
}
PassView PassLoop::View(std::span<const int32_t> samples) const {
  return {.tree = Tree(),
          .state_dim = static_cast<int32_t>(work_.shape.state_dim),
          .width = work_.width,
          .num_steps = work_.shape.num_steps,
          .shooting_interval = static_cast<int32_t>(work_.interval),
          .members = MembersOf(samples),
          .workspace = work_.block_memory.data()};
}

TreeShape PassLoop::Shape(std::span<const int32_t> samples, IterationKind kind) const {
  return ChooseTree(Tree(), work_.width, kind.linearization, static_cast<int>(samples.size()),
                    work_.limits);
}
TreeArgs PassLoop::ArgsOf(std::span<const int32_t> samples, IterationKind kind,
                          double floor) const {
  const PassView pass = View(samples);
  return {.shape = Shape(samples, kind),
          .update = {.pass = pass,
                     .kind = kind,
                     .norms = norms_.data(),
                     .final_states = work_.current.data()},
          .collect = {
              .pass = pass, .floor = floor, .norms = norms_.data(), .outcomes = outcomes_.data()}};
}

void PassLoop::Begin(int32_t num_samples) {
  recurrence_.LaunchEncode(num_samples);
  recurrence_.LaunchGuess(num_samples);
  work_.stream->Launch(StartArgs{.pass = View(kEveryMember.at),
                                 .guess = work_.guess,
                                 .initial_states = work_.initial.data()},
                       num_samples);
}

PassCount PassLoop::Propagate(std::span<const int32_t> samples, IterationKind kind) {
  recurrence_.LaunchPropagation({.intervals = Intervals(samples),
                                 .num_members = static_cast<int32_t>(samples.size()),
                                 .kind = kind,
                                 .linearization = kind.linearization});
  return {.stages = std::min(work_.interval, work_.shape.num_steps),
          .columns = kind.columns(work_.shape.state_dim)};
}

void PassLoop::UpSweep(std::span<const int32_t> samples, int level, IterationKind kind) {
  if (level <= Shape(samples, kind).first_level)
    work_.stream->Launch(
        LevelArgs{.pass = View(samples), .sweep = Sweep::kUp, .level = level, .kind = kind},
        static_cast<int>(samples.size()));
  if (!kind.forms_jacobians()) return;
  for (const int32_t sample : samples) {
    const BlockMemory memory = View(samples).MemoryOf(sample);
    const GemmArgs products = ProductsOfLevel(memory.tree, level, work_.width, memory.Matrix(0));
    if (products.count > 0) work_.stream->Launch(products);
  }
}

void PassLoop::DownSweep(std::span<const int32_t> samples, int level, IterationKind kind) {
  const int count = static_cast<int>(samples.size());
  const int first_level = Shape(samples, kind).first_level;
  if (level < first_level) {
    work_.stream->Launch(
        LevelArgs{.pass = View(samples), .sweep = Sweep::kDown, .level = level, .kind = kind},
        count);
  } else if (level == first_level && level > 0) {
    work_.stream->Launch(ArgsOf(samples, kind, 0.0), count);
  }
}

void PassLoop::Update(std::span<const int32_t> samples, IterationKind kind, double floor,
                      std::span<UpdateNorms> norms) {
  const int count = static_cast<int>(samples.size());
  const TreeArgs args = ArgsOf(samples, kind, floor);
  if (args.shape.first_level == 0) {
    work_.stream->Launch(args, count);
  } else {
    work_.stream->Launch(args.update, count);
    work_.stream->Launch(args.collect, count);
  }
  work_.stream->Wait([] {});
  for (size_t i = 0; i < samples.size(); ++i) norms[i] = outcomes_.data()[samples[i]];
  // Norms that are not finite end the loop, and status() says why.
  if (!work_.stream->status().ok())
    std::fill(norms.begin(), norms.end(), UpdateNorms{.finite = false});
}

void PassLoop::Finish(int32_t num_samples, float* const* trajectories) {
  if (trajectories != nullptr)
    recurrence_.LaunchExpansion(0, Intervals(kEveryMember.at), num_samples,
                                work_.trajectories.data());
  work_.LaunchDecode(recurrence_.decode(), num_samples);
  work_.stream->Wait([] {});
  work_.CopyTrajectories(num_samples, trajectories);
}

}  // namespace deeppcr::cuda
