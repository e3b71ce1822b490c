// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_LOOP_NEWTON_SHAPE_H_
#define DEEPPCR_KERNELS_CUDA_LOOP_NEWTON_SHAPE_H_

// Numbers of blocks and warps of a launch of the Newton kernel. The answer has the same bits for
// any of these numbers.

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/loop/block_memory.h"
#include "kernels/cuda/loop/interval_tree.h"
#include "kernels/cuda/tuning.h"

namespace deeppcr::cuda {

// The most blocks of a cluster, and the sizes of clusters: 2^0, ..., 2^4.
inline constexpr int kMostClusterBlocks = 16, kNumClusterSizes = 5;

// Clusters of 2^i blocks, each of which has a multiprocessor to itself, that a device runs at a
// time. There may be fewer clusters than the multiprocessors would allow, as a cluster does not
// span the hardware's groups of multiprocessors. 0: not known.
struct ClusterCounts {
  int of[kNumClusterSizes] = {};
};

// Limits of a device for one launch.
struct LaunchLimits {
  int multiprocessors = 1;
  size_t shared_bytes = 0;     // shared memory of a block
  int max_cluster_blocks = 0;  // a power of two; 0: no clusters
  int max_warps = 32;          // warps of a block
  int grid_blocks = 0;         // blocks of a cooperative launch, one a multiprocessor; 0: none
  ClusterCounts clusters = {};

  // Clusters of `blocks` blocks, a power of two, that have room side by side.
  constexpr int ClustersAtOnce(int blocks) const {
    int i = 0;
    while (1 << i < blocks) ++i;
    const int counted = i < kNumClusterSizes ? clusters.of[i] : 0;
    return counted > 0 ? counted : multiprocessors / blocks;
  }
};

struct NewtonShape {
  int width = 0;
  int num_samples = 0;
  int num_blocks = 0;         // blocks of a sample's cluster; 0: the device has no clusters
  int num_warps = 0;          // warps of a block
  bool in_workspace = false;  // the intervals do not fit the cluster's shared memory
};

// Padded widths that a warp takes, and the largest dimension that fits the last one.
inline constexpr int kWidths[] = {8, 16, 32};
inline constexpr int kMaxWarpStateDim = 32;
constexpr int WarpWidth(int64_t state_dim) {
  return state_dim <= 8 ? 8 : state_dim <= 16 ? 16 : 32;
}

// True if warps take states of this size in the iterative loop; else blocks do.
constexpr bool ByWarps(int64_t state_dim, const LaunchLimits& limits) {
  return state_dim <= kMaxWarpStateDim && limits.max_cluster_blocks > 0;
}

// Workspace of one sample, if it is solved in one.
constexpr int64_t WorkspaceBytes(int width, const IntervalTree& tree) {
  return int64_t{tree.num_blocks} * static_cast<int64_t>(BlockMemory::Bytes(tree, width));
}

constexpr NewtonShape NewtonShapeOf(int width, int num_samples, const IntervalTree& tree,
                                    const LaunchLimits& limits) {
  const int most =
      MaxNewtonWarps(width) < limits.max_warps ? MaxNewtonWarps(width) : limits.max_warps;
  return {width, num_samples, tree.num_blocks, tree.per_block < most ? tree.per_block : most,
          BlockMemory::SharedBytes(tree, width) > limits.shared_bytes};
}

// Chooses as many blocks a sample as there are free multiprocessors and intervals, and as its
// memory wants; the largest cluster, in the workspace, where even that has too little shared
// memory.
constexpr NewtonShape ChooseNewtonShape(int width, int num_samples, int32_t num_intervals,
                                        const LaunchLimits& limits) {
  NewtonShape shape = {width, num_samples};
  for (int blocks = 1; blocks <= limits.max_cluster_blocks; blocks *= 2) {
    const bool too_many = num_samples > limits.ClustersAtOnce(blocks);
    const bool enough = shape.num_blocks > 0 && !shape.in_workspace;
    if (enough && (too_many || blocks / 2 >= num_intervals)) break;
    shape = NewtonShapeOf(width, num_samples, IntervalTree(num_intervals, blocks), limits);
  }
  return shape;
}

// The same for launches that make parts of a solve, in the workspace.
constexpr NewtonShape ChoosePartShape(int width, int num_samples, int32_t num_intervals,
                                      const LaunchLimits& limits) {
  NewtonShape shape = ChooseNewtonShape(width, num_samples, num_intervals, limits);
  const int most = MaxPartWarps(width) < limits.max_warps ? MaxPartWarps(width) : limits.max_warps;
  const int32_t per_block = IntervalTree(num_intervals, shape.num_blocks).per_block;
  shape.num_warps = per_block < most ? per_block : most;
  shape.in_workspace = true;
  return shape;
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_LOOP_NEWTON_SHAPE_H_
