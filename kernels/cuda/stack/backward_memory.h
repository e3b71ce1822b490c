// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_STACK_BACKWARD_MEMORY_H_
#define DEEPPCR_KERNELS_CUDA_STACK_BACKWARD_MEMORY_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/loop/interval_tree.h"
#include "kernels/cuda/runtime/device_code.h"

namespace deeppcr::cuda {

// Layout of a block's memory for a scan.
template <int W>
struct BackwardMemory {
  const IntervalTree tree;
  const int32_t shooting_interval;
  const int32_t num_columns;
  std::byte* const base;

  // The product of the Jacobians of interval i of the block, [W, W], row-major. The product of a
  // node of several intervals replaces that of its last interval, which nothing else needs.
  DEEPPCR_DEVICE float* Matrix(int32_t i) const {
    return reinterpret_cast<float*>(base) + int64_t{i} * W * W;
  }
  DEEPPCR_DEVICE float* MatrixOfNode(int level, int32_t j) const {
    return Matrix(((j + 1) << level) - 1);
  }
  // Slopes of the layers of interval i, [C, W].
  DEEPPCR_DEVICE float* Slopes(int32_t i) const {
    return Matrix(tree.per_block) + int64_t{i} * shooting_interval * W;
  }
  // A copy of the product of node j of the chain, [W, W], of whichever block.
  DEEPPCR_DEVICE float* ChainMatrix(int32_t j) const {
    return Slopes(tree.per_block) + int64_t{j} * W * W;
  }
  // The gradient of a column that enters node k of the block on the chain, [W].
  DEEPPCR_DEVICE float* Prefix(int32_t k, int32_t column) const {
    return ChainMatrix(MostNodes(tree)) + (int64_t{k} * num_columns + column) * W;
  }

  // Nodes of the chain, at most.
  static constexpr int32_t MostNodes(const IntervalTree& tree) {
    return tree.num_intervals < kChainNodes ? tree.num_intervals : kChainNodes;
  }

  static constexpr size_t Bytes(const IntervalTree& tree, int32_t shooting_interval,
                                int32_t num_columns) {
    const size_t rows = static_cast<size_t>(tree.per_block) * (W + shooting_interval);
    const size_t roots = tree.per_block >> ChainLevel(tree);
    return sizeof(float) * W *
           (rows + roots * num_columns + static_cast<size_t>(MostNodes(tree)) * W);
  }
};

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_STACK_BACKWARD_MEMORY_H_
