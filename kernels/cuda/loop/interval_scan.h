// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_LOOP_INTERVAL_SCAN_H_
#define DEEPPCR_KERNELS_CUDA_LOOP_INTERVAL_SCAN_H_

// The scan d_p = A_p d_{p-1} + r_p, d_0 = 0, over the intervals of a cluster of blocks: the linear
// system of a pass of the Newton kernel (newton_kernel.h).
//
// Transitions are composed up to at most kChainNodes nodes, within blocks, a warp a node; through
// these every block takes the vectors by itself, so that it waits for the others once. Vectors lie
// in shared memory as [columns, W]; warp_step.h says which elements a lane holds.

#include <cstdint>

#include "kernels/cuda/loop/block_memory.h"
#include "kernels/cuda/loop/chain_copy.h"
#include "kernels/cuda/loop/interval_tree.h"
#include "kernels/cuda/loop/placed_block.h"
#include "kernels/cuda/math/warp_matrix.h"
#include "kernels/cuda/runtime/device_code.h"
#include "kernels/iteration/pass.h"

namespace deeppcr::cuda {

// The barrier calls of the Newton kernel.
enum NewtonSite : int {
  kBeforeGuess,
  kAfterGuess,
  kAfterPropagate,
  kBeforeLevel,
  kBeforeLevelDown,
  kBeforePrefixes,
  kAfterInterval,
  kBeforeRound,
  kAfterLocalReduce,
  kAfterReduce,
  kAfterNode,
  kAfterChain,
  kAfterOwnNorms,
  kAfterUpdate,
  kAfterProgress,
  kNumWholeSites,
  kBeforeTree = kNumWholeSites,  // in parts
  kNumNewtonSites,
};

// kPrefixes: where transitions are full, the nodes of the chain are formed from their intervals at
// once, else over the levels of the tree.
template <int W, BlockPlace kPlace, bool kPrefixes, class Context>
class IntervalScan {
 public:
  // The block's intervals are first, ..., first + count - 1.
  DEEPPCR_DEVICE IntervalScan(Context& context, const PlacedBlock<W, kPlace, Context>& place,
                              const IntervalTree& tree, int32_t first, int32_t count)
      : context_(context),
        place_(place),
        tree_(tree),
        memory_(place.memory()),
        chain_level_(ChainLevel(tree)),
        warp_(context.Uniform(context.warp())),
        warps_(context.num_threads() / kWarpSize),
        first_(first),
        count_(count),
        row_(context.lane() % W) {}

  // Forms the nodes of the chain, whose intervals are the block's own, and shares them. Returns the
  // number of stages.
  template <bool kFull>
  DEEPPCR_DEVICE int32_t UpSweep(IterationKind kind) {
    int32_t stages = 0;
    if (has_prefixes<kFull>()) {
      stages = FormPrefixes(kind);
    } else {
      stages = FormLevels(kind);
    }
    context_.SyncBlock(kAfterLocalReduce);
    ShareRoots<kFull>(kind);
    context_.SyncCluster(kAfterReduce);
    return stages;
  }
  // Takes the vectors through the chain, a warp each, and down to the intervals. Returns the
  // number of stages.
  template <bool kFull>
  DEEPPCR_DEVICE int32_t DownSweep(IterationKind kind) {
    const int32_t last = (first_ + count_ - 1) >> chain_level_;
    for (int v = warp_; v < kind.vectors() && count_ > 0; v += warps_)
      WalkChain(kind.linearization, v, last);
    int32_t stages = tree_.nodes(chain_level_) - 1;
    if constexpr (kPlace == BlockPlace::kSharedTree) place_.PrefetchStates(kind, count_);
    if (has_prefixes<kFull>()) {
      stages += chain_level_ > 0 ? 1 : 0;
    } else {
      for (int level = chain_level_ - 1; level >= 0; --level) {
        context_.SyncBlock(kBeforeLevelDown);
        kind.vectors() == 1 ? EnterLevel<1>(level, kind) : EnterLevel<kNumColumns>(level, kind);
        ++stages;
      }
    }
    context_.SyncBlock(kAfterChain);
    return stages;
  }
  // Computes the vectors that enter interval i of the block.
  template <bool kFull, int N>
  DEEPPCR_DEVICE void EnterInterval(Linearization linearization, int32_t i, float (&d)[N]) {
    const int level = has_prefixes<kFull>() ? chain_level_ : 0;
    LoadEntering(level, (first_ + i) >> level, d);
    if (has_prefixes<kFull>()) EnterByPrefix(linearization, i, d);
  }
  // sums += A x for each of N vectors.
  template <int N>
  DEEPPCR_DEVICE void AddProducts(const Transition<W>& transition, const float (&x)[N],
                                  float (&sums)[N]) {
    DEEPPCR_UNROLL
    for (int v = 0; v < N; ++v) sums[v] += transition.Times(context_, x[v]);
  }

