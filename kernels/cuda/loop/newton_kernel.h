// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_LOOP_NEWTON_KERNEL_H_
#define DEEPPCR_KERNELS_CUDA_LOOP_NEWTON_KERNEL_H_

// The whole Newton (or Picard) solve of a sample in one launch: a cluster of blocks holds the
// shooting intervals in its shared memory, or in global memory where there are too many, iterates,
// and decides on its own when to stop.
//
// Symbols as in kernels/backend/backend.h. A warp works on one interval or one node of the tree at
// a time. States and vectors lie in shared memory as [columns, W]; warp_step.h says which elements
// a lane holds. Every thread of a cluster makes the same decisions from the same norms.

#include <math.h>

#include <cstdint>

#include "kernels/cuda/loop/block_memory.h"
#include "kernels/cuda/loop/interval_norms.h"
#include "kernels/cuda/loop/interval_tree.h"
#include "kernels/cuda/loop/newton_args.h"
#include "kernels/cuda/loop/newton_shape.h"
#include "kernels/cuda/math/warp_matrix.h"
#include "kernels/cuda/runtime/device_code.h"
#include "kernels/cuda/stack/propagation.h"
#include "kernels/iteration/pass.h"
#include "kernels/iteration/stopping.h"

namespace deeppcr::cuda {

// The barrier calls of the kernel.
enum NewtonSite : int {
  kAfterGuess,
  kAfterLocalPropagate,
  kAfterPropagate,
  kAfterLocalReduce,
  kAfterReduce,
  kAfterLocalDistribute,
  kAfterUpdate,
  kAfterHalo,
  kAfterProgress,
  kBeforeExit,
  kNumNewtonSites,
};

// Solve of a sample. kInWorkspace: the data of a block lies in the workspace in global memory
// instead of its shared memory.
template <int W, bool kInWorkspace, class Context>
class NewtonSolve {
 public:
  DEEPPCR_DEVICE NewtonSolve(Context& context, const NewtonArgs& args)
      : context_(context),
        args_(args),
        tree_(args.tree),
        memory_(MemoryOfBlock(context, args)),
        warps_(context.num_threads() / kWarpSize),
        first_(context.block() * args.tree.per_block),
        count_(Clamp(args.tree.num_intervals - first_)),
        row_(context.lane() % W) {}

  DEEPPCR_DEVICE void Run() {
    if (context_.lane() == 0) progress() = args_.start;
    PlaceGuess();
    while (progress().next != NextPass::kStop) {
      const IterationKind kind = KindOf(progress());
      stages_ = 0;
      Propagate(kind);
      SolveAndUpdate(kind);
    }
    WriteAnswer();
    context_.SyncCluster(kBeforeExit);  // no block leaves while another may read its memory
  }

  DEEPPCR_DEVICE void Start() {
    PlaceGuess();
    Keep(args_.start);
  }

  DEEPPCR_DEVICE void Pass() {
    const Progress& before = args_.progress[context_.cluster()];
    if (before.next == NextPass::kStop) return;
    if (context_.lane() == 0) progress() = before;
    context_.SyncWarp(kAfterProgress);
    const IterationKind kind = KindOf(progress());
    stages_ = EndOf(0);
    SolveAndUpdate(kind);
    Keep(progress());
    if (progress().next == NextPass::kStop) WriteFinalState();
  }

 private:
  static DEEPPCR_DEVICE BlockMemory MemoryOfBlock(Context& context, const NewtonArgs& args) {
    if constexpr (!kInWorkspace) return {args.tree, W, context.shared()};
    return MemoryInWorkspace(args.workspace, args.tree, W, context.cluster(), context.block());
  }
  // Address in another block's memory that corresponds to `local` in this block's memory.
  template <class T>
  DEEPPCR_DEVICE T* Remote(T* local, int block) const {
    if constexpr (!kInWorkspace) return context_.Remote(local, block);
    const auto stride = static_cast<int64_t>(BlockMemory::Bytes(args_.tree, W));
    return reinterpret_cast<T*>(reinterpret_cast<std::byte*>(local) +
                                (block - context_.block()) * stride);
  }

