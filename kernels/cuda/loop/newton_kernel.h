// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_LOOP_NEWTON_KERNEL_H_
#define DEEPPCR_KERNELS_CUDA_LOOP_NEWTON_KERNEL_H_

// The whole Newton (or Picard) solve of a sample in one launch: a cluster of blocks holds the
// shooting intervals in its shared memory, or in global memory where there are too many, iterates,
// and decides on its own when to stop. Or a part of a solve, where other kernels propagate.
//
// Symbols as in kernels/backend/backend.h. A warp works on one interval or one node of the tree at
// a time. Transitions are composed up to at most kChainNodes nodes, within blocks; through these
// every block takes the vectors by itself, so that a pass waits for the cluster twice. States and
// vectors lie in shared memory as [columns, W]; warp_step.h says which elements a lane holds. Every
// thread of a cluster makes the same decisions from the same norms.

#include <math.h>

#include <cstdint>

#include "kernels/cuda/loop/block_intervals.h"
#include "kernels/cuda/loop/block_memory.h"
#include "kernels/cuda/loop/chain_copy.h"
#include "kernels/cuda/loop/interval_norms.h"
#include "kernels/cuda/loop/interval_tree.h"
#include "kernels/cuda/loop/newton_args.h"
#include "kernels/cuda/loop/newton_shape.h"
#include "kernels/cuda/math/warp_matrix.h"
#include "kernels/cuda/runtime/copy_words.h"
#include "kernels/cuda/runtime/device_code.h"
#include "kernels/iteration/pass.h"
#include "kernels/iteration/stopping.h"

namespace deeppcr::cuda {

// The barrier calls of the kernel.
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

// Where the data of a block lies.
enum class BlockPlace {
  kShared,      // in its shared memory
  kWorkspace,   // in the workspace in global memory
  kSharedTree,  // there, but for the tree, of which every launch forms one of its own
};

// Solve of a sample. kPrefixes: where transitions are full, the nodes of the chain are formed from
// their intervals at once, else over the levels of the tree.
template <int W, BlockPlace kPlace, bool kPrefixes, class Context>
class NewtonSolve {
 public:
  DEEPPCR_DEVICE NewtonSolve(Context& context, const NewtonArgs& args)
      : context_(context),
        args_(args),
        tree_(args.tree),
        memory_(MemoryOfBlock(context, args)),
        chain_level_(ChainLevel(args.tree)),
        warp_(context.Uniform(context.warp())),
        warps_(context.num_threads() / kWarpSize),
        first_(context.Uniform(context.block()) * args.tree.per_block),
        count_(Clamp(args.tree.num_intervals - first_)),
        row_(context.lane() % W),
        floor_(static_cast<float>(fmin(args.policy.floor(), double{kLargestFloat}))) {}

  DEEPPCR_DEVICE void Run() {
    context_.AnnounceBlock();
    if (context_.lane() == 0) CopyWords(args_.start, &progress());
    if (count_ > 0) Intervals().HoldLayers(BeginOf(first_), EndOf(first_ + count_ - 1));
    context_.AwaitBlocks(kBeforeGuess);  // from here on blocks may write to one another's memory
    PlaceGuess();
    while (!HasStopped(progress())) {
      stages_ = 0;
      Propagate(KindOf(progress()));
      // Read anew: registers are for what is propagated.
      SolveAndUpdate(KindOf(progress()));
    }
    WriteAnswer();
  }

  DEEPPCR_DEVICE void Start() {
    PlaceGuess();
    Keep(args_.start);
  }

  DEEPPCR_DEVICE void Pass() {
    const Progress& before = args_.progress[context_.cluster()];
    if (HasStopped(before)) return;
    if (context_.lane() == 0) CopyWords(before, &progress());
    const IterationKind kind = KindOf(before);
    if constexpr (kPlace == BlockPlace::kSharedTree) {
      context_.AnnounceBlock();
      FetchIntervals(kind);
      context_.AwaitBlocks(kBeforeTree);  // from here on blocks may write to one another's tree
    }
    context_.SyncWarp(kAfterProgress);
    stages_ = EndOf(0);
    SolveAndUpdate(kind);
    Keep(progress());
    if (HasStopped(progress())) WriteFinalState();
  }

