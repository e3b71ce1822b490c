// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_ITERATION_REVERSE_TREE_H_
#define DEEPPCR_KERNELS_ITERATION_REVERSE_TREE_H_

#include <cstdint>

#include "kernels/iteration/scan_tree.h"

namespace deeppcr {

// The tree of the backward scan over P intervals: a ScanTree whose leaf q is interval P - 1 - q, as
// cotangents enter at the last interval. A node's matrix and vector lie in the place of its last
// leaf, so that P places are enough: a node that is a right child gives its place to its parent,
// and only the matrices of left children are read on the way down.
class ReverseTree {
 public:
  ReverseTree() = default;
  explicit ReverseTree(int64_t num_intervals) : tree_(num_intervals) {}

  int64_t num_intervals() const { return tree_.nodes(0); }
  int levels() const { return tree_.levels(); }
  int64_t nodes(int level) const { return tree_.nodes(level); }
  // Index, counted from 0, of the interval of leaf q.
  int64_t interval(int64_t q) const { return num_intervals() - 1 - q; }
  // Place of node j of `level`, in [0, P).
  int64_t place(int level, int64_t j) const {
    const int64_t end = (j + 1) << level;
    return (end < num_intervals() ? end : num_intervals()) - 1;
  }
  // The seed is a vector that is not zero, so that all nodes but those on the right spine, which
  // nothing follows, need their matrices.
  bool needs_matrix(int level, int64_t j) const { return j + 1 < nodes(level); }

 private:
  ScanTree tree_;
};

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_ITERATION_REVERSE_TREE_H_
