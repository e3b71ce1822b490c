// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_LOOP_GRID_SOLVE_H_
#define DEEPPCR_KERNELS_CUDA_LOOP_GRID_SOLVE_H_

// The whole Newton solve of a sample in one launch over the whole GPU, whose blocks propagate their
// own intervals in every pass, each a warp's at most. All decide on the next pass from the same
// norms.
//
// A block waits for others: for what the scan of a pass wants (grid_scan.h, helped_scan.h), and for
// the outcomes of all, which it gives a pass by an update of its own intervals.

#include <math.h>

#include <cstdint>

#include "kernels/cuda/loop/grid_places.h"
#include "kernels/cuda/loop/grid_sites.h"
#include "kernels/cuda/loop/interval_norms.h"
#include "kernels/cuda/loop/newton_args.h"
#include "kernels/cuda/math/rounding_source.h"
#include "kernels/cuda/runtime/copy_words.h"
#include "kernels/cuda/runtime/device_code.h"
#include "kernels/cuda/tuning.h"
#include "kernels/iteration/pass.h"
#include "kernels/iteration/stopping.h"

namespace deeppcr::cuda {

struct GridSolveArgs {
  NewtonArgs newton;  // of one sample; the tree is what the Scan takes
  GridPlaces places;
};

// What a block keeps from pass to pass, in shared memory.
struct GridProgress {
  Progress progress;
  uint32_t pass;                // passes made
  uint32_t number_of_matrices;  // of the last pass that formed some
  // Of the outcomes that each warp has awaited; the first of all has the stop word.
  RelativeNorms norms[kResidentWarps];
  int32_t stop_word;
  float floor;  // of relative norms
};

// Floats of shared memory of a block: the scan's, which propagation may have before, and what is
// kept.
constexpr int64_t GridSharedFloats(int64_t scan, int64_t propagation) {
  return ((scan > propagation ? scan : propagation) + 3) / 4 * 4;
}
constexpr int64_t GridSolveFloats(int64_t scan, int64_t propagation) {
  return GridSharedFloats(scan, propagation) +
         int64_t{sizeof(GridProgress)} / int64_t{sizeof(float)};
}

// What a pass makes of what propagation left. An object of its own for each pass: during
// propagation registers are for what is propagated.
//
// A Scan says how the system of a pass is solved (grid_scan.h, helped_scan.h):
//   kWidth, Context   W, and the context of a launch
//   Givers            blocks of a launch that have intervals: its first ones
//   first, count      the block's intervals, at most one for each of its warps
//   State(i), Propagated(i)   y at the start of interval i of the block, or at the end of the last
//                     one, and F at the end of interval i: [kNumColumns, W] each
//   kRowsOfLane, Row(q)   rows of an interval that a lane of its warp has
//   Run, Correct      the scan, and the correction of an interval by its warp
template <class Scan>
class GridPass {
 public:
  using Context = typename Scan::Context;
  static constexpr int W = Scan::kWidth;

  // `memory`: Scan::Floats of shared memory, aligned to 16 bytes.
  DEEPPCR_DEVICE GridPass(Context& context, const GridSolveArgs& args, float* memory,
                          GridProgress& kept)
      : context_(context),
        args_(args.newton),
        places_(args.places),
        kept_(kept),
        blocks_(Scan::Givers(context, args_.tree)),
        block_(context.Uniform(context.block())),
        warp_(context.Uniform(context.warp())),
        scan_(context, places_, args_, memory),
        first_(scan_.first()),
        count_(scan_.count()),
        own_norms_(reinterpret_cast<RelativeNorms*>(memory + Scan::Floats(args_) -
                                                    kResidentWarps * kNormFloats)) {}

  // ---- Before the first pass
  DEEPPCR_DEVICE void Start() {
    if (context_.thread() == 0) {
      CopyWords(args_.start, &kept_.progress);
      kept_.pass = 0;
      kept_.number_of_matrices = 0;
      kept_.floor = static_cast<float>(fmin(args_.policy.floor(), double{kLargestFloat}));
    }
    if (IsGiver()) PlaceGuess();
    context_.SyncBlock(kAfterGridGuess);
  }

  DEEPPCR_DEVICE bool HasStopped() const {
    return context_.Uniform(static_cast<int>(kept_.progress.next)) ==
           static_cast<int>(NextPass::kStop);
  }
  DEEPPCR_DEVICE IterationKind Kind() const {
    Progress uniform;
    uniform.next = static_cast<NextPass>(context_.Uniform(static_cast<int>(kept_.progress.next)));
    uniform.probes = context_.Uniform(kept_.progress.probes ? 1 : 0) != 0;
    uniform.draws = context_.Uniform(kept_.progress.draws);
    return KindOf(uniform, Linearization::kFull);
  }

