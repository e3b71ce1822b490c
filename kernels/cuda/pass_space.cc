// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/pass_space.h"

#include <algorithm>

namespace deeppcr::cuda {

int64_t PassSlabBytes(const SpaceSizes& sizes) {
  const IntervalTree tree(static_cast<int32_t>(sizes.intervals), 1);
  return sizes.iterative * SlabBytes(static_cast<int>(sizes.width), tree);
}

absl::Status PassSpace::Allocate() {
  const int64_t samples = sizes_.iterative;
  DEEPPCR_RETURN_IF_ERROR(CudaSpace::Allocate());
  if (sizes_.intervals == 0) return absl::OkStatus();
  DEEPPCR_RETURN_IF_ERROR(Take(&members_, MemoryKind::kMapped, samples));
  DEEPPCR_RETURN_IF_ERROR(Take(&outcomes_, MemoryKind::kMapped, samples));
  DEEPPCR_RETURN_IF_ERROR(Take(&norms_, MemoryKind::kDevice, samples * sizes_.intervals));
  return stream_->PrepareProducts();
}

IntervalsView PassSpace::Intervals(const int32_t* members) const {
  return {Tree(), static_cast<int32_t>(interval_), members, slabs_.data()};
}
PassView PassSpace::View() const {
  return {.tree = Tree(),
          .state_dim = static_cast<int32_t>(shape_.state_dim),
          .width = width_,
          .num_steps = shape_.num_steps,
          .shooting_interval = static_cast<int32_t>(interval_),
          .members = members_.data(),
          .slabs = slabs_.data()};
}

void PassSpace::Begin(int32_t num_samples) {
  LaunchEncode(num_samples);
  LaunchGuess(num_samples);
  stream_->Launch(StartArgs{.pass = View(), .guess = guess_, .initial_states = initial_.data()},
                  num_samples);
}

PassCount PassSpace::Propagate(std::span<const int32_t> samples, IterationKind kind) {
  // The last pass has been waited for: nobody reads the members of that one any more.
  std::copy(samples.begin(), samples.end(), members_.data());
  LaunchPropagation(Intervals(members_.data()), static_cast<int32_t>(samples.size()), kind);
  const bool full = kind.refresh && kind.linearization == Linearization::kFull;
  return {.stages = std::min(interval_, shape_.num_steps),
          .columns = ColumnsOf(kind) + (full ? shape_.state_dim : 0)};
}

void PassSpace::ReduceLevel(std::span<const int32_t> samples, int level, IterationKind kind) {
  stream_->Launch(LevelArgs{.pass = View(), .sweep = Sweep::kReduce, .level = level, .kind = kind},
                  static_cast<int>(samples.size()));
  if (!kind.refresh || kind.linearization != Linearization::kFull) return;
  for (const int32_t sample : samples) {
    const BlockMemory memory = View().MemoryOf(sample);
    const GemmArgs products = ProductsOfLevel(memory.tree, level, width_, memory.Matrix(0));
    if (products.count > 0) stream_->Launch(products);
  }
}

void PassSpace::DistributeLevel(std::span<const int32_t> samples, int level, IterationKind kind) {
  stream_->Launch(
      LevelArgs{.pass = View(), .sweep = Sweep::kDistribute, .level = level, .kind = kind},
      static_cast<int>(samples.size()));
}

void PassSpace::Update(std::span<const int32_t> samples, IterationKind kind, double floor,
                       std::span<UpdateNorms> norms) {
  const int count = static_cast<int>(samples.size());
  stream_->Launch(UpdateArgs{.pass = View(),
                             .kind = kind,
                             .floor = floor,
                             .norms = norms_.data(),
                             .final_states = current_.data()},
                  count);
  stream_->Launch(CollectArgs{.pass = View(), .norms = norms_.data(), .outcomes = outcomes_.data()},
                  count);
  stream_->Wait([] {});
  for (size_t i = 0; i < samples.size(); ++i) norms[i] = outcomes_.data()[samples[i]];
  // The loop ends then, and status() says why.
  if (!stream_->status().ok()) std::fill(norms.begin(), norms.end(), UpdateNorms{.finite = false});
}

void PassSpace::Finish(int32_t num_samples, float* const* trajectories) {
  if (trajectories != nullptr)
    LaunchExpansion(Intervals(nullptr), num_samples, trajectories_.data());
  LaunchDecode(num_samples);
  stream_->Wait([] {});
  CopyTrajectories(num_samples, trajectories);
}

}  // namespace deeppcr::cuda
