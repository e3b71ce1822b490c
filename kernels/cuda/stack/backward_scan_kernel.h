// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_STACK_BACKWARD_SCAN_KERNEL_H_
#define DEEPPCR_KERNELS_CUDA_STACK_BACKWARD_SCAN_KERNEL_H_

// The backward pass of a dense stack as a transposed reverse scan, in one launch: a cluster of
// blocks a sample, a warp an interval or a node of the tree. The pass is linear: there is nothing
// to iterate and no tolerance.
//
//   (1) every interval   A = product of its Jacobians                       D^3 a step
//   (2) every node up to the chain   A = A_later A_earlier                  D^3 a node
//   (3) the chain   g through at most 16 nodes, one after another           D^2 a node
//   (4) every interval   g from its node on the chain down to its own end, then through its steps
//                                                                           D^2 a step
//
// (3) and (4) are done for every column g of the sample, (1) and (2) once, on the tensor cores and
// as exact as floats (tile_matrix.h). Matrices are kept as they are and vectors multiplied by their
// columns: nothing is transposed. The input of the scan is a
// vector, so no product of matrices is made above the chain, nor for the node at the right end of a
// level, which nothing follows. The shape depends on P alone.

#include <math.h>

#include <cstdint>

#include "kernels/cuda/loop/chain_copy.h"
#include "kernels/cuda/loop/interval_tree.h"
#include "kernels/cuda/math/tile_matrix.h"
#include "kernels/cuda/math/warp_matrix.h"
#include "kernels/cuda/runtime/device_code.h"
#include "kernels/cuda/stack/backward_args.h"
#include "kernels/cuda/stack/backward_memory.h"
#include "kernels/cuda/stack/backward_step.h"
#include "kernels/cuda/stack/jacobian.h"
#include "kernels/cuda/tuning.h"

namespace deeppcr::cuda {

// The barrier calls of the kernel.
enum BackwardSite : int {
  kAfterBackwardSlopes,
  kAfterBackwardLevel,
  kAfterBackwardTree,
  kAfterBackwardCopies,
  kAfterBackwardChain,
  kNumBackwardSites,
};

// Scan of a sample. kInWorkspace: the data of a block lies in the workspace in global memory
// instead of its shared memory.
template <int W, bool kInWorkspace, class Context>
class BackwardScan {
 public:
  DEEPPCR_DEVICE BackwardScan(Context& context, const BackwardScanArgs& args)
      : context_(context),
        args_(args.backward),
        tree_(args.tree),
        memory_{args.tree, args.shooting_interval, args.backward.num_columns,
                MemoryOfBlock(context, args)},
        interval_(args.shooting_interval),
        stride_(Stride(args)),
        chain_level_(ChainLevel(args.tree)),
        by_tiles_(ByTiles(args.backward.stack)),
        warps_(context.num_threads() / kWarpSize),
        first_(context.block() * args.tree.per_block),
        count_(Clamp(args.tree.num_intervals - first_)) {}

  DEEPPCR_DEVICE void Run() {
    // The warp of the block's last interval takes the first column through the chain. What enters
    // there is on its way while matrices are formed. Nothing is divided, which would take longer
    // than a level of the tree.
    int32_t column = context_.warp() + 1 - count_;
    while (column < 0) column += warps_;
    float g = 0.0F;
    if (count_ > 0 && column < args_.num_columns) g = SweepOf(column).FinalGradient();
    FormMatrices();
    // Every block goes through the nodes before its own by itself: it waits once until all nodes
    // are formed, and not for one block after another.
    CopyNodes<W * W>(
        context_, 0, LastNode(), [&](int32_t j) { return ChainNode(j); }, memory_.ChainMatrix(0));
    // Synchronises the cluster: from here on no block reads the memory of another, which may leave.
    context_.SyncCluster(kAfterBackwardCopies);
    for (; column < args_.num_columns && count_ > 0; column += warps_) {
      WalkChain(column, g);
      if (column + warps_ < args_.num_columns) g = SweepOf(column + warps_).FinalGradient();
    }
    context_.SyncBlock(kAfterBackwardChain);
    for (int32_t at = context_.warp(); at < count_ * args_.num_columns; at += warps_) {
      const int32_t c = at < count_ ? 0 : at / count_;
      FinishInterval(at - c * count_, c);
    }
  }

