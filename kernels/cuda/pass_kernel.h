// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_PASS_KERNEL_H_
#define DEEPPCR_KERNELS_CUDA_PASS_KERNEL_H_

// A pass of the iterative loop after its propagation, in launches of its own: for states that are
// too wide for newton_kernel.h, and for GPUs without clusters. A block works on one interval or one
// node of the tree of one sample; the blocks of a launch have nothing to say to one another.
//
// Symbols as in kernels/backend/backend.h. What a launch leaves for the next lies in slabs of a
// single block (IntervalTree(P, 1), block_memory.h). Products of full matrices are a GemmArgs.

#include <cstdint>

#include "kernels/backend/iteration.h"
#include "kernels/cuda/block_memory.h"
#include "kernels/cuda/device_code.h"
#include "kernels/cuda/guess.h"
#include "kernels/cuda/interval_norms.h"

namespace deeppcr::cuda {

// What the launches of a space have in common. Pointers are the device's.
struct PassView {
  IntervalTree tree;
  int32_t state_dim, width;  // D, W
  int64_t num_steps;
  int32_t shooting_interval;
  Members members;
  std::byte* slabs;  // [n, BlockMemory::Bytes]

  DEEPPCR_DEVICE BlockMemory MemoryOf(int64_t sample) const {
    return MemoryInSlabs(slabs, tree, width, sample, 0);
  }
};

// ---- Before the first pass
struct StartArgs {
  PassView pass;  // samples 0, 1, ...
  GuessView guess;
  const float* initial_states;  // z_0 [n, W], zero beyond D
};

// Body of a launch of one block per sample and state, P + 1 of them: the guess, and probes of zero.
template <class Context>
DEEPPCR_DEVICE void StartPasses(Context& context, const StartArgs& args) {
  const PassView& pass = args.pass;
  const int32_t states = pass.tree.num_intervals + 1;
  const int64_t sample = context.cluster() / states;
  const int32_t p = context.cluster() % states - 1;
  const SampleGuess guess(args.guess, args.initial_states, sample, pass.tree.num_intervals,
                          pass.state_dim, pass.width);
  const int64_t wanted = int64_t{p + 1} * pass.shooting_interval;
  const int64_t end = wanted < pass.num_steps ? wanted : pass.num_steps;
  float* const y = pass.MemoryOf(sample).State(p + 1);
  for (int i = context.thread(); i < pass.width; i += context.num_threads()) {
    y[i] = guess.At(p, end, i);
    for (int v = 1; v < kNumColumns; ++v) y[v * pass.width + i] = 0.0F;
  }
}

// ---- Matrices by a block
// f(row, v, (A x_v)[row]) for all rows of A [W, W] and vectors x [columns, W]: four lanes share a
// row, each has a quarter of it, and all of them call f. The bits do not depend on the number of
// warps.
template <class Context, class F>
DEEPPCR_DEVICE void ForProducts(Context& context, const float* matrix, const float* x, int width,
                                int columns, const F& f) {
  constexpr int kSharers = 4, kRows = kWarpSize / kSharers;
  const int quarter = width / kSharers, begin = context.lane() % kSharers * quarter;
  const int warps = context.num_threads() / kWarpSize;
  for (int row = context.warp() * kRows + context.lane() / kSharers; row < width;
       row += warps * kRows) {
    float sums[kNumColumns] = {};
    for (int k = begin; k < begin + quarter; ++k) {
      const float a = matrix[int64_t{row} * width + k];
      DEEPPCR_UNROLL
      for (int v = 0; v < kNumColumns; ++v) {
        if (v < columns) sums[v] = fmaf(a, x[v * width + k], sums[v]);
      }
    }
    DEEPPCR_UNROLL
    for (int v = 0; v < kNumColumns; ++v) {
      if (v >= columns) break;
      sums[v] += context.ShuffleXor(sums[v], 1);
      f(row, v, sums[v] + context.ShuffleXor(sums[v], 2));
    }
  }
}

// f(row, v, (A x_v)[row]) by one thread each, for the A of an interval or node. In memory a full
// one is [W, W], a diagonal [W], and the identity nothing.
template <class Context, class F>
DEEPPCR_DEVICE void ForTransition(Context& context, IterationKind kind, const float* matrix,
                                  const float* x, int width, const F& f) {
  const int columns = kind.vectors();
  if (kind.linearization == Linearization::kFull)
    return ForProducts(context, matrix, x, width, columns, [&](int row, int v, float product) {
      if (context.lane() % 4 == 0) f(row, v, product);
    });
  for (int at = context.thread(); at < columns * width; at += context.num_threads()) {
    const int row = at % width;
    const bool diagonal = kind.linearization == Linearization::kDiagonal;
    f(row, at / width, diagonal ? matrix[row] * x[at] : x[at]);
  }
}

// ---- The tree
enum class Sweep : uint8_t { kReduce, kDistribute };

struct LevelArgs {
  PassView pass;
  Sweep sweep;
  int32_t level;
  IterationKind kind;
};

template <class Context>
class NodePass {
 public:
  DEEPPCR_DEVICE NodePass(Context& context, const LevelArgs& args)
      : context_(context),
        tree_(args.pass.tree),
        width_(args.pass.width),
        kind_(args.kind),
        level_(args.level),
        node_(context.cluster() % tree_.nodes(level_)),
        memory_(args.pass.MemoryOf(args.pass.members.at[context.cluster() / tree_.nodes(level_)])) {
  }