 private:
  // Calls f for every node of the block on a level up to the chain which is not the last of its
  // level, a warp each, of which `warp` is this one's place.
  template <class F>
  DEEPPCR_DEVICE void ForNodes(int level, int warp, const F& f) {
    const int32_t in_block = tree_.per_block >> level, first = first_ >> level;
    const int32_t nodes = tree_.nodes(level);
    for (int32_t k = warp; k < in_block && first + k + 1 < nodes; k += warps_) f(first + k);
  }

  // out = A in + base for the vectors in use; in, base and A may be another block's.
  DEEPPCR_DEVICE void Apply(IterationKind kind, const float* matrix, const float* in,
                            const float* base, float* out) {
    kind.vectors() == 1 ? ApplyTo<1>(kind.linearization, matrix, in, base, out)
                        : ApplyTo<kNumColumns>(kind.linearization, matrix, in, base, out);
  }
  // All vectors are loaded before the first is stored, so that one waits for none of the others.
  template <int N>
  DEEPPCR_DEVICE void ApplyTo(Linearization linearization, const float* matrix, const float* in,
                              const float* base, float* out) {
    float x[N], sums[N];
    DEEPPCR_UNROLL
    for (int v = 0; v < N; ++v) {
      x[v] = in[v * W + row_];
      sums[v] = base[v * W + row_];
    }
    AddProducts(linearization, matrix, x, sums);
    if (context_.lane() >= W) return;
    DEEPPCR_UNROLL
    for (int v = 0; v < N; ++v) out[v * W + row_] = sums[v];
  }
  template <int N>
  DEEPPCR_DEVICE void AddProducts(Linearization linearization, const float* matrix,
                                  const float (&x)[N], float (&sums)[N]) {
    AddProducts(Transition<W>(context_, linearization, matrix), x, sums);
  }
  DEEPPCR_DEVICE float* ResidualOf(int level, int32_t j) const {
    return memory_.Residual(tree_.index_of(level, j));
  }
  DEEPPCR_DEVICE float* MatrixOf(int level, int32_t j) const {
    return memory_.Matrix(tree_.index_of(level, j));
  }

  template <bool kFull>
  DEEPPCR_DEVICE bool has_prefixes() const {
    return kPrefixes && kFull;
  }
  // True if the pass forms the matrices of the nodes. Those of a tree that no launch before this
  // one has formed are formed where the intervals' matrices are reused, too.
  static DEEPPCR_DEVICE bool FormsNodes(IterationKind kind) {
    return kPlace == BlockPlace::kSharedTree ? kind.has_matrices() : kind.forms_matrices();
  }

  DEEPPCR_DEVICE int32_t FormLevels(IterationKind kind) {
    for (int level = 1; level <= chain_level_; ++level) {
      context_.SyncBlock(kBeforeLevel);
      // Where there are more warps than nodes, some form matrices while others form vectors.
      if (FormsNodes(kind))
        ForNodes(level, warp_, [&](int32_t j) { ComposeNode(level, j, kind.linearization); });
      ForNodes(level, warps_ - 1 - warp_, [&](int32_t j) { ReduceNode(level, j, kind); });
    }
    return chain_level_;
  }