 private:
  static DEEPPCR_DEVICE std::byte* MemoryOfBlock(Context& context, const BackwardScanArgs& args) {
    if constexpr (!kInWorkspace) return context.shared();
    const int64_t block = int64_t{context.cluster()} * context.num_blocks() + context.block();
    return args.workspace + block * Stride(args);
  }
  static DEEPPCR_DEVICE int64_t Stride(const BackwardScanArgs& args) {
    return static_cast<int64_t>(
        BackwardMemory<W>::Bytes(args.tree, args.shooting_interval, args.backward.num_columns));
  }
  // Address in another block's memory that corresponds to `local` in this block's memory.
  DEEPPCR_DEVICE const float* Remote(float* local, int block) const {
    if constexpr (!kInWorkspace) return context_.Remote(local, block);
    const int64_t bytes = (block - context_.block()) * stride_;
    return reinterpret_cast<const float*>(reinterpret_cast<std::byte*>(local) + bytes);
  }

  DEEPPCR_DEVICE int32_t Clamp(int32_t count) const {
    return count < 0 ? 0 : count > tree_.per_block ? tree_.per_block : count;
  }
  // Layers of interval i of the block. The tree is mirrored: its first interval is the stack's
  // last.
  DEEPPCR_DEVICE int32_t BeginOf(int32_t i) const {
    return (tree_.num_intervals - 1 - first_ - i) * interval_;
  }
  DEEPPCR_DEVICE int32_t EndOf(int32_t i) const {
    return AtMost(static_cast<int32_t>(args_.stack.num_steps), BeginOf(i) + interval_);
  }
  // True for node j of the block unless it is the node at the right end, which may end early.
  DEEPPCR_DEVICE bool NeedsMatrix(int level, int32_t j) const {
    return (first_ >> level) + j + 1 < tree_.nodes(level);
  }

  static DEEPPCR_DEVICE bool ByTiles(const StackView& stack) {
    return stack.residual &&
           fabsf(stack.scale) * static_cast<float>(stack.num_steps) <= kMostBranches;
  }

  // ---- (1) and (2)
  DEEPPCR_DEVICE void FormMatrices() {
    for (int32_t i = context_.warp(); i < count_; i += warps_) FormInterval(i);
    stages_ += AtMost(static_cast<int32_t>(args_.stack.num_steps), interval_);
    for (int level = 1; level <= chain_level_; ++level) {
      context_.SyncBlock(kAfterBackwardLevel);
      const int32_t nodes = tree_.per_block >> level;
      for (int32_t j = context_.warp(); j < nodes && NeedsMatrix(level, j); j += warps_)
        MultiplyMatrices<W>(context_, memory_.MatrixOfNode(level - 1, 2 * j),
                            memory_.MatrixOfNode(level - 1, 2 * j + 1),
                            memory_.MatrixOfNode(level, j));
      ++stages_;
    }
    context_.SyncCluster(kAfterBackwardTree);
  }

