// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_LOOP_GRID_SCAN_H_
#define DEEPPCR_KERNELS_CUDA_LOOP_GRID_SCAN_H_

// The scan d_p = A_p d_{p-1} + r_p, d_0 = 0, over the intervals of all blocks of a GPU, with full
// matrices: the linear system of a pass of a solve by one launch (grid_solve.h).
//
// Each block composes its intervals to a node. The first block of every kGroupBlocks composes their
// nodes, up to each of them. A vector goes through the groups one after another, which every block
// does for itself; then past the nodes of its group before its own, and past the intervals before a
// warp's, a product each. Blocks wait for one another twice. The shape is a function of P and of
// the number of a GPU's blocks.

#include <cstdint>

#include "kernels/cuda/loop/block_memory.h"
#include "kernels/cuda/loop/grid_places.h"
#include "kernels/cuda/loop/grid_sites.h"
#include "kernels/cuda/loop/interval_tree.h"
#include "kernels/cuda/loop/newton_args.h"
#include "kernels/cuda/math/warp_matrix.h"
#include "kernels/cuda/runtime/device_code.h"
#include "kernels/cuda/stack/warp_step.h"
#include "kernels/iteration/pass.h"

namespace deeppcr::cuda {

// Takes a vector through `count` nodes that follow one another: to that of each, at `vector` and
// every kNumColumns W floats behind, adds what leaves the node before it. `matrix`: of the second
// node, then of those behind.
template <int W, class Context>
DEEPPCR_DEVICE void TakeThroughNodes(Context& context, const float* matrix, float* vector,
                                     int count) {
  if (count < 2) return;
  const int row = context.lane() % W;
  RowTransition<W> next(context, Linearization::kFull, matrix);
  for (int i = 1; i < count; ++i) {
    const RowTransition<W> transition = next;  // the next one is on its way meanwhile
    matrix += i + 1 < count ? W * W : 0;
    next = RowTransition<W>(context, Linearization::kFull, matrix);
    // A lane that repeats another one's row might read the word after its store below.
    const float own = context.lane() < W ? vector[kNumColumns * W + row] : 0.0F;
    const float sum = own + transition.Times(context, vector);
    vector += kNumColumns * W;
    if (context.lane() < W) vector[row] = sum;
    context.SyncWarp(kAfterGridNode);
  }
}

// Nodes that follow one another, in shared memory, and their compositions from the first on.
template <int W, class Context>
class NodePrefixes {
 public:
  // `most`: nodes that `memory` has room for, a power of two; (2 most - 1) W^2 + most kVectors
  // floats of it.
  DEEPPCR_DEVICE NodePrefixes(Context& context, float* memory, int most)
      : context_(context), memory_(memory), most_(most) {}

  static constexpr int kVectors = kNumColumns * W;
  DEEPPCR_DEVICE float* Matrix(int i) const { return memory_ + i * (W * W); }
  // Of nodes 0, ..., i.
  DEEPPCR_DEVICE float* Composed(int i) const { return Matrix(i == 0 ? 0 : most_ + i - 1); }
  // Those of node i, and once they are composed, those of nodes 0, ..., i.
  DEEPPCR_DEVICE float* Vectors(int i) const { return Matrix(2 * most_ - 1) + i * kVectors; }

  // Composes `count` nodes. With their matrices, and one vector: in rounds, of which each composes
  // pairs of neighbours of 2^round nodes, a warp each. Else vectors alone, one node after another,
  // by the last warps, a warp each. The caller synchronises the block before and after.
  DEEPPCR_DEVICE void Compose(int count, int vectors, bool matrices) const {
    const int warp = context_.Uniform(context_.warp());
    const int warps = context_.num_threads() / kWarpSize;
    if (!matrices) {
      for (int v = warps - 1 - warp; v < vectors; v += warps)
        TakeThroughNodes<W>(context_, Matrix(1), Vectors(0) + v * W, count);
      return;
    }
    for (int size = 1; size < count; size *= 2) {
      if (size > 1) context_.SyncBlock(kBeforeGridRound);
      if (warp < most_ / 2) ComposePair(size, warp, count);
    }
  }

