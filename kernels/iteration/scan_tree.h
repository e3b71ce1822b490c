// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_ITERATION_SCAN_TREE_H_
#define DEEPPCR_KERNELS_ITERATION_SCAN_TREE_H_

#include <array>
#include <cstdint>

namespace deeppcr {

// Shape of the reduction tree over P shooting intervals: a function of P alone, so that bits do not
// depend on the other samples being solved. Level 0 holds the intervals, level h pairs up the nodes
// of level h - 1:
//
//   level 2            [1 2 3 4]         [5]          the root (level 3) is never formed: an
//   exclusive level 1        [1 2]     [3 4]       [5]          scan needs proper prefixes only
//   level 0       1     2   3     4       5
//
// The matrix of a node is needed only strictly between the two spines: the left spine is entered by
// zero, and nothing lies to the right of the right spine.
class ScanTree {
 public:
  static constexpr int kMaxLevels = 40;

  ScanTree() = default;
  explicit ScanTree(int64_t num_intervals) {
    nodes_[0] = num_intervals;
    while (nodes_[levels_] > 1) {
      offsets_[levels_ + 1] = offsets_[levels_] + nodes_[levels_];
      nodes_[levels_ + 1] = (nodes_[levels_] + 1) / 2;
      ++levels_;
    }
  }

  // ceil(log2 P): levels 0 .. levels() - 1 are stored.
  int levels() const { return levels_; }
  int64_t nodes(int level) const { return nodes_[level]; }
  // Index of node j of `level` in storage of total() nodes.
  int64_t node(int level, int64_t j) const { return offsets_[level] + j; }
  int64_t total() const { return offsets_[levels_] + (levels_ == 0 ? 1 : 0); }
  bool needs_matrix(int level, int64_t j) const { return j > 0 && j + 1 < nodes_[level]; }

 private:
  int levels_ = 0;
  std::array<int64_t, kMaxLevels + 1> nodes_ = {};
  std::array<int64_t, kMaxLevels + 1> offsets_ = {};
};

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_ITERATION_SCAN_TREE_H_