  DEEPPCR_DEVICE IterationKind KindOf(const Progress& progress) const {
    return deeppcr::KindOf(progress.next, progress.probes, args_.policy.linearization);
  }
  // The progress of the sample, of which every warp has a copy: as nothing asks for it during a
  // pass, it would only take registers from matrices.
  DEEPPCR_DEVICE Progress& progress() const { return memory_.OfWarps()[context_.warp()]; }
  DEEPPCR_DEVICE void SolveAndUpdate(IterationKind kind) {
    const int32_t stop_word = StopWord();
    if (kind.linearization != Linearization::kZero) {
      UpSweep(kind);
      DownSweep(kind);
    }
    const WarpNorms outcome = Update(kind, stop_word);
    if (context_.lane() == 0) Advance(kind, outcome);
    context_.SyncWarp(kAfterProgress);
  }
  // Takes in the outcome of a pass. By one lane of each warp.
  DEEPPCR_DEVICE void Advance(IterationKind kind, const WarpNorms& outcome) const {
    Progress next = progress();
    AdvanceProgress(args_.policy, outcome.norms, stages_, kind.columns(args_.stack.state_dim),
                    &next);
    if (outcome.stop_word != 0 && next.next != NextPass::kStop)
      Stop(&next, static_cast<Termination>(outcome.stop_word));
    progress() = next;
  }
  // The cancel word, read by one thread from the host's memory, which takes long: well before it is
  // looked at.
  DEEPPCR_DEVICE int32_t StopWord() const {
    if (args_.cancel == nullptr || context_.block() != 0 || context_.thread() != 0) return 0;
    return context_.LoadVolatile(args_.cancel + context_.cluster());
  }
  // Stores the progress for the next part and for the host.
  DEEPPCR_DEVICE void Keep(const Progress& progress) const {
    if (context_.block() != 0 || context_.thread() != 0) return;
    args_.progress[context_.cluster()] = progress;
    args_.outcomes[context_.cluster()] = progress;
  }

  DEEPPCR_DEVICE int32_t Clamp(int32_t count) const {
    return count < 0 ? 0 : count > tree_.per_block ? tree_.per_block : count;
  }
  DEEPPCR_DEVICE int64_t BeginOf(int64_t p) const { return p * args_.shooting_interval; }
  DEEPPCR_DEVICE int64_t EndOf(int64_t p) const {
    const int64_t end = (p + 1) * args_.shooting_interval;
    return end < args_.stack.num_steps ? end : args_.stack.num_steps;
  }

  // Calls f for every interval of the block, a warp each.
  template <class F>
  DEEPPCR_DEVICE void ForIntervals(const F& f) {
    for (int32_t i = context_.warp(); i < count_; i += warps_) f(i);
  }
  // Calls f for every node of the level that this block holds, a warp each.
  template <class F>
  DEEPPCR_DEVICE void ForNodes(int level, const F& f) {
    const int32_t in_block = level <= tree_.local_levels ? tree_.per_block >> level : 1;
    const int32_t nodes = tree_.nodes(level);
    const int apart = level - tree_.local_levels;
    if (apart > 0 && (context_.block() & ((1 << apart) - 1)) != 0) return;
    const int32_t first = static_cast<int32_t>(int64_t{first_} >> level);
    for (int32_t k = context_.warp(); k < in_block && first + k < nodes; k += warps_) f(first + k);
  }

  // ---- The guess
  DEEPPCR_DEVICE void PlaceGuess() {
    const SampleGuess guess(args_.guess, args_.initial_states, context_.cluster(),
                            tree_.num_intervals, args_.stack.state_dim, W);
    for (int32_t i = context_.warp(); count_ > 0 && i <= count_; i += warps_) {
      float* y = memory_.State(i);
      if (context_.lane() >= W) continue;
      const int32_t p = first_ + i - 1;
      y[row_] = guess.At(p, EndOf(p), row_);
      for (int v = 1; v < kNumColumns; ++v) y[v * W + row_] = 0.0F;
    }
    context_.SyncBlock(kAfterGuess);
  }

