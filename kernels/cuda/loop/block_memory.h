// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_LOOP_BLOCK_MEMORY_H_
#define DEEPPCR_KERNELS_CUDA_LOOP_BLOCK_MEMORY_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/loop/interval_norms.h"
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
  RelativeNorms norms;
  int32_t stop_word = 0;  // the cancel word, as the first warp of a cluster has read it
};

constexpr size_t AlignedBytes(size_t bytes) { return (bytes + 255) / 256 * 256; }

// Layout of a block's shared memory, or of its part of the workspace in global memory: the tree,
// then the states. A launch that finds the states in the workspace may have a tree of its own in
// shared memory: each of the two has a base, the same one where all lies together.
struct BlockMemory {
  const IntervalTree tree;
  const int width;  // W
  std::byte* const base;
  std::byte* const base_of_states = base;

  // Matrices of the nodes, [W, W], row-major. They and a block's memory begin at multiples of 256
  // bytes: the kernel that cuBLAS takes for a product, and so its bits, may depend on where it is.
  DEEPPCR_DEVICE float* Matrix(int32_t node) const {
    return reinterpret_cast<float*>(base + kWarpBytes) + int64_t{node} * (width * width);
  }
  // The matrices of the nodes of the chain, of all blocks.
  DEEPPCR_DEVICE float* ChainMatrix(int32_t j) const { return Matrix(tree.nodes_per_block() + j); }
  DEEPPCR_DEVICE float* Residual(int32_t node) const {
    return ChainMatrix(kChainNodes) + int64_t{node} * row();
  }
  // The residuals of the nodes of the chain, of all blocks.
  DEEPPCR_DEVICE float* ChainResidual(int32_t j) const {
    return Residual(tree.nodes_per_block()) + j * row();
  }
  // y at the start of interval i of the block; State(per_block) is y at the end of the last
  // interval.
  DEEPPCR_DEVICE float* State(int32_t i) const {
    const std::byte* const end = reinterpret_cast<std::byte*>(ChainResidual(kChainNodes));
    return reinterpret_cast<float*>(base_of_states + (end - base)) + int64_t{i} * row();
  }
  DEEPPCR_DEVICE float* Propagated(int32_t i) const { return State(tree.per_block + 1 + i); }
  // The vectors that enter a node, where launches take them down the tree (pass_kernel.h), which
  // have no shared memory.
  DEEPPCR_DEVICE float* Prefix(int32_t node) const {
    return Propagated(tree.per_block) + int64_t{node} * row();
  }
  // The layers of the block's intervals, where its shared memory holds them: weights [layers, W,
  // W + 4], so that the lanes of a warp find their rows in different banks, then biases [layers,
  // W].
  DEEPPCR_DEVICE float* HeldWeights() const { return Propagated(tree.per_block); }
  static constexpr int HeldRow(int width) { return width + 4; }
  static constexpr size_t HeldBytes(int width, int64_t layers) {
    return sizeof(float) * static_cast<size_t>(layers * width * (HeldRow(width) + 1));
  }
  // The norms of the warps of the block, and those of every block of the cluster.
  DEEPPCR_DEVICE WarpNorms* Norms() const { return reinterpret_cast<WarpNorms*>(base); }
  DEEPPCR_DEVICE WarpNorms* NormsOfBlocks() const { return Norms() + kMaxWarps; }
  // The progress of the sample, a copy for each warp.
  DEEPPCR_DEVICE Progress* OfWarps() const {
    return reinterpret_cast<Progress*>(base + (kMaxWarps + kMaxBlocks) * sizeof(WarpNorms));
  }
  static constexpr int kMaxWarps = 16, kMaxBlocks = 16;
  static_assert(MaxNewtonWarps(8) <= kMaxWarps && MaxPartWarps(8) <= kMaxWarps);

  // Bytes in a workspace, and in the shared memory of a block that has all in there, without
  // layers.
  static constexpr size_t Bytes(const IntervalTree& tree, int width) {
    const auto nodes = static_cast<size_t>(tree.nodes_per_block());
    return AlignedBytes(SharedBytes(tree, width) + RowBytes(width) * nodes);
  }
  static constexpr size_t SharedBytes(const IntervalTree& tree, int width) {
    const size_t rows = 2 * static_cast<size_t>(tree.per_block) + 1;
    return UnalignedTreeBytes(tree, width) + RowBytes(width) * rows;
  }
  // Bytes of the tree.
  static constexpr size_t TreeBytes(const IntervalTree& tree, int width) {
    return AlignedBytes(UnalignedTreeBytes(tree, width));
  }

 private:
  static constexpr size_t kWarpBytes =
      AlignedBytes((kMaxWarps + kMaxBlocks) * sizeof(WarpNorms) + kMaxWarps * sizeof(Progress));
  static constexpr size_t RowBytes(int width) {
    return sizeof(float) * kNumColumns * static_cast<size_t>(width);
  }
  static constexpr size_t UnalignedTreeBytes(const IntervalTree& tree, int width) {
    const size_t nodes = static_cast<size_t>(tree.nodes_per_block() + kChainNodes);
    const size_t matrix = sizeof(float) * static_cast<size_t>(width) * static_cast<size_t>(width);
    return kWarpBytes + nodes * (matrix + RowBytes(width));
  }
  DEEPPCR_DEVICE int32_t row() const { return kNumColumns * width; }
};

// Memory of a block of a sample's cluster, in a workspace [n, blocks, BlockMemory::Bytes].
DEEPPCR_DEVICE BlockMemory MemoryInWorkspace(std::byte* workspace, const IntervalTree& tree,
                                             int width, int64_t sample, int block) {
  const int64_t at = sample * tree.num_blocks + block;
  return {tree, width, workspace + at * static_cast<int64_t>(BlockMemory::Bytes(tree, width))};
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_LOOP_BLOCK_MEMORY_H_
