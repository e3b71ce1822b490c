// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_LOOP_NEWTON_KERNEL_H_
#define DEEPPCR_KERNELS_CUDA_LOOP_NEWTON_KERNEL_H_

// The whole Newton (or Picard) solve of a sample in one launch: a cluster of blocks holds the
// shooting intervals in its shared memory, or in global memory where there are too many, iterates,
// and decides on its own when to stop. Or a part of a solve, where other kernels propagate.
//
// Symbols as in kernels/backend/backend.h. A warp works on one interval or one node of the tree at
// a time (interval_scan.h); a pass waits for the cluster twice. States and vectors lie in shared
// memory as [columns, W]; warp_step.h says which elements a lane holds. The threads of a cluster
// make the same decisions from the same norms; in parts one of them decides.

#include <math.h>

#include <cstdint>

#include "kernels/cuda/loop/block_intervals.h"
#include "kernels/cuda/loop/block_memory.h"
#include "kernels/cuda/loop/interval_norms.h"
#include "kernels/cuda/loop/interval_scan.h"
#include "kernels/cuda/loop/interval_tree.h"
#include "kernels/cuda/loop/newton_args.h"
#include "kernels/cuda/loop/newton_shape.h"
#include "kernels/cuda/loop/placed_block.h"
#include "kernels/cuda/math/warp_matrix.h"
#include "kernels/cuda/runtime/copy_words.h"
#include "kernels/cuda/runtime/device_code.h"
#include "kernels/iteration/pass.h"
#include "kernels/iteration/stopping.h"

namespace deeppcr::cuda {

// Solve of a sample. kPrefixes: where transitions are full, the nodes of the chain are formed from
// their intervals at once, else over the levels of the tree.
template <int W, BlockPlace kPlace, bool kPrefixes, class Context>
class NewtonSolve {
 public:
  DEEPPCR_DEVICE NewtonSolve(Context& context, const NewtonArgs& args)
      : context_(context),
        args_(args),
        tree_(args.tree),
        place_(context, args),
        memory_(place_.memory()),
        warp_(context.Uniform(context.warp())),
        warps_(context.num_threads() / kWarpSize),
        first_(context.Uniform(context.block()) * args.tree.per_block),
        count_(Clamp(args.tree.num_intervals - first_)),
        row_(context.lane() % W),
        scan_(context, place_, args.tree, first_, count_),
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
      const IterationKind kind = KindOf(progress());
      const WarpNorms outcome = SolveAndUpdate(kind);
      if (context_.lane() == 0) Advance(kind, outcome);
      context_.SyncWarp(kAfterProgress);
    }
    WriteAnswer();
  }

  DEEPPCR_DEVICE void Start() {
    PlaceGuess();
    Keep(args_.start);
  }

  DEEPPCR_DEVICE void Pass() {
    Progress before;
    CopyWords(args_.progress[context_.cluster()], &before);
    // Newton's matrices are on their way while the progress is.
    const bool ahead = kPlace == BlockPlace::kSharedTree && IsNewton(args_.policy.linearization);
    if (ahead) place_.FetchMatrices(args_.policy.linearization, count_);
    if (HasStopped(before)) return place_.AwaitLeaves();
    const IterationKind kind = KindOf(before);
    if (Leads()) CopyWords(before, &progress());
    if constexpr (kPlace == BlockPlace::kSharedTree) {
      context_.AnnounceBlock();
      if (!ahead) place_.FetchMatrices(kind.linearization, count_);
      place_.FetchResiduals(kind, count_);
      place_.AwaitLeaves();
      context_.AwaitBlocks(kBeforeTree);  // from here on blocks may write to one another's tree
    }
    stages_ = EndOf(0);
    const WarpNorms outcome = SolveAndUpdate(kind);
    WriteFinalState();  // that of the last pass is the answer
    if (!Leads()) return;
    Advance(kind, outcome);
    Keep(progress());
  }

 private:
  static DEEPPCR_DEVICE bool IsNewton(Linearization linearization) {
    return linearization == Linearization::kFull;
  }
  // The thread that speaks for its cluster.
  DEEPPCR_DEVICE bool Leads() const { return context_.block() == 0 && context_.thread() == 0; }
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
  DEEPPCR_DEVICE WarpNorms SolveAndUpdate(IterationKind kind) {
    if (kind.linearization != Linearization::kFull) return SolveAndUpdateAs<false>(kind);
    kind.linearization = Linearization::kFull;
    return SolveAndUpdateAs<true>(kind);
  }
  template <bool kFull>
  DEEPPCR_DEVICE WarpNorms SolveAndUpdateAs(IterationKind kind) {
    const int32_t stop_word = StopWord();
    if (kind.linearization != Linearization::kZero) {
      stages_ += scan_.template UpSweep<kFull>(kind);
      stages_ += scan_.template DownSweep<kFull>(kind);
    }
    return Update<kFull>(kind, stop_word);
  }
  // Takes in the outcome of a pass. By one lane of each warp; in parts by the thread that leads.
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
    if (args_.cancel == nullptr || !Leads()) return 0;
    return context_.LoadVolatile(args_.cancel + context_.cluster());
  }
  // Stores the progress for the next part and for the host.
  DEEPPCR_DEVICE void Keep(const Progress& progress) const {
    if (!Leads()) return;
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
      const Transition<W> own(context_, kind.linearization, memory_.Matrix(i));
      float prefixes[N];
      scan_.template EnterInterval<kFull>(kind.linearization, i, prefixes);
      scan_.AddProducts(own, prefixes, corrections);
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
    float* const halo = place_.RemoteState(memory_.State(0), context_.block() + 1);
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
      place_.RemoteTree(memory_.NormsOfBlocks(), context_.lane())[context_.block()] = {all,
                                                                                       stop_word};
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
    if (Leads()) CopyWords(progress(), &args_.outcomes[sample]);
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
  const PlacedBlock<W, kPlace, Context> place_;
  const BlockMemory memory_;
  const int warp_, warps_;
  const int32_t first_;  // first interval of the block
  const int32_t count_;  // intervals of the block, at the end of the cluster fewer or none
  const int row_;
  IntervalScan<W, kPlace, kPrefixes, Context> scan_;
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

// Body of a launch of one cluster per sample for a part of a solve, whose states are in the
// workspace. kHoldsTree: args.holds_tree.
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