 private:
  static DEEPPCR_DEVICE BlockMemory MemoryOfBlock(Context& context, const NewtonArgs& args) {
    if constexpr (kPlace == BlockPlace::kShared) return {args.tree, W, context.shared()};
    const BlockMemory memory =
        MemoryInWorkspace(args.workspace, args.tree, W, context.cluster(), context.block());
    if constexpr (kPlace == BlockPlace::kSharedTree)
      return {args.tree, W, context.shared(), memory.base};
    return memory;
  }
  // Address in the tree of another block, or among its states, that corresponds to `local` in this
  // block's memory.
  template <class T>
  DEEPPCR_DEVICE T* RemoteTree(T* local, int block) const {
    if constexpr (kPlace != BlockPlace::kWorkspace) return context_.Remote(local, block);
    return InWorkspaceOf(local, block);
  }
  DEEPPCR_DEVICE float* RemoteState(float* local, int block) const {
    if constexpr (kPlace == BlockPlace::kShared) return context_.Remote(local, block);
    return InWorkspaceOf(local, block);
  }
  template <class T>
  DEEPPCR_DEVICE T* InWorkspaceOf(T* local, int block) const {
    const auto stride = static_cast<int64_t>(BlockMemory::Bytes(args_.tree, W));
    return reinterpret_cast<T*>(reinterpret_cast<std::byte*>(local) +
                                (block - context_.block()) * stride);
  }
  // Asks for what the warp is to update, after the last barrier of the cluster before that, as each
  // takes from the L1 what it has.
  DEEPPCR_DEVICE void PrefetchStates() {
    constexpr int kLine = 32, kLines = (kNumColumns * W - 1) / kLine + 2;
    for (int at = context_.lane();; at += kWarpSize) {
      const int32_t i = warp_ + at / (2 * kLines) * warps_;
      if (i >= count_) return;
      const int line = at % kLines * kLine, last = kNumColumns * W - 1;
      const float* const row = at / kLines % 2 == 0 ? memory_.State(i + 1) : memory_.Propagated(i);
      context_.Prefetch(row + (line < last ? line : last));
    }
  }
  // Copies what propagation made of the block's intervals to the leaves of its tree.
  DEEPPCR_DEVICE void FetchIntervals(IterationKind kind) {
    const BlockMemory from =
        MemoryInWorkspace(args_.workspace, tree_, W, context_.cluster(), context_.block());
    if (kind.linearization == Linearization::kFull)
      CopyRows<W * W, W * W>(from.Matrix(0), memory_.Matrix(0));
    if (kind.linearization == Linearization::kDiagonal)
      CopyRows<W, W * W>(from.Matrix(0), memory_.Matrix(0));
    constexpr int kVectors = kNumColumns * W;
    kind.vectors() == 1 ? CopyRows<W, kVectors>(from.Residual(0), memory_.Residual(0))
                        : CopyRows<kVectors, kVectors>(from.Residual(0), memory_.Residual(0));
    context_.CommitCopies();
    context_.template WaitForCopies<0>();
  }
  // Copies the first kFloats of kStride floats that each of the block's intervals has.
  template <int kFloats, int kStride>
  DEEPPCR_DEVICE void CopyRows(const float* from, float* to) const {
    constexpr int kFours = kFloats / 4;
    for (int at = context_.thread(); at < count_ * kFours; at += context_.num_threads()) {
      const int place = at / kFours * kStride + 4 * (at % kFours);
      context_.template CopyAsync<4>(from + place, to + place);
    }
  }

