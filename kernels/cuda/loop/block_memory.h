// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_LOOP_BLOCK_MEMORY_H_
#define DEEPPCR_KERNELS_CUDA_LOOP_BLOCK_MEMORY_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/loop/interval_tree.h"
#include "kernels/cuda/runtime/device_code.h"
#include "kernels/cuda/tuning.h"
#include "kernels/iteration/pass.h"
#include "kernels/iteration/stopping.h"

namespace deeppcr::cuda {

// The samples that a launch is for.
struct Members {
  int32_t at[kWorkspaceGroup];
};
inline constexpr Members kEveryMember = {{0, 1, 2, 3, 4, 5, 6, 7}};

// Norms of the intervals that a warp has updated.
struct WarpNorms {
  UpdateNorms norms;
  int32_t stop_word;  // the cancel word, as the first warp of a cluster has read it
};

// Layout of a block's shared memory, or of its part of the workspace in global memory.
struct BlockMemory {
  const IntervalTree tree;
  const int width;  // W
  std::byte* const base;

  // y at the start of interval i of the block; State(per_block) is y at the end of the last
  // interval.
  DEEPPCR_DEVICE float* State(int32_t i) const { return Floats() + int64_t{i} * row(); }
  DEEPPCR_DEVICE float* Propagated(int32_t i) const { return State(tree.per_block + 1 + i); }
  DEEPPCR_DEVICE float* Residual(int32_t node) const {
    return Propagated(tree.per_block) + int64_t{node} * row();
  }
  DEEPPCR_DEVICE float* Prefix(int32_t node) const {
    return Residual(tree.nodes_per_block()) + int64_t{node} * row();
  }
  DEEPPCR_DEVICE float* Matrix(int32_t node) const {  // [W, W], row-major
    return Prefix(tree.nodes_per_block()) + int64_t{node} * width * width;
  }
  DEEPPCR_DEVICE WarpNorms* Norms() const { return reinterpret_cast<WarpNorms*>(base); }
  // The progress of the sample, a copy for each warp.
  DEEPPCR_DEVICE Progress* OfWarps() const {
    return reinterpret_cast<Progress*>(base + kMaxWarps * sizeof(WarpNorms));
  }
  static constexpr int kMaxWarps = 32;

  static constexpr size_t Bytes(const IntervalTree& tree, int width) {
    const size_t nodes = static_cast<size_t>(tree.nodes_per_block());
    const size_t rows = 2 * static_cast<size_t>(tree.per_block) + 1 + 2 * nodes;
    return kWarpBytes +
           sizeof(float) * (rows * kNumColumns + nodes * width) * static_cast<size_t>(width);
  }

 private:
  static constexpr size_t kWarpBytes = kMaxWarps * (sizeof(WarpNorms) + sizeof(Progress));
  DEEPPCR_DEVICE int64_t row() const { return int64_t{kNumColumns} * width; }
  DEEPPCR_DEVICE float* Floats() const { return reinterpret_cast<float*>(base + kWarpBytes); }
};

// Memory of a block of a sample's cluster, in a workspace [n, blocks, BlockMemory::Bytes].
DEEPPCR_DEVICE BlockMemory MemoryInWorkspace(std::byte* workspace, const IntervalTree& tree,
                                             int width, int64_t sample, int block) {
  const int64_t at = sample * tree.num_blocks + block;
  return {tree, width, workspace + at * static_cast<int64_t>(BlockMemory::Bytes(tree, width))};
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_LOOP_BLOCK_MEMORY_H_