 private:
  DEEPPCR_DEVICE void ComposePair(int size, int k, int count) const {
    const int in_right = k & (size - 1), right = ((k - in_right) << 1) + size;
    const int i = right + in_right;
    if (i >= count) return;
    // Of a single node the prefix is the node itself.
    const float* const left = size == 1 ? Matrix(right - 1) : Composed(right - 1);
    const float* const own = in_right == 0 ? Matrix(i) : Composed(i);
    float* const element = Vectors(i) + context_.lane() % W;
    const float sum =
        *element +
        RowTransition<W>(context_, Linearization::kFull, own).Times(context_, Vectors(right - 1));
    MultiplyMatrices<W>(context_, own, left, Composed(i));
    if (context_.lane() < W) *element = sum;
  }

  Context& context_;
  float* const memory_;
  const int most_;
};

template <int W, class BlockContext>
class GridScan {
 public:
  using Context = BlockContext;
  static constexpr int kWidth = W, kVectors = kNumColumns * W, kRowsOfLane = 1;
  static constexpr bool kHasHelpers = false;

  static DEEPPCR_DEVICE int64_t Floats(const NewtonArgs& args) {
    return GridScanFloats(args.tree, W);
  }
  static DEEPPCR_DEVICE int Givers(const Context& context, const IntervalTree&) {
    return context.num_blocks();
  }

  // `memory`: Floats of shared memory, aligned to 16 bytes. What propagation made of the block's
  // intervals is in its part of the workspace.
  DEEPPCR_DEVICE GridScan(Context& context, const GridPlaces& places, const NewtonArgs& args,
                          float* memory)
      : context_(context),
        places_(places),
        workspace_(
            MemoryInWorkspace(args.workspace, args.tree, W, 0, context.Uniform(context.block()))),
        memory_(memory),
        blocks_(context.num_blocks()),
        block_(context.Uniform(context.block())),
        warp_(context.Uniform(context.warp())),
        row_(context.lane() % W),
        count_(CountOf(args.tree, block_)) {}

  static DEEPPCR_DEVICE int CountOf(const IntervalTree& tree, int block) {
    const int left = tree.num_intervals - block * tree.per_block;
    return left < tree.per_block ? left : tree.per_block;
  }
  DEEPPCR_DEVICE int32_t first() const { return block_ * workspace_.tree.per_block; }
  DEEPPCR_DEVICE int32_t count() const { return count_; }
  DEEPPCR_DEVICE float* State(int i) const { return workspace_.State(i); }
  DEEPPCR_DEVICE float* Propagated(int i) const { return workspace_.Propagated(i); }
  DEEPPCR_DEVICE int Row(int) const { return row_; }

  // Takes the vectors of the pass of this number to the block; matrices have that of the last pass
  // that formed some. Returns the number of stages.
  DEEPPCR_DEVICE int32_t Run(IterationKind kind, uint32_t number, uint32_t number_of_matrices) {
    number_ = number;
    number_of_matrices_ = number_of_matrices;
    const IntervalTree& tree = workspace_.tree;
    ComposeIntervals(kind);
    if (block_ % kGroupBlocks == 0 && block_ + 1 < blocks_) ComposeGroup(kind);
    if (block_ > 0) WalkChain(kind);
    context_.SyncBlock(kAfterGridChain);
    // The longest way: through a node's intervals, a group's nodes and the groups between the first
    // and the last, then past nodes and past intervals.
    const int groups = (blocks_ + kGroupBlocks - 1) / kGroupBlocks;
    const int given = blocks_ - 1 < kGroupBlocks ? blocks_ - 1 : kGroupBlocks;
    return tree.per_block - 1 + (given > 1 ? given - 1 : 0) + (groups > 2 ? groups - 2 : 0) +
           (groups > 1 ? 1 : 0) + (tree.per_block > 1 ? 1 : 0);
  }
  // The lane's elements of the correction A_p d_{p-1} of the warp's interval, one of the block and
  // not the first of all.
  template <int N>
  DEEPPCR_DEVICE void Correct(int, float (&corrections)[N]) {
    DEEPPCR_UNROLL
    for (int v = 0; v < N; ++v) {
      float d = block_ > 0 ? Entering()[v * W + row_] : 0.0F;
      if (warp_ > 0) d = block_ > 0 ? before_[v] + Multiply<W>(context_, prefix_, d) : before_[v];
      corrections[v] = Multiply<W>(context_, own_, d);
    }
  }