  // ---- Behind propagation
  DEEPPCR_DEVICE void Run() {
    const IterationKind kind = Kind();
    const int32_t stop_word = StopWord();
    const uint32_t pass = kept_.pass + 1, number = places_.made + pass;
    const int32_t stages =
        args_.shooting_interval +
        scan_.Run(kind, number, kind.forms_matrices() ? number : kept_.number_of_matrices) + 1;
    Update(kind);
    if (IsGiver()) GiveOutcome(pass, stop_word);
    AwaitOutcomes(pass);
    if (context_.thread() == 0) {
      Advance(kind, stages, pass == kMostGridPasses);
      kept_.pass = pass;
      if (kind.forms_matrices()) kept_.number_of_matrices = number;
    }
    context_.SyncBlock(kAfterGridProgress);
  }

  // ---- Behind the last pass
  DEEPPCR_DEVICE void WriteAnswer() const {
    if (block_ == 0 && context_.thread() == 0) CopyWords(kept_.progress, args_.outcomes);
    if (block_ + 1 != blocks_) return;
    for (int i = context_.thread(); i < W; i += context_.num_threads())
      args_.final_states[i] = scan_.State(count_)[i];
  }

 private:
  static constexpr int kNormFloats = sizeof(RelativeNorms) / sizeof(float);
  static constexpr int kVectors = GridPlaces::VectorElements(W);

  // The cancel word, read by one thread from the host's memory, which takes long: well before all
  // blocks are told.
  DEEPPCR_DEVICE int32_t StopWord() const {
    if (args_.cancel == nullptr || block_ > 0 || context_.thread() > 0) return 0;
    return context_.LoadVolatile(args_.cancel);
  }
  DEEPPCR_DEVICE bool IsGiver() const { return !Scan::kHasHelpers || block_ < blocks_; }
  DEEPPCR_DEVICE int64_t EndOf(int64_t p) const {
    const int64_t end = (p + 1) * args_.shooting_interval;
    return end < args_.stack.num_steps ? end : args_.stack.num_steps;
  }

  DEEPPCR_DEVICE void PlaceGuess() {
    const SampleGuess guess(args_.guess, args_.initial_states, 0, args_.tree.num_intervals,
                            args_.stack.state_dim, W);
    for (int32_t at = context_.thread(); at < (count_ + 1) * W; at += context_.num_threads()) {
      const int32_t i = at / W, p = first_ + i - 1, row = at % W;
      float* const y = scan_.State(i) + row;
      *y = guess.At(p, EndOf(p), row);
      for (int v = 1; v < kNumColumns; ++v) y[v * W] = 0.0F;
    }
  }

  // ---- y_p <- F_p + A_p d_{p-1}
  DEEPPCR_DEVICE void Update(IterationKind kind) {
    RelativeNorms norms;
    if (warp_ < count_) {
      const IntervalNorms own =
          kind.vectors() == 1 ? UpdateAs<1>(kind) : UpdateAs<kNumColumns>(kind);
      norms = RelativeNormsOf(MergeOfWarp(context_, own), kept_.floor);
    }
    if (context_.lane() == 0) own_norms_[warp_] = norms;
    context_.SyncBlock(kAfterGridNorms);
  }
  template <int N>
  DEEPPCR_DEVICE IntervalNorms UpdateAs(IterationKind kind) {
    IntervalUpdate update(kind);
    DEEPPCR_UNROLL
    for (int q = 0; q < Scan::kRowsOfLane; ++q) {
      const int row = scan_.Row(q);
      float propagated[N], corrections[N] = {};
      DEEPPCR_UNROLL
      for (int v = 0; v < N; ++v) propagated[v] = scan_.Propagated(warp_)[v * W + row];
      if (first_ + warp_ > 0) scan_.Correct(q, corrections);
      if (context_.lane() >= W) continue;
      DEEPPCR_UNROLL
      for (int v = 0; v < N; ++v)
        update.Take(v, propagated[v], corrections[v], W, scan_.State(warp_ + 1) + row);
    }
    return update.norms();
  }