  // Forms the prefixes of the block's intervals: vectors by the last warps, a warp a node and
  // vector, one interval after another; matrices by the first ones, in rounds.
  DEEPPCR_DEVICE int32_t FormPrefixes(IterationKind kind) {
    if (chain_level_ == 0) return 0;
    context_.SyncBlock(kBeforePrefixes);
    const int32_t tasks = (tree_.per_block >> chain_level_) * kind.vectors();
    for (int32_t task = warps_ - 1 - warp_; task < tasks; task += warps_) {
      const int32_t node = kind.vectors() == 1 ? task : task / kNumColumns;
      AddUpVector(kind.linearization, node, task - node * kind.vectors());
    }
    for (int round = 0; round < chain_level_ && kind.forms_matrices(); ++round) {
      if (round > 0) context_.SyncBlock(kBeforeRound);
      ComposePrefixes(round, kind.linearization);
    }
    return (1 << chain_level_) - 1;
  }
  DEEPPCR_DEVICE int32_t PrefixOfInterval(int32_t i) const {
    return tree_.prefix_of(chain_level_, i);
  }
  // Takes vector v through the intervals of a node of the block.
  DEEPPCR_DEVICE void AddUpVector(Linearization linearization, int32_t node, int v) {
    const int32_t first = node << chain_level_;
    const int32_t end = count_ < first + (1 << chain_level_) ? count_ : first + (1 << chain_level_);
    if (first + 1 >= end) return;
    int32_t prefix = first;
    RowTransition<W> next(context_, linearization, memory_.Matrix(first + 1));
    for (int32_t i = first + 1; i < end; ++i) {
      const RowTransition<W> transition = next;  // the next one is on its way meanwhile
      next = RowTransition<W>(context_, linearization, memory_.Matrix(i + 1 < end ? i + 1 : i));
      const float sum = memory_.Residual(i)[v * W + row_] +
                        transition.Times(context_, memory_.Residual(prefix) + v * W);
      prefix = PrefixOfInterval(i);
      if (context_.lane() < W) memory_.Residual(prefix)[v * W + row_] = sum;
      context_.SyncWarp(kAfterInterval);
    }
  }
  // A round composes the prefixes of pairs of neighbours of 2^round intervals: those of the right
  // one begin where those of the left one end. d_0 = 0: nothing is composed with the first node's.
  DEEPPCR_DEVICE void ComposePrefixes(int round, Linearization linearization) {
    const int32_t size = 1 << round;
    for (int32_t k = warp_; k < tree_.per_block / 2; k += warps_) {
      const int32_t in_right = k & (size - 1), right = ((k - in_right) << 1) + size;
      const int32_t i = right + in_right;
      if (i >= count_ || (first_ + i) >> chain_level_ == 0) continue;
      // Of a single interval the prefix is the interval itself.
      const int32_t left_end = size == 1 ? right - 1 : PrefixOfInterval(right - 1);
      ComposeTransitions<W>(context_, linearization,
                            memory_.Matrix(in_right == 0 ? i : PrefixOfInterval(i)),
                            memory_.Matrix(left_end), memory_.Matrix(PrefixOfInterval(i)));
    }
  }
  // Index of node j of the chain, one of the block.
  template <bool kFull>
  DEEPPCR_DEVICE int32_t RootOf(int32_t j) const {
    const int32_t last = ((j + 1) << chain_level_) - 1 - first_;
    return has_prefixes<kFull>() ? PrefixOfInterval(last) : tree_.index_of(chain_level_, j);
  }
  DEEPPCR_DEVICE void ComposeNode(int level, int32_t j, Linearization linearization) {
    if (tree_.needs_matrix(level, j))
      ComposeTransitions<W>(context_, linearization, MatrixOf(level - 1, 2 * j + 1),
                            MatrixOf(level - 1, 2 * j), MatrixOf(level, j));
  }
  DEEPPCR_DEVICE void ReduceNode(int level, int32_t j, IterationKind kind) {
    Apply(kind, MatrixOf(level - 1, 2 * j + 1), ResidualOf(level - 1, 2 * j),
          ResidualOf(level - 1, 2 * j + 1), ResidualOf(level, j));
  }

  // Loads the vectors that enter node j of a level, on the way down from the chain, one of the
  // block. Those of the chain are what left the node before. Below, they have taken the place of
  // the node's residual, which nothing but the node's parent asks for. d_0 = 0.
  template <int N>
  DEEPPCR_DEVICE void LoadEntering(int level, int32_t j, float (&d)[N]) const {
    const bool of_chain = level == chain_level_;
    const float* const from = of_chain ? memory_.ChainResidual(j - 1) : ResidualOf(level, j);
    DEEPPCR_UNROLL
    for (int v = 0; v < N; ++v) d[v] = of_chain && j == 0 ? 0.0F : from[v * W + row_];
  }