  // ---- (1) F_p, A_p and the probes
  DEEPPCR_DEVICE void Propagate(IterationKind kind) {
    ForIntervals([&](int32_t i) { PropagateInterval(i, kind); });
    stages_ += EndOf(0);
    // Where the first nodes of the tree span blocks, their children belong to other blocks; and
    // where there is no tree, nothing else keeps a block from running ahead of blocks that still
    // read its data of the last pass.
    tree_.local_levels > 0 && kind.linearization != Linearization::kZero
        ? context_.SyncBlock(kAfterLocalPropagate)
        : context_.SyncCluster(kAfterPropagate);
  }

  DEEPPCR_DEVICE void PropagateInterval(int32_t i, IterationKind kind) {
    const int32_t p = first_ + i;
    // d_0 = 0: the first matrix is never used.
    float* const matrix =
        kind.forms_matrices() && p > 0 ? memory_.Matrix(tree_.index_of(0, p)) : nullptr;
    const float entry = EntryAt(kind.confirmation, memory_.State(i), W, p, row_);
    StackPropagation<W, Context> steps(context_, args_.stack, kind, entry, matrix);
    steps.Run(BeginOf(p), EndOf(p));
    if (context_.lane() >= W) return;
    const float end = EntryAt(kind.confirmation, memory_.State(i + 1), W, p + 1, row_);
    StorePropagated(i, 0, steps.state(), end);
    DEEPPCR_UNROLL
    for (int v = 0; v < kNumProbes && kind.probes; ++v)
      StorePropagated(i, 1 + v, steps.probe(v), 0.0F);
  }
  // Stores a column of F_p and of the residual F_p - y_p. The residual of a probe is the rounding
  // that it has picked up.
  DEEPPCR_DEVICE void StorePropagated(int32_t i, int column, float value, float end) const {
    const int at = column * W + row_;
    memory_.Propagated(i)[at] = value;
    memory_.Residual(tree_.index_of(0, first_ + i))[at] = value - end;
  }

  // ---- (2) d_p = A_p d_{p-1} + r_p over the tree
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
    const Transition<W> transition(context_, linearization, matrix);
    DEEPPCR_UNROLL
    for (int v = 0; v < N; ++v) sums[v] += transition.Times(context_, x[v]);
  }
  // Memory of a node, whichever block holds the node.
  DEEPPCR_DEVICE float* ResidualOf(int level, int32_t j) const {
    return Remote(memory_.Residual(tree_.index_of(level, j)), tree_.block_of(level, j));
  }
  DEEPPCR_DEVICE float* PrefixOf(int level, int32_t j) const {
    return Remote(memory_.Prefix(tree_.index_of(level, j)), tree_.block_of(level, j));
  }
  DEEPPCR_DEVICE float* MatrixOf(int level, int32_t j) const {
    return Remote(memory_.Matrix(tree_.index_of(level, j)), tree_.block_of(level, j));
  }

  DEEPPCR_DEVICE void UpSweep(IterationKind kind) {
    for (int level = 1; level < tree_.levels; ++level) {
      ForNodes(level, [&](int32_t j) {
        if (j + 1 < tree_.nodes(level)) FormNode(level, j, kind);
      });
      ++stages_;
      level < tree_.local_levels ? context_.SyncBlock(kAfterLocalReduce)
                                 : context_.SyncCluster(kAfterReduce);
    }
  }
  DEEPPCR_DEVICE void FormNode(int level, int32_t j, IterationKind kind) {
    const int32_t left = 2 * j, right = left + 1;
    const float* right_matrix = MatrixOf(level - 1, right);
    Apply(kind, right_matrix, ResidualOf(level - 1, left), ResidualOf(level - 1, right),
          memory_.Residual(tree_.index_of(level, j)));
    if (!kind.forms_matrices() || !tree_.needs_matrix(level, j)) return;
    ComposeTransitions<W>(context_, kind.linearization, right_matrix, MatrixOf(level - 1, left),
                          memory_.Matrix(tree_.index_of(level, j)));
  }