 private:
  // The vectors that enter the block, in the place of the first group's.
  DEEPPCR_DEVICE float* Entering() const { return ChainVectors(0); }
  DEEPPCR_DEVICE float* ChainVectors(int group) const { return memory_ + group * kVectors; }
  // Of a group that is neither the first nor the last.
  DEEPPCR_DEVICE float* ChainMatrix(int group) const {
    const int groups = (blocks_ + kGroupBlocks - 1) / kGroupBlocks;
    return ChainVectors(groups - 1) + (group - 1) * (W * W);
  }
  DEEPPCR_DEVICE bool HasInterval() const { return warp_ < count_; }
  // The lane's part of a matrix.
  DEEPPCR_DEVICE LayerPart<W> PartOf(const float* matrix) const {
    const LanePart<W> at(context_.lane());
    LayerPart<W> part = {};
    LoadRow(context_, matrix + at.row * W + at.first_column, part.weights);
    return part;
  }

  // ---- The block's node
  DEEPPCR_DEVICE void ComposeIntervals(IterationKind kind) {
    const NodePrefixes<W, Context> nodes(context_, memory_, workspace_.tree.per_block);
    Fetch<W * W, W * W>(workspace_.Matrix(0), nodes.Matrix(0));
    kind.vectors() == 1 ? Fetch<W, kVectors>(workspace_.Residual(0), nodes.Vectors(0))
                        : Fetch<kVectors, kVectors>(workspace_.Residual(0), nodes.Vectors(0));
    context_.CommitCopies();
    context_.template WaitForCopies<0>();
    context_.SyncBlock(kAfterGridIntervals);
    // Not what a pass before had: registers are for what is propagated. The first interval of all
    // has no matrix.
    own_ = prefix_ = {};
    DEEPPCR_UNROLL
    for (int v = 0; v < kNumColumns; ++v) before_[v] = 0.0F;
    if (HasInterval() && block_ + warp_ > 0) own_ = PartOf(nodes.Matrix(warp_));
    // d_0 = 0: nothing goes through a composition with the first interval.
    const bool matrices = kind.forms_matrices() && block_ > 0;
    nodes.Compose(count_, kind.vectors(), matrices);
    context_.SyncBlock(kAfterGridPrefixes);
    if (HasInterval() && warp_ > 0) TakePrefix(kind, nodes);
    if (block_ + 1 < blocks_)
      Give(nodes, count_ - 1, count_, kind, matrices, places_.Node(block_, W));
    context_.SyncBlock(kBeforeGridGroup);
  }
  // Begins to copy the first kFloats of kStride floats of each of the block's intervals.
  template <int kFloats, int kStride>
  DEEPPCR_DEVICE void Fetch(const float* from, float* to) const {
    constexpr int kFours = kFloats / 4;
    for (int at = context_.thread(); at < count_ * kFours; at += context_.num_threads()) {
      const int place = at / kFours * kStride + 4 * (at % kFours);
      context_.template CopyAsync<4>(from + place, to + place);
    }
  }
  // Takes what goes before the warp's interval in the block: matrices that are formed stay in the
  // workspace for later passes.
  DEEPPCR_DEVICE void TakePrefix(IterationKind kind, const NodePrefixes<W, Context>& nodes) {
    const int before = warp_ - 1;
    DEEPPCR_UNROLL
    for (int v = 0; v < kNumColumns; ++v)
      before_[v] = v < kind.vectors() ? nodes.Vectors(before)[v * W + row_] : 0.0F;
    if (block_ == 0) return;
    float* const kept =
        workspace_.Matrix(workspace_.tree.prefix_of(workspace_.tree.local_levels, before));
    const float* const from = kind.forms_matrices() ? nodes.Composed(before) : kept;
    prefix_ = PartOf(from);
    if (!kind.forms_matrices() || before == 0) return;
    for (int at = 4 * context_.lane(); at < W * W; at += 4 * kWarpSize) {
      float four[4];
      context_.LoadFour(from + at, four);
      context_.StoreFour(four, kept + at);
    }
  }
  // Gives other blocks nodes first, ..., last - 1, with their matrices if these are formed.
  DEEPPCR_DEVICE void Give(const NodePrefixes<W, Context>& nodes, int first, int last,
                           IterationKind kind, bool matrices, uint64_t* to) const {
    constexpr int kNode = GridPlaces::NodeElements(W);
    for (int at = context_.thread(); at < (last - first) * (W * W) && matrices;
         at += context_.num_threads()) {
      const int i = at / (W * W), element = at % (W * W);
      context_.StoreNumbered(to + i * kNode + element, nodes.Composed(first + i)[element], number_);
    }
    kind.vectors() == 1 ? GiveVectors<W>(nodes, first, last, to)
                        : GiveVectors<kVectors>(nodes, first, last, to);
  }
  template <int kElements>
  DEEPPCR_DEVICE void GiveVectors(const NodePrefixes<W, Context>& nodes, int first, int last,
                                  uint64_t* to) const {
    for (int at = context_.thread(); at < (last - first) * kElements;
         at += context_.num_threads()) {
      const int i = at / kElements, element = at % kElements;
      context_.StoreNumbered(to + i * GridPlaces::NodeElements(W) + W * W + element,
                             nodes.Vectors(first + i)[element], number_);
    }
  }

