// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_STACK_BACKWARD_SHAPE_H_
#define DEEPPCR_KERNELS_CUDA_STACK_BACKWARD_SHAPE_H_

// Numbers of blocks and warps of a launch of the backward scan. The answer has the same bits for
// any of these numbers.

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/loop/interval_tree.h"
#include "kernels/cuda/loop/newton_shape.h"
#include "kernels/cuda/stack/backward_memory.h"
#include "kernels/cuda/tuning.h"

namespace deeppcr::cuda {

// A scan, but for its samples and blocks.
struct BackwardScanSize {
  int width;                  // W
  int32_t num_intervals;      // P
  int32_t shooting_interval;  // C
  int32_t num_columns;        // m
};

// Bytes of a block's memory.
constexpr size_t BackwardBytes(const BackwardScanSize& size, const IntervalTree& tree) {
  const int32_t interval = size.shooting_interval, columns = size.num_columns;
  if (size.width <= 8) return BackwardMemory<8>::Bytes(tree, interval, columns);
  return size.width <= 16 ? BackwardMemory<16>::Bytes(tree, interval, columns)
                          : BackwardMemory<32>::Bytes(tree, interval, columns);
}

constexpr NewtonShape BackwardShapeOf(const BackwardScanSize& size, int num_samples, int num_blocks,
                                      const LaunchLimits& limits) {
  const IntervalTree tree(size.num_intervals, num_blocks);
  const int most = MaxBackwardWarps(size.width) < limits.max_warps ? MaxBackwardWarps(size.width)
                                                                   : limits.max_warps;
  return {size.width, num_samples, num_blocks, tree.per_block < most ? tree.per_block : most,
          BackwardBytes(size, tree) > limits.shared_bytes};
}

// Chooses, as ChooseNewtonShape, as many blocks a sample as there are free multiprocessors and
// intervals, and as its memory wants.
constexpr NewtonShape ChooseBackwardShape(const BackwardScanSize& size, int num_samples,
                                          const LaunchLimits& limits) {
  NewtonShape shape = {size.width, num_samples};
  for (int blocks = 1; blocks <= limits.max_cluster_blocks && blocks <= kChainNodes; blocks *= 2) {
    const bool too_many = num_samples > limits.ClustersAtOnce(blocks);
    const bool enough = shape.num_blocks > 0 && !shape.in_workspace;
    if (enough && (too_many || blocks / 2 >= size.num_intervals)) break;
    shape = BackwardShapeOf(size, num_samples, blocks, limits);
  }
  return shape;
}

// Workspace of one sample; 0 where shared memory has room for the scan.
constexpr int64_t BackwardWorkspaceBytes(const BackwardScanSize& size, const LaunchLimits& limits) {
  const NewtonShape shape = ChooseBackwardShape(size, 1, limits);
  if (!shape.in_workspace) return 0;
  const IntervalTree tree(size.num_intervals, shape.num_blocks);
  return int64_t{shape.num_blocks} * static_cast<int64_t>(BackwardBytes(size, tree));
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_STACK_BACKWARD_SHAPE_H_