  DEEPPCR_DEVICE bool HasStopped(const Progress& progress) const {
    return context_.Uniform(static_cast<int>(progress.next)) == static_cast<int>(NextPass::kStop);
  }
  DEEPPCR_DEVICE IterationKind KindOf(const Progress& progress) const {
    Progress uniform;
    uniform.next = static_cast<NextPass>(context_.Uniform(static_cast<int>(progress.next)));
    uniform.probes = context_.Uniform(progress.probes ? 1 : 0) != 0;
    uniform.draws = context_.Uniform(progress.draws);
    return deeppcr::KindOf(uniform, args_.policy.linearization);
  }
  // The progress of the sample, of which every warp has a copy: as nothing asks for it during a
  // pass, it would only take registers from matrices.
  DEEPPCR_DEVICE Progress& progress() const { return memory_.OfWarps()[warp_]; }
  // Code of their own for the passes that a Newton solve is made of: it has no branches for the
  // others, which would be fetched in vain in every pass.
  DEEPPCR_DEVICE void SolveAndUpdate(IterationKind kind) {
    if (kind.linearization != Linearization::kFull) return SolveAndUpdateAs<false>(kind);
    kind.linearization = Linearization::kFull;
    SolveAndUpdateAs<true>(kind);
  }
  template <bool kFull>
  DEEPPCR_DEVICE void SolveAndUpdateAs(IterationKind kind) {
    const int32_t stop_word = StopWord();
    if (kind.linearization != Linearization::kZero) {
      UpSweep<kFull>(kind);
      DownSweep<kFull>(kind);
    }
    const WarpNorms outcome = Update<kFull>(kind, stop_word);
    if (context_.lane() == 0) Advance(kind, outcome);
    context_.SyncWarp(kAfterProgress);
  }
  // Takes in the outcome of a pass. By one lane of each warp.
  DEEPPCR_DEVICE void Advance(IterationKind kind, const WarpNorms& outcome) const {
    Progress next = progress();
    AdvanceProgress(args_.policy, outcome.norms.AsDoubles(), stages_,
                    kind.columns(args_.stack.state_dim), &next);
    if (outcome.stop_word != 0 && next.next != NextPass::kStop)
      Stop(&next, static_cast<Termination>(outcome.stop_word));
    CopyWords(next, &progress());
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
    CopyWords(progress, &args_.progress[context_.cluster()]);
    CopyWords(progress, &args_.outcomes[context_.cluster()]);
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
    for (int32_t i = warp_; i < count_; i += warps_) f(i);
  }
  // Calls f for every node of the block on a level up to the chain which is not the last of its
  // level, a warp each, of which `warp` is this one's place.
  template <class F>
  DEEPPCR_DEVICE void ForNodes(int level, int warp, const F& f) {
    const int32_t in_block = tree_.per_block >> level, first = first_ >> level;
    const int32_t nodes = tree_.nodes(level);
    for (int32_t k = warp; k < in_block && first + k + 1 < nodes; k += warps_) f(first + k);
  }

  // ---- The guess
  DEEPPCR_DEVICE void PlaceGuess() {
    const SampleGuess guess(args_.guess, args_.initial_states, context_.cluster(),
                            tree_.num_intervals, args_.stack.state_dim, W);
    const int32_t elements = count_ > 0 ? (count_ + 1) * W : 0;
    for (int32_t at = context_.thread(); at < elements; at += context_.num_threads()) {
      const int32_t i = at / W, p = first_ + i - 1, row = at % W;
      float* const y = memory_.State(i) + row;
      *y = guess.At(p, EndOf(p), row);
      for (int v = 1; v < kNumColumns; ++v) y[v * W] = 0.0F;
    }
    context_.SyncBlock(kAfterGuess);
  }