  DEEPPCR_DEVICE void FormInterval(int32_t i) {
    const LayerReader<W, Context> reader(context_, args_, context_.cluster());
    const int32_t begin = BeginOf(i), end = EndOf(i);
    LayersAtStates<W> next = ChunkFrom(reader, begin, end);
    for (int32_t l = begin; l < end; l += kBackwardAhead<W>) {
      // The chunk after this one is on its way meanwhile.
      const LayersAtStates<W> chunk = next;
      next = ChunkFrom(reader, l + kBackwardAhead<W>, end);
      StoreSlopes(i, l, chunk);
    }
    if (!NeedsMatrix(0, i)) return;
    context_.SyncWarp(kAfterBackwardSlopes);
    StoreProduct(i);
  }
  // Loads the layers from l on, as far as `end`.
  static DEEPPCR_DEVICE LayersAtStates<W> ChunkFrom(const LayerReader<W, Context>& reader,
                                                    int32_t l, int32_t end) {
    LayersAtStates<W> chunk;
    DEEPPCR_UNROLL
    for (int k = 0; k < kBackwardAhead<W>; ++k) {
      chunk.layers[k] = reader.Layer(AtMost(end - 1, l + k));
      chunk.z[k] = reader.State(AtMost(end - 1, l + k));
    }
    return chunk;
  }
  // Stores the slopes of a chunk of layers of the interval, from l on.
  DEEPPCR_DEVICE void StoreSlopes(int32_t i, int32_t l, const LayersAtStates<W>& chunk) {
    const int32_t end = EndOf(i);
    float slopes[kBackwardAhead<W>];
    PreActivations<W>(context_, chunk, slopes);
    SharedSlopes<W>(context_, args_.stack, slopes);
    // The last of the lanes that hold the slopes write them: a test without the barrier sees them
    // too late.
    float* to = memory_.Slopes(i) + (l - BeginOf(i)) * W + context_.lane() % W;
    DEEPPCR_UNROLL
    for (int k = 0; k < kBackwardAhead<W>; ++k)
      if (l + k < end && context_.lane() >= kWarpSize - W) to[k * W] = slopes[k];
  }
  // Stores the product of the Jacobians of the interval's layers.
  DEEPPCR_DEVICE void StoreProduct(int32_t i) {
    if (by_tiles_) return StoreProductOfTiles(i);
    StoreProductOfColumns(i);
  }
  DEEPPCR_DEVICE void StoreProductOfColumns(int32_t i) {
    const int32_t begin = BeginOf(i), end = EndOf(i);
    const float* slopes = memory_.Slopes(i) + context_.lane() % W;
    float column[kColumnRows<W>];
    FirstTangents<W>(context_, args_.stack, begin, *slopes, column);
    for (int32_t l = begin + 1; l < end; ++l)
      Tangents<W>(context_, args_.stack, l, slopes[(l - begin) * W], column);
    StoreColumn<W>(context_, column, memory_.Matrix(i));
  }
  DEEPPCR_DEVICE void StoreProductOfTiles(int32_t i) {
    const int32_t begin = BeginOf(i), end = EndOf(i);
    const float* slopes = memory_.Slopes(i) + context_.lane() % W;
    TileMatrix<W> tangents, first;
    first.Load(context_, args_.stack.weights + int64_t{begin} * W * W);
    tangents.SetIdentity(context_);
    tangents.TakeScaled(context_, *slopes, first, true);
    RowPairs<W> next;
    LoadPairs(AtMost(end - 1, begin + 1), next);
    for (int32_t l = begin + 1; l < end; ++l) {
      const RowPairs<W> layer = next;
      LoadPairs(AtMost(end - 1, l + 1), next);
      Tangents(context_, layer, slopes[(l - begin) * W], true, tangents);
    }
    tangents.Store(context_, memory_.Matrix(i));
  }
  DEEPPCR_DEVICE void LoadPairs(int32_t l, RowPairs<W>& pairs) const {
    const float* const weights = args_.stack.weights + int64_t{l} * W * W;
    pairs.template Load<W>(
        context_, [&](int at, float(&two)[2]) { context_.LoadConstants(weights + at, two); });
  }