  // ---- The outcome of a pass
  // Gives all blocks the block's norms, by its first warp, and the next block its last state.
  DEEPPCR_DEVICE void GiveOutcome(uint32_t pass, int32_t stop_word) {
    const uint32_t number = places_.made + pass;
    uint64_t* const to = places_.Outcome(pass, block_, blocks_, W);
    if (warp_ == 0) {
      RelativeNorms mine;
      if (context_.lane() < kResidentWarps) mine = own_norms_[context_.lane()];
      const RelativeNorms all = MergeOfWarp(context_, mine);
      if (context_.lane() == 0) {
        const float elements[] = {all.update,
                                  all.rounding,
                                  all.combined,
                                  all.share,
                                  all.finite != 0 ? 1.0F : 0.0F,
                                  static_cast<float>(stop_word)};
        DEEPPCR_UNROLL
        for (int e = 0; e < GridPlaces::kNormElements; ++e)
          context_.StoreNumbered(to + e, elements[e], number);
      }
    }
    if (block_ + 1 == blocks_) return;
    const float* const last = scan_.State(count_);
    for (int i = context_.thread(); i < kVectors; i += context_.num_threads())
      context_.StoreNumbered(to + GridPlaces::kNormElements + i, last[i], number);
  }
  // Takes the norms of all blocks, a thread a block, and the last state of the block before.
  DEEPPCR_DEVICE void AwaitOutcomes(uint32_t pass) {
    const uint32_t number = places_.made + pass;
    const int thread = context_.thread();
    RelativeNorms mine;
    if (thread < blocks_) {
      const uint64_t* const from = places_.Outcome(pass, thread, blocks_, W);
      const uint64_t* const pairs[] = {from, from + 2, from + 4};
      float values[3][2];
      context_.AwaitAllNumbered(pairs, number, values, kForGridOutcomes);
      mine = {values[0][0], values[0][1], values[1][0], values[1][1], values[2][0] != 0.0F ? 1 : 0};
      if (thread == 0) kept_.stop_word = static_cast<int32_t>(values[2][1]);
    }
    const int pair = context_.num_threads() - 1 - thread;  // the first threads have most to do
    if (block_ > 0 && IsGiver() && 2 * pair < kVectors) {
      const uint64_t* const halo =
          places_.Outcome(pass, block_ - 1, blocks_, W) + GridPlaces::kNormElements;
      float values[2];
      context_.AwaitNumbered(halo + 2 * pair, number, values, kForGridHalo);
      scan_.State(0)[2 * pair] = values[0];
      scan_.State(0)[2 * pair + 1] = values[1];
    }
    const RelativeNorms merged = MergeOfWarp(context_, mine);
    if (context_.lane() == 0) kept_.norms[warp_] = merged;
    context_.SyncBlock(kAfterGridOutcomes);
  }
  DEEPPCR_DEVICE void Advance(IterationKind kind, int32_t stages, bool last) {
    RelativeNorms all;
    for (int w = 0; w < kResidentWarps; ++w) Merge(kept_.norms[w], &all);
    Progress next;
    CopyWords(kept_.progress, &next);
    AdvanceProgress(args_.policy, all.AsDoubles(), stages, kind.columns(args_.stack.state_dim),
                    &next);
    if (next.next != NextPass::kStop) {
      if (last) Stop(&next, Termination::kMaxIterations);
      if (kept_.stop_word != 0) Stop(&next, static_cast<Termination>(kept_.stop_word));
    }
    CopyWords(next, &kept_.progress);
  }

  Context& context_;
  const NewtonArgs& args_;
  const GridPlaces places_;
  GridProgress& kept_;
  const int blocks_, block_, warp_;  // blocks that have intervals
  Scan scan_;
  const int32_t first_, count_;  // the block's intervals
  RelativeNorms* const own_norms_;
};

// Body of a launch of blocks of kResidentWarps side by side. propagate(kind) takes a block's
// intervals through their steps, to where the scan finds them. `memory`: GridSolveFloats of shared
// memory, aligned to 16 bytes, of which `propagate` has `propagation`.
template <class Scan, class Context, class Propagate>
DEEPPCR_DEVICE void SolveOverGrid(Context& context, const GridSolveArgs& args, float* memory,
                                  int64_t propagation, const Propagate& propagate) {
  using Pass = GridPass<Scan>;
  GridProgress& kept = *reinterpret_cast<GridProgress*>(
      memory + GridSharedFloats(Scan::Floats(args.newton), propagation));
  Pass(context, args, memory, kept).Start();
  while (!Pass(context, args, memory, kept).HasStopped()) {
    propagate(Pass(context, args, memory, kept).Kind());
    context.SyncBlock(kAfterGridPropagation);
    Pass(context, args, memory, kept).Run();
  }
  Pass(context, args, memory, kept).WriteAnswer();
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_LOOP_GRID_SOLVE_H_