  // ---- (1) F_p, A_p and the probes
  DEEPPCR_DEVICE BlockIntervals<W, kPlace != BlockPlace::kShared, Context> Intervals() const {
    return {context_, args_, memory_, first_};
  }
  DEEPPCR_DEVICE void Propagate(IterationKind kind) {
    ForIntervals([&](int32_t i) {
      const int64_t p = first_ + i, begin = BeginOf(p);
      Intervals().Propagate(i, kind, begin, static_cast<int32_t>(EndOf(p) - begin));
    });
    stages_ += EndOf(0);
    // Where there is no tree, nothing else keeps a block from running ahead of blocks that still
    // read its data of the last pass.
    if (kind.linearization == Linearization::kZero) context_.SyncCluster(kAfterPropagate);
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
    AddProducts(Transition<W>(context_, linearization, matrix), x, sums);
  }
  template <int N>
  DEEPPCR_DEVICE void AddProducts(const Transition<W>& transition, const float (&x)[N],
                                  float (&sums)[N]) {
    DEEPPCR_UNROLL
    for (int v = 0; v < N; ++v) sums[v] += transition.Times(context_, x[v]);
  }
  DEEPPCR_DEVICE float* ResidualOf(int level, int32_t j) const {
    return memory_.Residual(tree_.index_of(level, j));
  }
  DEEPPCR_DEVICE float* MatrixOf(int level, int32_t j) const {
    return memory_.Matrix(tree_.index_of(level, j));
  }