  // ---- (3)
  // The node on the chain that the block's last interval is of.
  DEEPPCR_DEVICE int32_t LastNode() const {
    return count_ == 0 ? 0 : (first_ + count_ - 1) >> chain_level_;
  }
  // The matrix of node j on the chain, in its block.
  DEEPPCR_DEVICE const float* ChainNode(int32_t j) const {
    const int32_t end = (j + 1) << chain_level_;  // end of its intervals
    const int block = tree_.block_of(chain_level_, j);
    return Remote(memory_.Matrix(end - 1 - block * tree_.per_block), block);
  }
  DEEPPCR_DEVICE BackwardSweep<W, Context> SweepOf(int32_t column) {
    const int64_t sample = context_.cluster();
    return {context_, args_, sample, sample * args_.num_columns + column};
  }
  // Takes a column, g behind the last layer, through the chain.
  DEEPPCR_DEVICE void WalkChain(int32_t column, float g) {
    const int32_t own = first_ >> chain_level_, last = LastNode();
    // A^T of the next node is on its way meanwhile; that behind the last is nobody's.
    LayerPart<W> next = LoadTransposed<W>(context_, memory_.ChainMatrix(0));
    const auto pass = [&](int32_t j) {
      const LayerPart<W> node = next;
      next = LoadTransposed<W>(context_, memory_.ChainMatrix(j + 1));
      g = Multiply<W>(context_, node, g);
    };
    for (int32_t j = 0; j < own; ++j) pass(j);
    for (int32_t j = own; j < last; ++j) {
      StorePrefix(j - own, column, g);
      pass(j);
    }
    StorePrefix(last - own, column, g);
    if (column == 0) stages_ += last;
  }
  DEEPPCR_DEVICE void StorePrefix(int32_t k, int32_t column, float g) const {
    if (context_.lane() < W) memory_.Prefix(k, column)[context_.lane()] = g;
  }

  // ---- (4)
  DEEPPCR_DEVICE void FinishInterval(int32_t i, int32_t column) {
    const bool last = first_ + i + 1 == tree_.num_intervals;
    if (args_.deltas == nullptr && !last) return;  // gradients within the interval are not wanted
    SlopesInMemory<W, Context> slopes(context_, memory_.Slopes(i), BeginOf(i), EndOf(i));
    BackwardSweep<W, Context> sweep = SweepOf(column);
    const auto layers = sweep.LastLayers(BeginOf(i), EndOf(i));
    const float g = sweep.Run(BeginOf(i), EndOf(i), DescendTo(i, column), layers, slopes);
    if (!last) return;
    sweep.WriteInitialGradient(g);
    if (context_.cluster() == 0 && context_.lane() == 0 && column == 0)
      *args_.num_dependent = stages_ + chain_level_ + sweep.made();
  }
  // Gradient that enters interval i: a left node takes its parent's gradient, a right node the
  // gradient that has gone through the left node.
  DEEPPCR_DEVICE float DescendTo(int32_t i, int32_t column) {
    float g = memory_.Prefix(i >> chain_level_, column)[context_.lane() % W];
    for (int level = chain_level_ - 1; level >= 0; --level) {
      const int32_t j = i >> level;
      if (j % 2 == 0) continue;
      const float* left = memory_.MatrixOfNode(level, j - 1);
      g = Multiply<W>(context_, LoadTransposed<W>(context_, left), g);
    }
    return g;
  }

  Context& context_;
  const BackwardArgs& args_;
  const IntervalTree tree_;
  const BackwardMemory<W> memory_;
  const int32_t interval_;  // C
  const int64_t stride_;    // bytes of a block's memory
  const int chain_level_;
  const bool by_tiles_;
  const int warps_;
  const int32_t first_;  // first interval of the block
  const int32_t count_;  // intervals of the block, at the end of the cluster fewer or none
  int32_t stages_ = 0;   // stages made one after another, counted as the loops run
};

// Body of a launch of one cluster per sample, with BackwardMemory<W>::Bytes a block of shared
// memory or of the workspace.
template <int W, bool kInWorkspace, class Context>
DEEPPCR_DEVICE void GoBackByScan(Context& context, const BackwardScanArgs& args) {
  BackwardScan<W, kInWorkspace, Context>(context, args).Run();
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_STACK_BACKWARD_SCAN_KERNEL_H_
