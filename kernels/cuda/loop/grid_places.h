// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_LOOP_GRID_PLACES_H_
#define DEEPPCR_KERNELS_CUDA_LOOP_GRID_PLACES_H_

// What the blocks of a solve over a whole GPU (grid_solve.h) hand on to one another, and where.

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/loop/interval_norms.h"
#include "kernels/cuda/loop/interval_tree.h"
#include "kernels/cuda/runtime/device_code.h"
#include "kernels/cuda/tuning.h"
#include "kernels/iteration/pass.h"

namespace deeppcr::cuda {

// Blocks of a group, whose nodes its first block composes.
inline constexpr int kGroupBlocks = 8;
// The most passes of a solve: numbers of a launch.
inline constexpr uint32_t kMostGridPasses = 1 << 12;

// Global memory through which the blocks of a launch hand on nodes and outcomes of passes, as
// elements with the number of their pass (GridExchange), so that nothing has to be cleared.
//
// A block gives its node once a pass, then its outcome; it ends a pass when it has the outcomes of
// all. So whoever writes a node again has the outcome of its readers, which they gave when they had
// read it. Outcomes have two places in turns: a block may give the next one while others still read
// the last, but no later one, as for that it needs the next ones of all.
struct GridPlaces {
  uint64_t* base;  // [Count], zero before the first launch
  uint32_t made;   // passes that numbers were given to since all places were zero

  static constexpr int VectorElements(int width) { return kNumColumns * width; }
  // A node: its matrix, then its vectors.
  static constexpr int NodeElements(int width) { return width * width + VectorElements(width); }
  // The norms and the stop word, in pairs, then the columns of the block's last state.
  static constexpr int kNormElements = 6;
  static constexpr int OutcomeElements(int width) { return kNormElements + VectorElements(width); }
  static constexpr int64_t Count(int blocks, int width) {
    return int64_t{2} * blocks * (NodeElements(width) + OutcomeElements(width));
  }
  constexpr bool HasNumbers() const { return made <= 0xFFFFFFFFU - kMostGridPasses; }

  // The node of a block.
  DEEPPCR_DEVICE uint64_t* Node(int block, int width) const {
    return base + block * NodeElements(width);
  }
  // The composition of the nodes of a block's group up to it.
  DEEPPCR_DEVICE uint64_t* Prefix(int block, int blocks, int width) const {
    return Node(blocks + block, width);
  }
  DEEPPCR_DEVICE uint64_t* Outcome(uint32_t pass, int block, int blocks, int width) const {
    return Node(2 * blocks, width) +
           (static_cast<int>(pass % 2) * blocks + block) * OutcomeElements(width);
  }
};

// Distribution of P shooting intervals over the blocks of a GPU: as few a block as keep all blocks
// at work, a power of two; a block has those of the tree's block of its number.
constexpr IntervalTree GridTree(int64_t num_intervals, int grid_blocks) {
  int32_t per_block = 1;
  while (int64_t{per_block} * grid_blocks < num_intervals) per_block *= 2;
  const int64_t blocks = (num_intervals + per_block - 1) / per_block;
  int32_t of_tree = 1;
  while (of_tree < blocks) of_tree *= 2;
  return {static_cast<int32_t>(num_intervals), of_tree};
}
// Blocks that have an interval.
constexpr int GridBlocksOf(const IntervalTree& tree) { return tree.nodes(tree.local_levels); }

// Floats of shared memory that a scan over a grid has for itself: the nodes of a block's own
// intervals, or of a group's blocks, with their prefixes; or those of the groups.
constexpr int64_t GridScanFloats(const IntervalTree& tree, int width) {
  const int64_t matrix = int64_t{width} * width, vectors = GridPlaces::VectorElements(width);
  const int blocks = GridBlocksOf(tree), groups = (blocks + kGroupBlocks - 1) / kGroupBlocks;
  const int64_t nodes =
      blocks == 1 || tree.per_block > kGroupBlocks ? tree.per_block : int64_t{kGroupBlocks};
  const int64_t composed = (2 * nodes - 1) * matrix + nodes * vectors;
  const int64_t chain = (groups > 2 ? groups - 2 : 0) * matrix + (groups - 1) * vectors;
  const int64_t least = vectors;
  return composed > chain ? composed : chain > least ? chain : least;
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_LOOP_GRID_PLACES_H_
