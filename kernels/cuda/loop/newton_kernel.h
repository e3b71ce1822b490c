// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_LOOP_NEWTON_KERNEL_H_
#define DEEPPCR_KERNELS_CUDA_LOOP_NEWTON_KERNEL_H_

// The whole Newton (or Picard) solve of a sample in one launch: a cluster of blocks holds the
// shooting intervals in its shared memory, or in global memory where there are too many, iterates,
// and decides on its own when to stop.
//
// Symbols as in kernels/backend/backend.h. A warp works on one interval or one node of the tree at
// a time. Transitions are composed up to at most kChainNodes nodes, within blocks; through these
// every block takes the vectors by itself, so that a pass waits for the cluster twice. States and
// vectors lie in shared memory as [columns, W]; warp_step.h says which elements a lane holds. Every
// thread of a cluster makes the same decisions from the same norms.

#include <math.h>

#include <cstdint>

#include "kernels/cuda/loop/block_memory.h"
#include "kernels/cuda/loop/chain_copy.h"
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
  kAfterGather,
  kAfterChain,
  kAfterOwnNorms,
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
        chain_level_(ChainLevel(args.tree)),
        warp_(context.Uniform(context.warp())),
        warps_(context.num_threads() / kWarpSize),
        first_(context.Uniform(context.block()) * args.tree.per_block),
        count_(Clamp(args.tree.num_intervals - first_)),
        row_(context.lane() % W),
        floor_(static_cast<float>(fmin(args.policy.floor(), double{kLargestFloat}))) {}

  DEEPPCR_DEVICE void Run() {
    if (context_.lane() == 0) progress() = args_.start;
    HoldLayers();
    PlaceGuess();
    while (!HasStopped(progress())) {
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
    if (HasStopped(before)) return;
    if (context_.lane() == 0) progress() = before;
    context_.SyncWarp(kAfterProgress);
    stages_ = EndOf(0);
    SolveAndUpdate(KindOf(progress()));
    Keep(progress());
    if (HasStopped(progress())) WriteFinalState();
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
    if (kind.linearization != Linearization::kFull) return SolveAndUpdateAs(kind);
    kind.linearization = Linearization::kFull;
    SolveAndUpdateAs(kind);
  }
  DEEPPCR_DEVICE void SolveAndUpdateAs(IterationKind kind) {
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
    AdvanceProgress(args_.policy, outcome.norms.AsDoubles(), stages_,
                    kind.columns(args_.stack.state_dim), &next);
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
    for (int32_t i = warp_; count_ > 0 && i <= count_; i += warps_) {
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
    // Other blocks walk the chain over these intervals if they are its nodes; and where there is no
    // tree, nothing else keeps a block from running ahead of blocks that still read its data of the
    // last pass.
    chain_level_ > 0 && kind.linearization != Linearization::kZero
        ? context_.SyncBlock(kAfterLocalPropagate)
        : context_.SyncCluster(kAfterPropagate);
  }

  DEEPPCR_DEVICE void PropagateInterval(int32_t i, IterationKind kind) {
    const int32_t p = first_ + i;
    // d_0 = 0: the first matrix is never used.
    float* const matrix =
        kind.forms_matrices() && p > 0 ? memory_.Matrix(tree_.index_of(0, p)) : nullptr;
    const float entry = EntryAt(kind.confirmation, memory_.State(i), W, p, row_);
    const bool full = matrix != nullptr && kind.linearization == Linearization::kFull;
    if (PiecewiseLinear::Covers(args_.stack.activation)) {
      const PiecewiseRule rule(args_.stack);
      full ? PropagateAs<true>(i, kind, rule, entry, matrix)
           : PropagateAs<false>(i, kind, rule, entry, matrix);
    } else {
      full ? PropagateAs<true>(i, kind, args_.stack, entry, matrix)
           : PropagateAs<false>(i, kind, args_.stack, entry, matrix);
    }
  }
  template <bool kFull, class Rule>
  DEEPPCR_DEVICE void PropagateAs(int32_t i, IterationKind kind, const Rule& rule, float entry,
                                  float* matrix) {
    const int32_t p = first_ + i;
    StackPropagation<W, kFull, Rule, Context> steps(
        context_, rule, kind, DrawOfSigns(0, kind.draw, args_.stack.num_steps), entry, matrix);
    const int64_t begin = BeginOf(p), end = EndOf(p);
    if (!kInWorkspace && args_.holds_layers) {
      steps.Run(HeldLayersOf(i), begin, end);
    } else {
      steps.Run(
          LayerRows<W, W>{args_.stack.weights + begin * W * W, args_.stack.biases + begin * W},
          begin, end);
    }
    if (context_.lane() >= W) return;
    const float y = EntryAt(kind.confirmation, memory_.State(i + 1), W, p + 1, row_);
    StorePropagated(i, 0, steps.state(), y);
    DEEPPCR_UNROLL
    for (int v = 0; v < kNumProbes && kind.probes; ++v)
      StorePropagated(i, 1 + v, steps.probe(v), 0.0F);
  }
  using HeldLayers = LayerRows<W, BlockMemory::HeldRow(W)>;
  DEEPPCR_DEVICE HeldLayers HeldLayersOf(int32_t i) const {
    const auto layers = static_cast<int32_t>(LayersOfBlock(tree_, args_.shooting_interval));
    HeldLayers held = {memory_.HeldWeights(),
                       memory_.HeldWeights() + layers * W * BlockMemory::HeldRow(W)};
    held.Advance(i * args_.shooting_interval);
    return held;
  }
  // Copies the layers of the block's intervals to shared memory, where they stay for the solve.
  DEEPPCR_DEVICE void HoldLayers() {
    if (kInWorkspace || !args_.holds_layers || count_ == 0) return;
    constexpr int kRow = BlockMemory::HeldRow(W), kFours = W / 4;
    const int64_t begin = BeginOf(first_);
    const auto layers = static_cast<int32_t>(EndOf(first_ + count_ - 1) - begin);
    const HeldLayers held = HeldLayersOf(0);
    float* const weights = memory_.HeldWeights();
    float* const biases = weights + (held.biases - held.weights);
    const float* const from = args_.stack.weights + begin * W * W;
    for (int32_t at = context_.thread(); at < layers * W * kFours; at += context_.num_threads())
      context_.template CopyAsync<4>(from + 4 * at,
                                     weights + at / kFours * kRow + 4 * (at % kFours));
    for (int32_t at = context_.thread(); at < layers * kFours; at += context_.num_threads())
      context_.template CopyAsync<4>(args_.stack.biases + begin * W + 4 * at, biases + 4 * at);
    context_.CommitCopies();
    context_.template WaitForCopies<0>();
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
  // The vectors that enter node j of the chain, one of the block.
  DEEPPCR_DEVICE float* PrefixOf(int32_t j) const {
    return memory_.Prefix(j - (first_ >> chain_level_));
  }
  DEEPPCR_DEVICE float* MatrixOf(int level, int32_t j) const {
    return memory_.Matrix(tree_.index_of(level, j));
  }

  // Forms the nodes up to the chain, whose children are the block's own.
  DEEPPCR_DEVICE void UpSweep(IterationKind kind) {
    for (int level = 1; level <= chain_level_; ++level) {
      // Where there are more warps than nodes, some form matrices while others form vectors.
      if (kind.forms_matrices())
        ForNodes(level, warp_, [&](int32_t j) { ComposeNode(level, j, kind.linearization); });
      ForNodes(level, warps_ - 1 - warp_, [&](int32_t j) { ReduceNode(level, j, kind); });
      ++stages_;
      level < chain_level_ ? context_.SyncBlock(kAfterLocalReduce)
                           : context_.SyncCluster(kAfterReduce);
    }
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
  DEEPPCR_DEVICE void DownSweep(IterationKind kind) {
    const int32_t last = (first_ + count_ - 1) >> chain_level_;
    if (count_ > 0) GatherChain(kind, last);
    context_.SyncBlock(kAfterGather);
    for (int v = warp_; v < kind.vectors() && count_ > 0; v += warps_)
      WalkChain(kind.linearization, v, last);
    stages_ += tree_.nodes(chain_level_) - 1 + chain_level_;
    context_.SyncBlock(kAfterChain);
  }

  // Copies the nodes of the chain before the block's last, from whichever block, by all threads:
  // one after another, on the way through the chain, each would be waited for. Matrices stay while
  // they are reused. d_0 = 0: the first node has no matrix.
  DEEPPCR_DEVICE void GatherChain(IterationKind kind, int32_t last) {
    if (kind.forms_matrices())
      CopyNodes<W * W>(
          context_, 1, last, [&](int32_t j) { return ChainNode<W * W>(memory_.Matrix(0), j); },
          memory_.ChainMatrix(0));
    CopyNodes<kNumColumns * W>(
        context_, 0, last,
        [&](int32_t j) { return ChainNode<kNumColumns * W>(memory_.Residual(0), j); },
        memory_.ChainResidual(0));
  }
  // Node j of the chain, of kFloats floats, in its block; `from` is a block's node 0.
  template <int kFloats>
  DEEPPCR_DEVICE const float* ChainNode(float* from, int32_t j) const {
    return Remote(from + tree_.index_of(chain_level_, j) * kFloats,
                  tree_.block_of(chain_level_, j));
  }
  // Takes vector v through the nodes of the chain, as far as the block's own, and stores what
  // enters these. Every block does so by itself, from the first node on: so it waits for other
  // blocks only once, and has the bits that they have.
  DEEPPCR_DEVICE void WalkChain(Linearization linearization, int v, int32_t last) {
    const int32_t own = first_ >> chain_level_;
    if (own == 0) StorePrefix(0, v, 0.0F);
    if (last == 0) return;
    const float* residual = memory_.ChainResidual(0) + v * W + row_;
    float d = *residual;
    if (own <= 1) StorePrefix(1, v, d);
    Transition<W> next(context_, linearization, memory_.ChainMatrix(1));
    for (int32_t j = 1; j < last; ++j) {
      // The node after this one is on its way meanwhile; that behind the last belongs to nobody.
      const Transition<W> transition = next;
      next = Transition<W>(context_, linearization, memory_.ChainMatrix(j + 1));
      residual += kNumColumns * W;
      d = *residual + transition.Times(context_, d);
      if (j + 1 >= own) StorePrefix(j + 1, v, d);
    }
  }
  // Stores what enters node j of the chain, one of the block.
  DEEPPCR_DEVICE void StorePrefix(int32_t j, int v, float d) const {
    if (context_.lane() < W) PrefixOf(j)[v * W + row_] = d;
  }
  // Computes the vectors that enter interval i of the block, from its node of the chain on: a left
  // node takes those of its parent, a right node those that have gone through the left node.
  template <int N>
  DEEPPCR_DEVICE void EnterInterval(Linearization linearization, int32_t i, float (&d)[N]) {
    const int32_t p = first_ + i;
    const float* const entering = PrefixOf(p >> chain_level_);
    DEEPPCR_UNROLL
    for (int v = 0; v < N; ++v) d[v] = entering[v * W + row_];
    for (int level = chain_level_ - 1; level >= 0; --level) {
      const int32_t left = (p >> level) - 1;
      if (left % 2 != 0) continue;
      const float* const residual = ResidualOf(level, left);
      float sums[N];
      DEEPPCR_UNROLL
      for (int v = 0; v < N; ++v) sums[v] = residual[v * W + row_];
      if (left > 0) AddProducts(linearization, MatrixOf(level, left), d, sums);
      DEEPPCR_UNROLL
      for (int v = 0; v < N; ++v) d[v] = sums[v];
    }
  }

  // ---- (3) y_p <- F_p + A_p d_{p-1}
  DEEPPCR_DEVICE WarpNorms Update(IterationKind kind, int32_t stop_word) {
    WarpNorms mine;
    ForIntervals([&](int32_t i) { Merge(UpdateInterval(i, kind), &mine.norms); });
    ++stages_;
    mine.stop_word = stop_word;
    if (context_.lane() == 0) memory_.Norms()[warp_] = mine;
    context_.SyncBlock(kAfterOwnNorms);
    if (warp_ == 0) MergeWarps();
    context_.SyncCluster(kAfterUpdate);
    if (warp_ == warps_ - 1) TakeHalo(kind);
    if (warp_ == 0) MergeBlocks();
    context_.SyncBlock(kAfterHalo);
    return memory_.ClusterNorms();
  }
  DEEPPCR_DEVICE RelativeNorms UpdateInterval(int32_t i, IterationKind kind) {
    const IntervalNorms norms =
        kind.vectors() == 1 ? UpdateAs<1>(i, kind) : UpdateAs<kNumColumns>(i, kind);
    return RelativeNormsOf(MergeOfWarp(context_, norms), floor_);
  }
  template <int N>
  DEEPPCR_DEVICE IntervalNorms UpdateAs(int32_t i, IterationKind kind) {
    const int32_t p = first_ + i;
    // What the interval itself has is on its way while the vectors that enter it are computed.
    float corrections[N] = {}, propagated[N];
    DEEPPCR_UNROLL
    for (int v = 0; v < N; ++v) propagated[v] = memory_.Propagated(i)[v * W + row_];
    if (p > 0 && kind.linearization != Linearization::kZero) {
      const Transition<W> own(context_, kind.linearization, MatrixOf(0, p));
      float prefixes[N];
      EnterInterval(kind.linearization, i, prefixes);
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

  // Takes the last state of the block before; in a confirmation, the columns beside that state. All
  // columns are loaded before the first is stored.
  DEEPPCR_DEVICE void TakeHalo(IterationKind kind) {
    if (first_ == 0 || count_ == 0) return;
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

  // Merge the norms of the warps of the block, and those of the blocks of the cluster, by a warp, a
  // lane each: all warps of a cluster that read all norms would wait for one another.
  DEEPPCR_DEVICE void MergeWarps() {
    WarpNorms mine;
    if (context_.lane() < warps_) mine = memory_.Norms()[context_.lane()];
    const RelativeNorms all = MergeOfWarp(context_, mine.norms);
    if (context_.lane() == 0) memory_.BlockNorms() = {all, mine.stop_word};
  }
  DEEPPCR_DEVICE void MergeBlocks() {
    WarpNorms mine;
    if (context_.lane() < tree_.num_blocks) mine = *Remote(&memory_.BlockNorms(), context_.lane());
    const RelativeNorms all = MergeOfWarp(context_, mine.norms);
    if (context_.lane() == 0) memory_.ClusterNorms() = {all, mine.stop_word};
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
