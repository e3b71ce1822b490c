// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_LOOP_INTERVAL_TREE_H_
#define DEEPPCR_KERNELS_CUDA_LOOP_INTERVAL_TREE_H_

// Distribution of shooting intervals and of the nodes of the tree over them to the blocks of a
// cluster (kernels/iteration/scan_tree.h: the shape depends on P alone). A block holds `per_block`
// intervals, a power of two, one after the other, and every node that has only intervals of this
// block below it; a node that spans blocks is held by the first of them.

#include <cstdint>

#include "kernels/cuda/runtime/device_code.h"

namespace deeppcr::cuda {

struct IntervalTree {
  int32_t num_intervals;  // P
  int32_t num_blocks;     // blocks of the cluster, a power of two
  int32_t per_block;      // 2^local_levels
  int32_t local_levels;
  int32_t levels;  // ceil(log2 P)

  constexpr IntervalTree(int32_t intervals, int32_t blocks)
      : num_intervals(intervals), num_blocks(blocks), per_block(1), local_levels(0), levels(0) {
    while (per_block * num_blocks < num_intervals) {
      per_block *= 2;
      ++local_levels;
    }
    while ((int64_t{1} << levels) < num_intervals) ++levels;
  }

  constexpr int32_t nodes(int level) const { return ((num_intervals - 1) >> level) + 1; }
  // Nodes of each block: its own nodes, and one for every level above.
  constexpr int32_t nodes_per_block() const {
    const int32_t above = levels - 1 > local_levels ? levels - 1 - local_levels : 0;
    return 2 * per_block - 1 + above;
  }
  // Shifts and masks, as every size here is a power of two: a division by a number that is known at
  // run time takes a GPU some 140 cycles, on the way to the first load of every node.
  constexpr int32_t block_of(int level, int32_t j) const { return (j << level) >> local_levels; }
  // Index of a node in the storage of its block.
  constexpr int32_t index_of(int level, int32_t j) const {
    if (level > local_levels) return 2 * per_block - 1 + (level - local_levels - 1);
    const int32_t in_block = per_block >> level;
    return 2 * (per_block - in_block) + (j & (in_block - 1));
  }
  // Index of the prefix of interval i of a block, among nodes of 2^level intervals. The prefix of a
  // node's first interval is the interval; the others take the places of the nodes above intervals.
  constexpr int32_t prefix_of(int level, int32_t i) const {
    const int32_t others = (1 << level) - 1, in_node = i & others;
    return in_node == 0 ? i : per_block + (i >> level) * others + in_node - 1;
  }
  constexpr bool needs_matrix(int level, int32_t j) const { return j > 0 && j + 1 < nodes(level); }
};

// Largest number of nodes of the chain. Scans compose transitions up to the level of the tree that
// has no more nodes than this; a vector goes through the nodes of that level one after another. The
// chain is cheaper than four more levels up and down, which a cluster's barriers separate, and with
// clusters of at most so many blocks a node of the tree never spans two blocks.
inline constexpr int kChainNodes = 16;
constexpr int ChainLevel(const IntervalTree& tree) {
  int level = 0;
  while (tree.nodes(level) > kChainNodes) ++level;
  return level;
}

// Largest level of the chain whose nodes are formed from the intervals below them at once, and not
// over the levels in between: each interval's prefix, the composition of its node's intervals up to
// it, is kept, so that vectors take one step up and one down. Longer nodes would take too long.
inline constexpr int kPrefixLevels = 3;
constexpr bool HasPrefixes(const IntervalTree& tree) { return ChainLevel(tree) <= kPrefixLevels; }

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_LOOP_INTERVAL_TREE_H_
