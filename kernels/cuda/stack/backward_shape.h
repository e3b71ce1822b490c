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

// Bytes of shared memory of a block.
constexpr size_t BackwardBytes(int width, const IntervalTree& tree, int32_t shooting_interval) {
  if (width <= 8) return BackwardMemory<8>::Bytes(tree, shooting_interval);
  return width <= 16 ? BackwardMemory<16>::Bytes(tree, shooting_interval)
                     : BackwardMemory<32>::Bytes(tree, shooting_interval);
}

// Workspace of one sample, if it is solved in one.
constexpr int64_t BackwardWorkspaceBytes(int width, const IntervalTree& tree,
                                         int32_t shooting_interval) {
  return int64_t{tree.num_blocks} *
         static_cast<int64_t>(BackwardBytes(width, tree, shooting_interval));
}

constexpr NewtonShape BackwardShapeOf(int width, int num_samples, const IntervalTree& tree,
                                      int32_t shooting_interval, const LaunchLimits& limits) {
  const int most =
      MaxBackwardWarps(width) < limits.max_warps ? MaxBackwardWarps(width) : limits.max_warps;
  return {width, num_samples, tree.num_blocks, tree.per_block < most ? tree.per_block : most,
          BackwardBytes(width, tree, shooting_interval) > limits.shared_bytes};
}

// Chooses, as ChooseNewtonShape, as many blocks a sample as there are free multiprocessors and
// intervals, and as its memory wants.
constexpr NewtonShape ChooseBackwardShape(int width, int num_samples, int32_t num_intervals,
                                          int32_t shooting_interval, const LaunchLimits& limits) {
  NewtonShape shape = {width, num_samples};
  for (int blocks = 1; blocks <= limits.max_cluster_blocks && blocks <= kChainNodes; blocks *= 2) {
    const bool too_many = num_samples > limits.ClustersAtOnce(blocks);
    const bool enough = shape.num_blocks > 0 && !shape.in_workspace;
    if (enough && (too_many || blocks / 2 >= num_intervals)) break;
    shape = BackwardShapeOf(width, num_samples, IntervalTree(num_intervals, blocks),
                            shooting_interval, limits);
  }
  return shape;
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_STACK_BACKWARD_SHAPE_H_