  // Computes the vectors that enter the block's nodes of a level: a left node takes those of its
  // parent, a right node those that have gone through the left node.
  template <int N>
  DEEPPCR_DEVICE void EnterLevel(int level, IterationKind kind) {
    const int32_t in_block = tree_.per_block >> (level + 1), first = first_ >> (level + 1);
    const int32_t nodes = tree_.nodes(level);
    for (int32_t k = warp_; k < in_block && 2 * (first + k) < nodes; k += warps_) {
      const int32_t left = 2 * (first + k);
      float* const in_left = ResidualOf(level, left);
      float d[N], sums[N];
      LoadEntering(level + 1, first + k, d);
      // A lane that repeats another one's row might read the word after its store below.
      DEEPPCR_UNROLL
      for (int v = 0; v < N; ++v) sums[v] = context_.lane() < W ? in_left[v * W + row_] : 0.0F;
      if (left > 0 && left + 1 < nodes)
        AddProducts(kind.linearization, MatrixOf(level, left), d, sums);
      if (context_.lane() >= W) continue;
      DEEPPCR_UNROLL
      for (int v = 0; v < N; ++v) in_left[v * W + row_] = d[v];
      if (left + 1 == nodes) continue;
      float* const in_right = ResidualOf(level, left + 1);
      DEEPPCR_UNROLL
      for (int v = 0; v < N; ++v) in_right[v * W + row_] = sums[v];
    }
  }

  // Copies the block's nodes of the chain to the blocks that go through them, but for the last node
  // of all, which nothing follows. Matrices stay while they are reused. d_0 = 0: the first node has
  // no matrix.
  template <bool kFull>
  DEEPPCR_DEVICE void ShareRoots(IterationKind kind) {
    const int32_t first = first_ >> chain_level_, own = tree_.per_block >> chain_level_;
    for (int32_t j = first; j < first + own && j + 1 < tree_.nodes(chain_level_); ++j) {
      if (FormsNodes(kind) && j > 0)
        ShareNode<W * W>(context_, memory_.Matrix(RootOf<kFull>(j)), tree_.num_blocks,
                         [&](int b) { return place_.RemoteTree(memory_.ChainMatrix(j), b); });
      const auto place = [&](int b) { return place_.RemoteTree(memory_.ChainResidual(j), b); };
      const float* const residual = memory_.Residual(RootOf<kFull>(j));
      kind.vectors() == 1 ? ShareNode<W>(context_, residual, tree_.num_blocks, place)
                          : ShareNode<kNumColumns * W>(context_, residual, tree_.num_blocks, place);
    }
  }
  // Takes vector v through the nodes of the chain, as far as the block's own. Every block does so
  // by itself, from the first node on: so it waits for other blocks only once, and has the bits
  // that they have. What leaves a node takes the place of the node's residual, which all lanes have
  // by then.
  DEEPPCR_DEVICE void WalkChain(Linearization linearization, int v, int32_t last) {
    if (last <= 1) return;
    float* entering = memory_.ChainResidual(0) + v * W;
    RowTransition<W> next(context_, linearization, memory_.ChainMatrix(1));
    // A lane that repeats another one's row might read the word after its store below.
    float next_residual = context_.lane() < W ? entering[kNumColumns * W + row_] : 0.0F;
    for (int32_t j = 1; j < last; ++j) {
      // The node after this one is on its way meanwhile; that behind the last belongs to nobody.
      const RowTransition<W> transition = next;
      const float residual = next_residual;
      next = RowTransition<W>(context_, linearization, memory_.ChainMatrix(j + 1));
      next_residual = entering[2 * kNumColumns * W + row_];
      const float d = residual + transition.Times(context_, entering);
      entering += kNumColumns * W;
      if (context_.lane() < W) entering[row_] = d;
      context_.SyncWarp(kAfterNode);
    }
  }
  // Takes the vectors d that enter the node of interval i of the block to those that enter i.
  template <int N>
  DEEPPCR_DEVICE void EnterByPrefix(Linearization linearization, int32_t i, float (&d)[N]) {
    if ((i & ((1 << chain_level_) - 1)) == 0) return;
    const int32_t before = PrefixOfInterval(i - 1);
    float sums[N];
    DEEPPCR_UNROLL
    for (int v = 0; v < N; ++v) sums[v] = memory_.Residual(before)[v * W + row_];
    if ((first_ + i) >> chain_level_ > 0)
      AddProducts(linearization, memory_.Matrix(before), d, sums);
    DEEPPCR_UNROLL
    for (int v = 0; v < N; ++v) d[v] = sums[v];
  }

  Context& context_;
  const PlacedBlock<W, kPlace, Context> place_;
  const IntervalTree tree_;
  const BlockMemory memory_;
  const int chain_level_;
  const int warp_, warps_;
  const int32_t first_, count_;
  const int row_;
};

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_LOOP_INTERVAL_SCAN_H_