  // ---- The nodes of a group
  DEEPPCR_DEVICE void ComposeGroup(IterationKind kind) {
    const NodePrefixes<W, Context> nodes(context_, memory_, kGroupBlocks);
    // The last block of all gives no node: nothing follows it.
    const int left = blocks_ - 1 - block_, count = left < kGroupBlocks ? left : kGroupBlocks;
    const bool first = block_ == 0, matrices = kind.forms_matrices() && !first;
    const auto node = [&](int i) { return places_.Node(block_ + i, W); };
    Await<W * W>(first ? 1 : 0, count, number_of_matrices_, kForGroupMatrices, node,
                 [&](int i) { return nodes.Matrix(i); });
    AwaitVectors(kind, count, kForGroupVectors, node, [&](int i) { return nodes.Vectors(i); });
    context_.SyncBlock(kAfterGridNodes);
    nodes.Compose(count, kind.vectors(), matrices);
    context_.SyncBlock(kAfterGroupPrefixes);
    Give(nodes, 0, count, kind, matrices, places_.Prefix(block_, blocks_, W));
    context_.SyncBlock(kBeforeGridGroup);
  }
  // The vectors of nodes 0, ..., last - 1.
  template <class From, class To>
  DEEPPCR_DEVICE void AwaitVectors(IterationKind kind, int last, int site, const From& from,
                                   const To& to) const {
    const auto vectors = [&](int i) { return from(i) + W * W; };
    kind.vectors() == 1 ? Await<W>(0, last, number_, site, vectors, to)
                        : Await<kVectors>(0, last, number_, site, vectors, to);
  }
  // Copies kElements elements of each of the nodes first, ..., last - 1 from from(node) to
  // to(node), once they have this number. All that a thread copies is on its way at a time.
  template <int kElements, class From, class To>
  DEEPPCR_DEVICE void Await(int first, int last, uint32_t number, int site, const From& from,
                            const To& to) const {
    constexpr int kTogether = 4, kPairs = kElements / 2;
    const int count = (last - first) * kPairs, stride = context_.num_threads();
    for (int begin = context_.thread(); begin < count; begin += kTogether * stride) {
      const uint64_t* places[kTogether];
      float* targets[kTogether];
      float values[kTogether][2];
      DEEPPCR_UNROLL
      for (int k = 0; k < kTogether; ++k) {
        const int at = begin + k * stride < count ? begin + k * stride : begin;
        const int i = first + at / kPairs, element = 2 * (at % kPairs);
        places[k] = from(i) + element;
        targets[k] = to(i) + element;
      }
      context_.AwaitAllNumbered(places, number, values, site);
      DEEPPCR_UNROLL
      for (int k = 0; k < kTogether; ++k) {
        targets[k][0] = values[k][0];
        targets[k][1] = values[k][1];
      }
    }
  }