  DEEPPCR_DEVICE void DownSweep(IterationKind kind) {
    if (context_.warp() == 0 && count_ > 0)
      kind.vectors() == 1 ? EnterBlock<1>(kind.linearization)
                          : EnterBlock<kNumColumns>(kind.linearization);
    stages_ += tree_.levels - tree_.local_levels;
    context_.SyncBlock(kAfterLocalDistribute);
    for (int level = tree_.local_levels - 1; level >= 0; --level) {
      ForNodes(level, [&](int32_t j) { FormPrefix(level, j, kind); });
      ++stages_;
      context_.SyncBlock(kAfterLocalDistribute);
    }
  }
  // Computes the vectors that enter the block, those of its node at local_levels: on the way down
  // to it, a block makes for itself what the nodes on the way would else make one after another,
  // with a barrier of the cluster behind each. The bits are the same.
  template <int N>
  DEEPPCR_DEVICE void EnterBlock(Linearization linearization) {
    float prefix[N] = {};
    for (int level = tree_.levels - 1; level >= tree_.local_levels; --level) {
      const int32_t j = first_ >> level;
      if (j % 2 == 0) continue;  // a left node takes the vectors of its parent
      const float* const base = ResidualOf(level, j - 1);
      float sums[N];
      DEEPPCR_UNROLL
      for (int v = 0; v < N; ++v) sums[v] = base[v * W + row_];
      if (j > 1) AddProducts(linearization, MatrixOf(level, j - 1), prefix, sums);
      DEEPPCR_UNROLL
      for (int v = 0; v < N; ++v) prefix[v] = sums[v];
    }
    if (context_.lane() >= W) return;
    float* const out =
        memory_.Prefix(tree_.index_of(tree_.local_levels, first_ >> tree_.local_levels));
    DEEPPCR_UNROLL
    for (int v = 0; v < N; ++v) out[v * W + row_] = prefix[v];
  }
  // Computes the vectors that enter a node: a left node takes those of its parent, a right node
  // those that have gone through the left node.
  DEEPPCR_DEVICE void FormPrefix(int level, int32_t j, IterationKind kind) {
    float* out = memory_.Prefix(tree_.index_of(level, j));
    if (j == 0) return Copy(kind, nullptr, out);
    if (j == 1) return Copy(kind, ResidualOf(level, 0), out);
    const float* parent = PrefixOf(level + 1, j / 2);
    if (j % 2 == 0) return Copy(kind, parent, out);
    Apply(kind, MatrixOf(level, j - 1), parent, ResidualOf(level, j - 1), out);
  }
  // Copies the vectors in use; null: zeros.
  DEEPPCR_DEVICE void Copy(IterationKind kind, const float* from, float* to) const {
    if (context_.lane() >= W) return;
    for (int v = 0; v < kind.vectors(); ++v)
      to[v * W + row_] = from == nullptr ? 0.0F : from[v * W + row_];
  }

  // ---- (3) y_p <- F_p + A_p d_{p-1}
  DEEPPCR_DEVICE WarpNorms Update(IterationKind kind, int32_t stop_word) {
    WarpNorms mine = {};
    ForIntervals([&](int32_t i) { Merge(UpdateInterval(i, kind), &mine.norms); });
    ++stages_;
    mine.stop_word = stop_word;
    if (context_.lane() == 0) memory_.Norms()[context_.warp()] = mine;
    context_.SyncCluster(kAfterUpdate);
    TakeHalo(kind);
    const WarpNorms all = NormsOfCluster();
    context_.SyncWarp(kAfterHalo);  // the warp that took the halo works on the first interval
    return all;
  }

  DEEPPCR_DEVICE UpdateNorms UpdateInterval(int32_t i, IterationKind kind) {
    const int32_t p = first_ + i, leaf = tree_.index_of(0, p);
    const bool corrected = p > 0 && kind.linearization != Linearization::kZero;
    const Transition<W> transition(
        context_, corrected ? kind.linearization : Linearization::kIdentity, memory_.Matrix(leaf));
    IntervalUpdate update(kind);
    for (int v = 0; v < kind.vectors(); ++v) {
      const float prefix = corrected ? memory_.Prefix(leaf)[v * W + row_] : 0.0F;
      const float correction = transition.Times(context_, prefix);
      if (context_.lane() < W)
        update.Take(v, memory_.Propagated(i)[v * W + row_], correction, W,
                    memory_.State(i + 1) + row_);
    }
    return NormsByWarp(context_, MergeOfWarp(context_, update.norms()), args_.policy.floor());
  }

