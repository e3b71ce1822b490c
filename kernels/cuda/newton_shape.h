// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_NEWTON_SHAPE_H_
#define DEEPPCR_KERNELS_CUDA_NEWTON_SHAPE_H_

// How many blocks and warps a launch of the Newton kernel gets. The answer has the same bits
// whatever they are.

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/block_memory.h"
#include "kernels/cuda/interval_tree.h"

namespace deeppcr::cuda {

// What a device offers to one launch.
struct LaunchLimits {
  int multiprocessors = 1;
  size_t shared_bytes = 0;     // of a block
  int max_cluster_blocks = 0;  // a power of two; 0: no clusters
  int max_warps = 32;          // of a block
};

struct NewtonShape {
  int width = 0;
  int num_samples = 0;
  int num_blocks = 0;     // of a sample's cluster; 0: the device has no clusters
  int num_warps = 0;      // of a block
  bool in_slabs = false;  // the intervals do not fit its shared memory
};

// Padded widths that a warp takes, and what dimension fits the last.
inline constexpr int kWidths[] = {8, 16, 32};
inline constexpr int kMaxWarpStateDim = 32;
constexpr int WarpWidth(int64_t state_dim) {
  return state_dim <= 8 ? 8 : state_dim <= 16 ? 16 : 32;
}

// True if warps take states of this size in the iterative loop; else blocks do.
constexpr bool ByWarps(int64_t state_dim, const LaunchLimits& limits) {
  return state_dim <= kMaxWarpStateDim && limits.max_cluster_blocks > 0;
}

// A thread holds a column of a matrix and a row: the wider, the more registers.
constexpr int MaxNewtonWarps(int width) { return width <= 8 ? 16 : width <= 16 ? 12 : 8; }

// Bytes of the slabs of one sample, if it is solved in slabs.
constexpr int64_t SlabBytes(int width, const IntervalTree& tree) {
  return int64_t{tree.num_blocks} * static_cast<int64_t>(BlockMemory::Bytes(tree, width));
}

constexpr NewtonShape NewtonShapeOf(int width, int num_samples, const IntervalTree& tree,
                                    const LaunchLimits& limits) {
  const int most =
      MaxNewtonWarps(width) < limits.max_warps ? MaxNewtonWarps(width) : limits.max_warps;
  return {width, num_samples, tree.num_blocks, tree.per_block < most ? tree.per_block : most,
          BlockMemory::Bytes(tree, width) > limits.shared_bytes};
}

// As many blocks a sample as there are free multiprocessors and intervals, and as its memory wants;
// where the largest cluster has too little, that cluster, in slabs.
constexpr NewtonShape ChooseNewtonShape(int width, int num_samples, int32_t num_intervals,
                                        const LaunchLimits& limits) {
  NewtonShape shape = {width, num_samples};
  for (int blocks = 1; blocks <= limits.max_cluster_blocks; blocks *= 2) {
    const bool too_many = int64_t{blocks} * num_samples > limits.multiprocessors;
    const bool enough = shape.num_blocks > 0 && !shape.in_slabs;
    if (enough && (too_many || blocks / 2 >= num_intervals)) break;
    shape = NewtonShapeOf(width, num_samples, IntervalTree(num_intervals, blocks), limits);
  }
  return shape;
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_NEWTON_SHAPE_H_