  // Forms the nodes of the chain, whose intervals are the block's own, and shares them.
  template <bool kFull>
  DEEPPCR_DEVICE void UpSweep(IterationKind kind) {
    if (has_prefixes<kFull>()) {
      FormPrefixes(kind);
    } else {
      FormLevels(kind);
    }
    context_.SyncBlock(kAfterLocalReduce);
    ShareRoots<kFull>(kind);
    context_.SyncCluster(kAfterReduce);
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

  DEEPPCR_DEVICE void FormLevels(IterationKind kind) {
    for (int level = 1; level <= chain_level_; ++level) {
      context_.SyncBlock(kBeforeLevel);
      // Where there are more warps than nodes, some form matrices while others form vectors.
      if (FormsNodes(kind))
        ForNodes(level, warp_, [&](int32_t j) { ComposeNode(level, j, kind.linearization); });
      ForNodes(level, warps_ - 1 - warp_, [&](int32_t j) { ReduceNode(level, j, kind); });
      ++stages_;
    }
  }

  // Forms the prefixes of the block's intervals: vectors by the last warps, a warp a node and
  // vector, one interval after another; matrices by the first ones, in rounds.
  DEEPPCR_DEVICE void FormPrefixes(IterationKind kind) {
    if (chain_level_ == 0) return;
    context_.SyncBlock(kBeforePrefixes);
    const int32_t tasks = (tree_.per_block >> chain_level_) * kind.vectors();
    for (int32_t task = warps_ - 1 - warp_; task < tasks; task += warps_) {
      const int32_t node = kind.vectors() == 1 ? task : task / kNumColumns;
      AddUpVector(kind.linearization, node, task - node * kind.vectors());
    }
    stages_ += (1 << chain_level_) - 1;
    for (int round = 0; round < chain_level_ && kind.forms_matrices(); ++round) {
      if (round > 0) context_.SyncBlock(kBeforeRound);
      ComposePrefixes(round, kind.linearization);
    }
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

  // Takes the vectors through the chain, a warp each.
  template <bool kFull>
  DEEPPCR_DEVICE void DownSweep(IterationKind kind) {
    const int32_t last = (first_ + count_ - 1) >> chain_level_;
    for (int v = warp_; v < kind.vectors() && count_ > 0; v += warps_)
      WalkChain(kind.linearization, v, last);
    stages_ += tree_.nodes(chain_level_) - 1;
    if constexpr (kPlace == BlockPlace::kSharedTree) PrefetchStates();
    if (has_prefixes<kFull>()) {
      stages_ += chain_level_ > 0 ? 1 : 0;
    } else {
      for (int level = chain_level_ - 1; level >= 0; --level) {
        context_.SyncBlock(kBeforeLevelDown);
        kind.vectors() == 1 ? EnterLevel<1>(level, kind) : EnterLevel<kNumColumns>(level, kind);
        ++stages_;
      }
    }
    context_.SyncBlock(kAfterChain);
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
                         [&](int b) { return RemoteTree(memory_.ChainMatrix(j), b); });
      const auto place = [&](int b) { return RemoteTree(memory_.ChainResidual(j), b); };
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
  // Computes the vectors that enter interval i of the block.
  template <bool kFull, int N>
  DEEPPCR_DEVICE void EnterInterval(Linearization linearization, int32_t i, float (&d)[N]) {
    const int level = has_prefixes<kFull>() ? chain_level_ : 0;
    LoadEntering(level, (first_ + i) >> level, d);
    if (has_prefixes<kFull>()) EnterByPrefix(linearization, i, d);
  }

  // ---- (3) y_p <- F_p + A_p d_{p-1}
  template <bool kFull>
  DEEPPCR_DEVICE WarpNorms Update(IterationKind kind, int32_t stop_word) {
    WarpNorms mine;
    ForIntervals([&](int32_t i) {
      Merge(UpdateInterval<kFull>(i, kind), &mine.norms);
      if (i + 1 == tree_.per_block) ShareHalo(kind);
    });
    ++stages_;
    mine.stop_word = stop_word;
    if (context_.lane() == 0) memory_.Norms()[warp_] = mine;
    context_.SyncBlock(kAfterOwnNorms);
    if (warp_ == 0) ShareNorms();
    context_.SyncCluster(kAfterUpdate);
    return NormsOfCluster();
  }
  template <bool kFull>
  DEEPPCR_DEVICE RelativeNorms UpdateInterval(int32_t i, IterationKind kind) {
    const IntervalNorms norms =
        kind.vectors() == 1 ? UpdateAs<kFull, 1>(i, kind) : UpdateAs<kFull, kNumColumns>(i, kind);
    return RelativeNormsOf(MergeOfWarp(context_, norms), floor_);
  }
  template <bool kFull, int N>
  DEEPPCR_DEVICE IntervalNorms UpdateAs(int32_t i, IterationKind kind) {
    const int32_t p = first_ + i;
    // What the interval itself has is on its way while the vectors that enter it are computed.
    float corrections[N] = {}, propagated[N];
    DEEPPCR_UNROLL
    for (int v = 0; v < N; ++v) propagated[v] = memory_.Propagated(i)[v * W + row_];
    if (p > 0 && kind.linearization != Linearization::kZero) {
      const Transition<W> own(context_, kind.linearization, MatrixOf(0, p));
      float prefixes[N];
      EnterInterval<kFull>(kind.linearization, i, prefixes);
      AddProducts(own, prefixes, corrections);
    }
    IntervalUpdate update(kind);
    if (context_.lane() < W) {
      DEEPPCR_UNROLL
      for (int v = 0; v < N; ++v)
        update.Take(v, propagated[v], corrections[v], W, memory_.State(i + 1) + row_);
    }
    return update.norms();
  }

  // Gives the next block the last state of this one; in a confirmation, the columns beside that
  // state. By the warp that has updated it. All columns are loaded before the first is stored.
  DEEPPCR_DEVICE void ShareHalo(IterationKind kind) {
    if (context_.block() + 1 == tree_.num_blocks || context_.lane() >= W) return;
    const float* const last = memory_.State(tree_.per_block);
    float* const halo = RemoteState(memory_.State(0), context_.block() + 1);
    const int first = kind.confirms() ? kUpdateColumn : 0;
    const int end = kind.confirms() ? kBallColumn + 1 : kind.vectors();
    float columns[kNumColumns];
    DEEPPCR_UNROLL
    for (int v = 0; v < kNumColumns; ++v)
      if (v >= first && v < end) columns[v] = last[v * W + row_];
    DEEPPCR_UNROLL
    for (int v = 0; v < kNumColumns; ++v)
      if (v >= first && v < end) halo[v * W + row_] = columns[v];
  }

  // Merges the norms of the warps of the block and gives them to every block, by a warp, a lane
  // each.
  DEEPPCR_DEVICE void ShareNorms() {
    WarpNorms mine;
    if (context_.lane() < warps_) mine = memory_.Norms()[context_.lane()];
    const RelativeNorms all = MergeOfWarp(context_, mine.norms);
    const int32_t stop_word = context_.Shuffle(mine.stop_word, 0);
    if (context_.lane() < tree_.num_blocks)
      RemoteTree(memory_.NormsOfBlocks(), context_.lane())[context_.block()] = {all, stop_word};
  }
  // Merges the norms of the blocks, by every warp for itself. The first lane has the cancel word.
  DEEPPCR_DEVICE WarpNorms NormsOfCluster() {
    WarpNorms mine;
    if (context_.lane() < tree_.num_blocks) mine = memory_.NormsOfBlocks()[context_.lane()];
    return {MergeOfWarp(context_, mine.norms), mine.stop_word};
  }

  // ---- The answer
  DEEPPCR_DEVICE void WriteAnswer() {
    const int64_t sample = context_.cluster();
    if (context_.block() == 0 && context_.thread() == 0)
      CopyWords(progress(), &args_.outcomes[sample]);
    WriteFinalState();
    if (args_.trajectories != nullptr) ForIntervals([&](int32_t i) { WriteTrajectory(i); });
  }
  DEEPPCR_DEVICE void WriteFinalState() {
    const int32_t last = tree_.num_intervals - 1 - first_;
    if (last < 0 || last >= count_ || warp_ != last % warps_ || context_.lane() >= W) return;
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
  const int chain_level_;
  const int warp_, warps_;
  const int32_t first_;  // first interval of the block
  const int32_t count_;  // intervals of the block, at the end of the cluster fewer or none
  const int row_;
  const float floor_;
  int64_t stages_ = 0;  // stages of the pass, counted as its loops run
};

// Body of a launch of one cluster per sample, with BlockMemory::Bytes a block of shared memory or
// of the workspace. kPrefixes: HasPrefixes(args.tree). A kernel with both kinds of nodes would be
// so large that the compiler gives up on keeping a solve in registers.
template <int W, bool kInWorkspace, bool kPrefixes, class Context>
DEEPPCR_DEVICE void SolveNewtonAs(Context& context, const NewtonArgs& args) {
  constexpr BlockPlace kPlace = kInWorkspace ? BlockPlace::kWorkspace : BlockPlace::kShared;
  NewtonSolve<W, kPlace, kPrefixes, Context>(context, args).Run();
}
template <int W, bool kInWorkspace, class Context>
DEEPPCR_DEVICE void SolveNewton(Context& context, const NewtonArgs& args) {
  HasPrefixes(args.tree) ? SolveNewtonAs<W, kInWorkspace, true>(context, args)
                         : SolveNewtonAs<W, kInWorkspace, false>(context, args);
}

// Body of a launch of one cluster per sample for a part of a solve, in the workspace. kHoldsTree:
// args.holds_tree.
template <int W, bool kHoldsTree, class Context>
DEEPPCR_DEVICE void SolveNewtonInPartsAs(Context& context, const NewtonArgs& args) {
  constexpr BlockPlace kPlace = kHoldsTree ? BlockPlace::kSharedTree : BlockPlace::kWorkspace;
  NewtonSolve<W, kPlace, false, Context> solve(context, args);
  args.part == NewtonPart::kStart ? solve.Start() : solve.Pass();
}
template <int W, class Context>
DEEPPCR_DEVICE void SolveNewtonInParts(Context& context, const NewtonArgs& args) {
  args.holds_tree ? SolveNewtonInPartsAs<W, true>(context, args)
                  : SolveNewtonInPartsAs<W, false>(context, args);
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_LOOP_NEWTON_KERNEL_H_