  // Takes the last state of the block before; in a confirmation, the columns beside that state. All
  // columns are loaded before the first is stored.
  DEEPPCR_DEVICE void TakeHalo(IterationKind kind) {
    if (context_.block() == 0 || context_.warp() != 0 || count_ == 0) return;
    const float* last = Remote(memory_.State(tree_.per_block), context_.block() - 1);
    if (context_.lane() >= W) return;
    const int first = kind.confirms() ? kUpdateColumn : 0;
    const int end = kind.confirms() ? kBallColumn + 1 : kind.vectors();
    float columns[kNumColumns];
    DEEPPCR_UNROLL
    for (int v = 0; v < kNumColumns; ++v)
      if (v >= first && v < end) columns[v] = last[v * W + row_];
    DEEPPCR_UNROLL
    for (int v = 0; v < kNumColumns; ++v)
      if (v >= first && v < end) memory_.State(0)[v * W + row_] = columns[v];
  }

  // Merges the norms of all warps of the cluster; a lane reads those of one block, or half of them.
  DEEPPCR_DEVICE WarpNorms NormsOfCluster() {
    constexpr int kSharers = kWarpSize / kMostClusterBlocks;
    const int block = context_.lane() % kMostClusterBlocks;
    WarpNorms all = {};
    if (block < tree_.num_blocks) {
      const WarpNorms* const norms = Remote(memory_.Norms(), block);
      for (int w = context_.lane() / kMostClusterBlocks; w < warps_; w += kSharers)
        Merge(norms[w].norms, &all.norms);
      all.stop_word = norms[0].stop_word;
    }
    return {MergeOfWarp(context_, all.norms), context_.Shuffle(all.stop_word, 0)};
  }

  // ---- The answer
  DEEPPCR_DEVICE void WriteAnswer() {
    const int64_t sample = context_.cluster();
    if (context_.block() == 0 && context_.thread() == 0) args_.outcomes[sample] = progress();
    WriteFinalState();
    if (args_.trajectories != nullptr) ForIntervals([&](int32_t i) { WriteTrajectory(i); });
  }
  DEEPPCR_DEVICE void WriteFinalState() {
    const int32_t last = tree_.num_intervals - 1 - first_;
    if (last < 0 || last >= count_ || context_.warp() != last % warps_ || context_.lane() >= W)
      return;
    args_.final_states[int64_t{context_.cluster()} * W + row_] = memory_.State(last + 1)[row_];
  }
  // Writes the states within an interval, propagated from its entry, and the state at its end.
  DEEPPCR_DEVICE void WriteTrajectory(int32_t i) {
    const int64_t p = first_ + i, dim = args_.stack.state_dim;
    float* to = args_.trajectories + context_.cluster() * (args_.stack.num_steps + 1) * dim;
    float z = memory_.State(i)[row_];
    const bool writes = context_.lane() < dim;
    if (p == 0 && writes) to[row_] = z;
    for (int64_t l = BeginOf(p); l < EndOf(p); ++l) {
      const bool last = l + 1 == EndOf(p);
      z = last ? memory_.State(i + 1)[row_]
               : Step<W>(context_, args_.stack, LoadLayer<W>(context_, args_.stack, l), z);
      if (writes) to[(l + 1) * dim + row_] = z;
    }
  }

  Context& context_;
  const NewtonArgs& args_;
  const IntervalTree tree_;
  const BlockMemory memory_;
  const int warps_;
  const int32_t first_;  // first interval of the block
  const int32_t count_;  // intervals of the block, at the end of the cluster fewer or none
  const int row_;
  int64_t stages_ = 0;  // stages of the pass, counted as its loops run
};

// Body of a launch of one cluster per sample, with BlockMemory::Bytes a block of shared memory or
// of the workspace.
template <int W, bool kInWorkspace, class Context>
DEEPPCR_DEVICE void SolveNewton(Context& context, const NewtonArgs& args) {
  NewtonSolve<W, kInWorkspace, Context>(context, args).Run();
}

// Body of a launch of one cluster per sample for a part of a solve, in the workspace.
template <int W, class Context>
DEEPPCR_DEVICE void SolveNewtonInParts(Context& context, const NewtonArgs& args) {
  NewtonSolve<W, true, Context> solve(context, args);
  args.part == NewtonPart::kStart ? solve.Start() : solve.Pass();
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_LOOP_NEWTON_KERNEL_H_