  // ---- The way to the block
  DEEPPCR_DEVICE void WalkChain(IterationKind kind) {
    const int group = block_ / kGroupBlocks;
    const auto total = [&](int g) {
      return places_.Prefix(g * kGroupBlocks + kGroupBlocks - 1, blocks_, W);
    };
    // Matrices that are not formed anew are there while others compose their vectors.
    Await<W * W>(1, group, number_of_matrices_, kForChainMatrices, total,
                 [&](int g) { return ChainMatrix(g); });
    AwaitVectors(kind, group, kForChainVectors, total, [&](int g) { return ChainVectors(g); });
    context_.SyncBlock(kBeforeGridChain);
    const int warps = context_.num_threads() / kWarpSize;
    for (int v = warp_; v < kind.vectors(); v += warps) {
      // On its way while the vector goes through the groups.
      float row[W] = {}, sum = 0.0F;
      if (block_ % kGroupBlocks > 0) AwaitBefore(group, v, row, &sum);
      WalkGroups(group, v);
      EnterBlock(group, v, row, sum);
    }
  }
  // What goes before the block in its group: the lane's row of the matrix, where there is one, and
  // its element of vector v.
  DEEPPCR_DEVICE void AwaitBefore(int group, int v, float (&row)[W], float* sum) const {
    constexpr int kPairs = W / 2;
    const uint64_t* const node = places_.Prefix(block_ - 1, blocks_, W);
    float pair[2];
    context_.AwaitNumbered(node + W * W + v * W + row_ / 2 * 2, number_, pair, kForNodeBefore);
    *sum = row_ % 2 == 0 ? pair[0] : pair[1];
    if (group == 0) return;
    const uint64_t* places[kPairs];
    float pairs[kPairs][2];
    DEEPPCR_UNROLL
    for (int k = 0; k < kPairs; ++k) places[k] = node + row_ * W + 2 * k;
    context_.AwaitAllNumbered(places, number_of_matrices_, pairs, kForNodeBefore);
    DEEPPCR_UNROLL
    for (int k = 0; k < W; ++k) row[k] = pairs[k / 2][k % 2];
  }
  // Takes vector v through the groups before the block's.
  DEEPPCR_DEVICE void WalkGroups(int group, int v) const {
    if (group > 1) TakeThroughNodes<W>(context_, ChainMatrix(1), ChainVectors(0) + v * W, group);
  }
  // Takes vector v past the nodes of the group before the block's.
  DEEPPCR_DEVICE void EnterBlock(int group, int v, const float (&row)[W], float sum) const {
    const float* const vector = ChainVectors(group - 1) + v * W;
    float d = sum;
    if (group > 0)
      d = block_ % kGroupBlocks > 0 ? sum + RowTransition<W>(context_, row).Times(context_, vector)
                                    : vector[row_];
    context_.SyncWarp(kBeforeGridEntering);
    if (context_.lane() < W) Entering()[v * W + row_] = d;
  }

  Context& context_;
  const GridPlaces places_;
  const BlockMemory workspace_;
  float* const memory_;
  const int blocks_, block_, warp_, row_;
  const int count_;  // intervals of the block
  uint32_t number_ = 0, number_of_matrices_ = 0;
  // Of the warp's interval: its own matrix, and what goes before it in the block.
  LayerPart<W> own_ = {}, prefix_ = {};
  float before_[kNumColumns] = {};
};

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_LOOP_GRID_SCAN_H_