  // The right-hand side of a node, and a diagonal. The last node's is of no use.
  DEEPPCR_DEVICE void Reduce() {
    if (node_ + 1 >= tree_.nodes(level_)) return;
    const int32_t left = 2 * node_, right = left + 1;
    const float* const matrix = MatrixOf(level_ - 1, right);
    Apply(matrix, ResidualOf(level_ - 1, left), ResidualOf(level_ - 1, right),
          ResidualOf(level_, node_));
    if (kind_.linearization != Linearization::kDiagonal || !kind_.refresh) return;
    if (!tree_.needs_matrix(level_, node_)) return;
    for (int i = context_.thread(); i < width_; i += context_.num_threads())
      MatrixOf(level_, node_)[i] = matrix[i] * MatrixOf(level_ - 1, left)[i];
  }

  // What enters a left node entered its parent; what enters a right one has gone through the left.
  DEEPPCR_DEVICE void Distribute() {
    float* const out = EnteringOf(level_, node_);
    if (node_ == 0) return Copy(nullptr, out);
    if (node_ == 1) return Copy(ResidualOf(level_, 0), out);
    const float* const parent = EnteringOf(level_ + 1, node_ / 2);
    if (node_ % 2 == 0) return Copy(parent, out);
    Apply(MatrixOf(level_, node_ - 1), parent, ResidualOf(level_, node_ - 1), out);
  }

 private:
  DEEPPCR_DEVICE float* ResidualOf(int level, int32_t j) const {
    return memory_.Residual(tree_.index_of(level, j));
  }
  DEEPPCR_DEVICE float* EnteringOf(int level, int32_t j) const {
    return memory_.Entering(tree_.index_of(level, j));
  }
  DEEPPCR_DEVICE float* MatrixOf(int level, int32_t j) const {
    return memory_.Matrix(tree_.index_of(level, j));
  }
  // out = A in + base.
  DEEPPCR_DEVICE void Apply(const float* matrix, const float* in, const float* base, float* out) {
    ForTransition(context_, kind_, matrix, in, width_, [&](int row, int v, float product) {
      out[v * width_ + row] = base[v * width_ + row] + product;
    });
  }
  // Null: zeros.
  DEEPPCR_DEVICE void Copy(const float* from, float* to) const {
    for (int i = context_.thread(); i < kind_.vectors() * width_; i += context_.num_threads())
      to[i] = from == nullptr ? 0.0F : from[i];
  }

  Context& context_;
  const IntervalTree tree_;
  const int width_;
  const IterationKind kind_;
  const int level_;
  const int32_t node_;
  const BlockMemory memory_;
};

// Body of a launch of one block per member and node of the level.
template <class Context>
DEEPPCR_DEVICE void SweepLevel(Context& context, const LevelArgs& args) {
  NodePass<Context> node(context, args);
  args.sweep == Sweep::kReduce ? node.Reduce() : node.Distribute();
}

// ---- y_p <- F_p + A_p d_{p-1}
struct UpdateArgs {
  PassView pass;
  IterationKind kind;
  double floor;
  UpdateNorms* norms;   // [n, P]
  float* final_states;  // y_P [n, W]
};

// The barrier call of an update.
enum UpdateSite : int { kAfterWarpNorms = 24, kNumUpdateSites };

// Body of a launch of one block per member and interval, with an IntervalNorms of shared memory for
// each warp.
template <class Context>
DEEPPCR_DEVICE void UpdateStates(Context& context, const UpdateArgs& args) {
  const PassView& pass = args.pass;
  const int32_t intervals = pass.tree.num_intervals, p = context.cluster() % intervals;
  const int64_t sample = pass.members.at[context.cluster() / intervals];
  const BlockMemory memory = pass.MemoryOf(sample);
  const int32_t leaf = pass.tree.index_of(0, p);
  IterationKind kind = args.kind;
  const bool corrected = p > 0 && kind.linearization != Linearization::kZero;
  if (!corrected) kind.linearization = Linearization::kZero;
  IntervalUpdate update;
  float* const y = memory.State(p + 1);
  // Where nothing enters, F_p stands in for what does: it counts for nothing.
  const float* const entering = corrected ? memory.Entering(leaf) : memory.Propagated(p);
  ForTransition(context, kind, memory.Matrix(leaf), entering, pass.width,
                [&](int row, int v, float correction) {
                  const int at = v * pass.width + row;
                  update.Take(v, memory.Propagated(p)[at], corrected ? correction : 0.0F, y + at);
                  if (v == 0 && p + 1 == intervals)
                    args.final_states[sample * pass.width + row] = y[at];
                });
  auto* const of_warps = reinterpret_cast<IntervalNorms*>(context.shared());
  const IntervalNorms of_warp = MergeOfWarp(context, update.norms());
  if (context.lane() == 0) of_warps[context.warp()] = of_warp;
  context.SyncBlock(kAfterWarpNorms);
  if (context.thread() != 0) return;
  IntervalNorms all = of_warps[0];
  for (int w = 1; w < context.num_threads() / kWarpSize; ++w) Merge(of_warps[w], &all);
  args.norms[sample * intervals + p] = NormsOf(all, args.floor);
}

// ---- The norms of a pass
struct CollectArgs {
  PassView pass;
  const UpdateNorms* norms;  // [n, P]
  UpdateNorms* outcomes;     // [n], for the host
};

// Body of a launch of one warp per member.
template <class Context>
DEEPPCR_DEVICE void CollectNorms(Context& context, const CollectArgs& args) {
  const int32_t intervals = args.pass.tree.num_intervals;
  const int64_t sample = args.pass.members.at[context.cluster()];
  UpdateNorms norms;
  for (int32_t p = context.lane(); p < intervals; p += kWarpSize)
    Merge(args.norms[sample * intervals + p], &norms);
  norms = MergeOfWarp(context, norms);
  if (context.lane() == 0) args.outcomes[sample] = norms;
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_PASS_KERNEL_H_
