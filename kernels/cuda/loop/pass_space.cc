// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/loop/pass_space.h"

#include <algorithm>

#include "kernels/cuda/loop/block_shape.h"

namespace deeppcr::cuda {

namespace {

constexpr int64_t kSlabBudget = int64_t{128} << 20;

int64_t SlabBytesOf(const SpaceSizes& sizes, int64_t intervals) {
  return SlabBytes(static_cast<int>(sizes.width), IntervalTree(static_cast<int32_t>(intervals), 1));
}
int64_t NumNorms(const SpaceSizes& sizes) {
  return sizes.iterative * sizes.intervals * (sizes.width / kPassRows);
}
constexpr Members kEverySample = {{0, 1, 2, 3, 4, 5, 6, 7}};

Members MembersOf(std::span<const int32_t> samples) {
  Members members = {};
  std::copy(samples.begin(), samples.end(), members.at);
  return members;
}

}  // namespace

int64_t PassGroup(const SpaceSizes& sizes) {
  const int64_t fit = kSlabBudget / SlabBytesOf(sizes, NumIntervals(sizes.shape, 1));
  return std::clamp<int64_t>(std::min(fit, sizes.group), 1, kSlabGroup);
}
int64_t PassSlabBytes(const SpaceSizes& sizes) {
  return sizes.iterative * SlabBytesOf(sizes, sizes.intervals);
}
int64_t PassLoopBytes(const SpaceSizes& sizes) {
  const int64_t norms = NumNorms(sizes) * int64_t{sizeof(IntervalNorms)};
  return sizes.iterative * int64_t{sizeof(UpdateNorms)} + norms;
}

absl::Status PassSpace::Allocate() {
  const int64_t samples = sizes_.iterative;
  DEEPPCR_RETURN_IF_ERROR(CudaSpace::Allocate());
  if (sizes_.intervals == 0) return absl::OkStatus();
  DEEPPCR_RETURN_IF_ERROR(Take(&outcomes_, MemoryKind::kMapped, samples));
  return Take(&norms_, MemoryKind::kDevice, NumNorms(sizes_));
}

IntervalsView PassSpace::Intervals(std::span<const int32_t> samples) const {
  return {Tree(), static_cast<int32_t>(interval_), MembersOf(samples), slabs_.data()};
}
PassView PassSpace::View(std::span<const int32_t> samples) const {
  return {.tree = Tree(),
          .state_dim = static_cast<int32_t>(shape_.state_dim),
          .width = width_,
          .num_steps = shape_.num_steps,
          .shooting_interval = static_cast<int32_t>(interval_),
          .members = MembersOf(samples),
          .slabs = slabs_.data()};
}

TreeShape PassSpace::Shape(std::span<const int32_t> samples, IterationKind kind) const {
  return ChooseTree(Tree(), width_, kind.linearization, static_cast<int>(samples.size()), limits_);
}
TreeArgs PassSpace::ArgsOf(std::span<const int32_t> samples, IterationKind kind,
                           double floor) const {
  const PassView pass = View(samples);
  return {.shape = Shape(samples, kind),
          .update = {.pass = pass,
                     .kind = kind,
                     .norms = norms_.data(),
                     .final_states = current_.data()},
          .collect = {
              .pass = pass, .floor = floor, .norms = norms_.data(), .outcomes = outcomes_.data()}};
}

void PassSpace::Begin(int32_t num_samples) {
  LaunchEncode(num_samples);
  LaunchGuess(num_samples);
  stream_->Launch(
      StartArgs{.pass = View(kEverySample.at), .guess = guess_, .initial_states = initial_.data()},
      num_samples);
}

PassCount PassSpace::Propagate(std::span<const int32_t> samples, IterationKind kind) {
  LaunchPropagation(Intervals(samples), static_cast<int32_t>(samples.size()), kind);
  return {.stages = std::min(interval_, shape_.num_steps),
          .columns = kind.columns(shape_.state_dim)};
}

void PassSpace::ReduceLevel(std::span<const int32_t> samples, int level, IterationKind kind) {
  if (level <= Shape(samples, kind).first_level)
    stream_->Launch(
        LevelArgs{.pass = View(samples), .sweep = Sweep::kReduce, .level = level, .kind = kind},
        static_cast<int>(samples.size()));
  if (!kind.forms_jacobians()) return;
  for (const int32_t sample : samples) {
    const BlockMemory memory = View(samples).MemoryOf(sample);
    const GemmArgs products = ProductsOfLevel(memory.tree, level, width_, memory.Matrix(0));
    if (products.count > 0) stream_->Launch(products);
  }
}

void PassSpace::DistributeLevel(std::span<const int32_t> samples, int level, IterationKind kind) {
  const int count = static_cast<int>(samples.size());
  const int first_level = Shape(samples, kind).first_level;
  if (level < first_level) {
    stream_->Launch(
        LevelArgs{.pass = View(samples), .sweep = Sweep::kDistribute, .level = level, .kind = kind},
        count);
  } else if (level == first_level && level > 0) {
    stream_->Launch(ArgsOf(samples, kind, 0.0), count);
  }
}

void PassSpace::Update(std::span<const int32_t> samples, IterationKind kind, double floor,
                       std::span<UpdateNorms> norms) {
  const int count = static_cast<int>(samples.size());
  const TreeArgs args = ArgsOf(samples, kind, floor);
  if (args.shape.first_level == 0) {
    stream_->Launch(args, count);
  } else {
    stream_->Launch(args.update, count);
    stream_->Launch(args.collect, count);
  }
  stream_->Wait([] {});
  for (size_t i = 0; i < samples.size(); ++i) norms[i] = outcomes_.data()[samples[i]];
  // Norms that are not finite end the loop, and status() says why.
  if (!stream_->status().ok()) std::fill(norms.begin(), norms.end(), UpdateNorms{.finite = false});
}

void PassSpace::Finish(int32_t num_samples, float* const* trajectories) {
  if (trajectories != nullptr)
    LaunchExpansion(Intervals(kEverySample.at), num_samples, trajectories_.data());
  LaunchDecode(num_samples);
  stream_->Wait([] {});
  CopyTrajectories(num_samples, trajectories);
}

}  // namespace deeppcr::cuda
