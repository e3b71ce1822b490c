// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_LOOP_BLOCK_RECURRENCE_H_
#define DEEPPCR_KERNELS_CUDA_LOOP_BLOCK_RECURRENCE_H_

// The steps of a recurrence whose layers need a block of threads or more: the sequential solver,
// propagation of all shooting intervals, and the states between the ends of intervals. A team
// (team.h) makes the steps of one sample, a block those of one interval.
//
// A Process is a recurrence in the device's memory:
//   num_steps (L), state_dim (D), width (W: D padded)
//   StepsOf(sample, draw)  the steps of one sample, with signs of probes of this draw (0 if left
//                          out): At(l) has the data of step l, Prefetch(team, l) asks for the data
//                          of later steps ahead of its use
//   StepFloats(rows)       floats of shared memory of steps of `rows` rows
//   NewStep<S>(team, memory, rows, probes)   makes steps of up to S rows: State(r, i) is element
//                          i < cols() of row r, where cols() >= W, to be zero beyond D;
//                          Run(steps.At(l)) takes all rows through step l and synchronises the
//                          team
//   NewSoleStep(team, memory)   as NewStep, for steps of one state
//   kHasDiagonals          steps can keep the diagonal of a single step's Jacobian:
//   KeepDiagonal(to)
// Row 0 is a state, then come the probes if they are carried, then columns of the Jacobian.

#include <cstdint>

#include "kernels/cuda/loop/block_memory.h"
#include "kernels/cuda/loop/interval_norms.h"
#include "kernels/cuda/loop/interval_tree.h"
#include "kernels/cuda/math/team.h"
#include "kernels/cuda/runtime/device_code.h"
#include "kernels/cuda/tuning.h"
#include "kernels/iteration/pass.h"
#include "kernels/iteration/stopping.h"

namespace deeppcr::cuda {

// The barrier calls of these kernels.
enum BlockSite : int {
  kAfterInitialState = 16,  // beyond those of the Newton kernel
  kAfterCoarseState,
  kAfterHolds,
  kAfterColumns,
  kNumBlockSites,
};

// Copies a state [W] into row r of a step.
template <class Context, class Step>
DEEPPCR_DEVICE void PlaceState(Context& context, const float* from, int r, const Step& step,
                               int width) {
  for (int i = context.thread(); i < step.cols(); i += context.num_threads())
    step.State(r, i) = i < width ? from[i] : 0.0F;
}
// Writes row r of a step as z_l of a sample's trajectory.
template <class Context, class Step>
DEEPPCR_DEVICE void WriteState(Context& context, const Step& step, int dim, float* to, int r = 0) {
  for (int i = context.thread(); i < dim; i += context.num_threads()) to[i] = step.State(r, i);
}
template <class Context>
DEEPPCR_DEVICE float* SharedFloats(Context& context) {
  return reinterpret_cast<float*>(context.shared());
}

// ---- Sequential
// Shape of teams: blocks of a team, and samples that it takes together.
struct TeamShape {
  int32_t num_blocks, samples;
  constexpr int teams(int num_samples) const { return (num_samples + samples - 1) / samples; }
};

template <class Process>
struct BlockSequentialArgs {
  Process process;
  TeamShape team;
  int32_t num_samples;     // n
  int64_t begin, end;      // 0 <= begin < end <= L
  const float* states;     // z_begin [n, W], zero beyond D
  float* final_states;     // z_end [n, W], zero beyond D; may be `states`
  float* trajectories;     // z_0..z_L [n, L + 1, D], of which begin..end are written, or null
  int64_t* num_dependent;  // steps made, one after another, by the first sample
};

// Makes the steps of a sample by `step`.
template <class Process, class Team, class Step>
DEEPPCR_DEVICE void SolveSample(const Team& team, const BlockSequentialArgs<Process>& args,
                                int64_t sample, Step& step) {
  const Process& process = args.process;
  auto& context = team.context();
  const int64_t dim = process.state_dim;
  const int width = process.width;
  float* const trajectory = args.trajectories == nullptr || !team.leads()
                                ? nullptr
                                : args.trajectories + sample * (process.num_steps + 1) * dim;
  PlaceState(context, args.states + sample * width, 0, step, width);
  team.Sync(kAfterInitialState);
  if (trajectory != nullptr && args.begin == 0) WriteState(context, step, dim, trajectory);
  const auto steps = process.StepsOf(sample);
  int64_t made = 0;
  for (int64_t l = args.begin; l < args.end; ++l, ++made) {
    steps.Prefetch(team, l);
    step.Run(steps.At(l));
    if (trajectory != nullptr) WriteState(context, step, dim, trajectory + (l + 1) * dim);
  }
  if (!team.leads()) return;
  WriteState(context, step, width, args.final_states + sample * width);
  if (sample == 0 && context.thread() == 0) *args.num_dependent = made;
}

// Body of a launch of one team per sample (team.samples == 1), with StepFloats(1) of shared memory
// a block.
template <class Process, class Team>
DEEPPCR_DEVICE void SolveByTeams(const Team& team, const BlockSequentialArgs<Process>& args) {
  auto step = args.process.NewSoleStep(team, SharedFloats(team.context()));
  SolveSample(team, args, team.context().cluster(), step);
}

// ---- Shooting intervals
// Arguments that launches over the intervals of samples share.
struct IntervalsView {
  IntervalTree tree;
  int32_t shooting_interval;  // C
  Members members;
  std::byte* workspace;  // [n, tree.num_blocks, BlockMemory::Bytes]
};

// An interval of a sample, and the memory of its states and matrices.
struct BlockInterval {
  int64_t sample;
  int32_t interval;  // p - 1
  int32_t local;     // index in the memory
  BlockMemory memory;
  int64_t begin, end;  // steps of the interval

  template <class Process>
  DEEPPCR_DEVICE BlockInterval(const IntervalsView& view, const Process& process, int64_t sample_,
                               int32_t interval_)
      : sample(sample_),
        interval(interval_),
        local(interval & (view.tree.per_block - 1)),
        memory(MemoryInWorkspace(view.workspace, view.tree, process.width, sample,
                                 view.tree.block_of(0, interval))),
        begin(int64_t{interval} * view.shooting_interval),
        end(begin + view.shooting_interval < process.num_steps ? begin + view.shooting_interval
                                                               : process.num_steps) {}
  // Interval of a block of threads, in a launch of one block per sample and interval.
  template <class Context, class Process>
  DEEPPCR_DEVICE BlockInterval(Context& context, const IntervalsView& view, const Process& process)
      : BlockInterval(view, process, view.members.at[context.cluster() / view.tree.num_intervals],
                      context.cluster() % view.tree.num_intervals) {}

  // Element i of the states at both ends of the interval, as the pass takes these states.
  DEEPPCR_DEVICE float EntryAt(Confirmation confirmation, int i, int width) const {
    return cuda::EntryAt(confirmation, memory.State(local), width, interval, i);
  }
  DEEPPCR_DEVICE float EndAt(Confirmation confirmation, int i, int width) const {
    return cuda::EntryAt(confirmation, memory.State(local + 1), width, interval + 1, i);
  }
};

// Copies the state that enters an interval into row r of `step`, zeros beyond.
template <class Context, class Step>
DEEPPCR_DEVICE void PlaceEntry(Context& context, const BlockInterval& at, Confirmation confirmation,
                               int r, const Step& step, int width) {
  for (int i = context.thread(); i < step.cols(); i += context.num_threads())
    step.State(r, i) = i < width ? at.EntryAt(confirmation, i, width) : 0.0F;
}

// ---- Propagation
template <class Process>
struct PropagationArgs {
  Process process;
  IntervalsView intervals;
  int32_t rows;                 // rows that a block's shared memory holds: [2, kMostStepRows]
  const Progress* progress;     // [n]: gives the kind of the pass; null: `kind` does
  Linearization linearization;  // the policy's, used with progress
  IterationKind kind;
};

template <int S, class Process, class Context>
class IntervalPropagation {
 public:
  DEEPPCR_DEVICE IntervalPropagation(Context& context, const PropagationArgs<Process>& args)
      : context_(context),
        args_(args),
        dim_(args.process.state_dim),
        width_(args.process.width),
        at_(context, args.intervals, args.process),
        leaf_(args.intervals.tree.index_of(0, at_.interval)) {}

  DEEPPCR_DEVICE void Run() {
    IterationKind kind = args_.kind;
    if (args_.progress != nullptr) {
      const Progress& progress = args_.progress[at_.sample];
      if (progress.next == NextPass::kStop) return;
      kind = KindOf(progress, args_.linearization);
    }
    confirmation_ = kind.confirmation;
    draw_ = kind.draw;
    const int probes = kind.probes ? kNumProbes : 0;
    // d_0 = 0: the first matrix is never used.
    const bool matrix = kind.forms_matrices() && at_.interval > 0;
    if (matrix && kind.linearization == Linearization::kFull) return Columns(probes);
    float* const diagonal = matrix ? at_.memory.Matrix(leaf_) : nullptr;
    probes == 0 ? Rows<1>(0, 0, 0, diagonal) : Rows<1 + kNumProbes>(probes, 0, 0, diagonal);
  }

 private:
  // Computes the columns of the matrix. Columns that do not fit go along with the state again.
  DEEPPCR_DEVICE void Columns(int probes) {
    for (int done = 0, with = probes; done < dim_; with = 0) {
      // Fewer rows lie elsewhere, where another thread may read those before still.
      if (done > 0) context_.SyncBlock(kAfterColumns);
      const int room = args_.rows - 1 - with;
      const int count = dim_ - done < room ? dim_ - done : room;
      Rows<S>(with, done, count, nullptr);
      done += count;
    }
  }

  // Propagates the state with its probes and `count` columns of the matrix from `first` on;
  // `diagonal` is null if no diagonal is wanted.
  template <int kRows>
  DEEPPCR_DEVICE void Rows(int probes, int first, int count, float* diagonal) {
    auto step = args_.process.template NewStep<kRows>(BlockTeam(context_), SharedFloats(context_),
                                                      1 + probes + count, probes > 0);
    if constexpr (Process::kHasDiagonals) step.KeepDiagonal(diagonal);
    Place(step, probes, first, count);
    context_.SyncBlock(kAfterInitialState);
    const auto steps = args_.process.StepsOf(at_.sample, draw_);
    for (int64_t l = at_.begin; l < at_.end; ++l) step.Run(steps.At(l));
    Take(step, probes, first, count);
  }

  template <class Step>
  DEEPPCR_DEVICE void Place(const Step& step, int probes, int first, int count) {
    PlaceEntry(context_, at_, confirmation_, 0, step, width_);
    for (int r = 1; r <= probes; ++r) {
      for (int i = context_.thread(); i < step.cols(); i += context_.num_threads())
        step.State(r, i) = 0.0F;
    }
    for (int j = 0; j < count; ++j) {
      for (int i = context_.thread(); i < step.cols(); i += context_.num_threads())
        step.State(1 + probes + j, i) = i == first + j ? 1.0F : 0.0F;
    }
  }
  template <class Step>
  DEEPPCR_DEVICE void Take(const Step& step, int probes, int first, int count) {
    float* const propagated = at_.memory.Propagated(at_.local);
    float* const residual = at_.memory.Residual(leaf_);
    for (int i = context_.thread(); i < width_; i += context_.num_threads()) {
      for (int r = 0; r <= probes; ++r) {
        propagated[r * width_ + i] = step.State(r, i);
        residual[r * width_ + i] =
            r == 0 ? step.State(r, i) - at_.EndAt(confirmation_, i, width_) : step.State(r, i);
      }
      float* const row = at_.memory.Matrix(leaf_) + i * width_;
      for (int j = 0; j < count; ++j) row[first + j] = step.State(1 + probes + j, i);
      for (int j = dim_; j < width_ && count > 0; ++j) row[j] = 0.0F;
    }
  }

  Context& context_;
  const PropagationArgs<Process>& args_;
  const int dim_, width_;
  const BlockInterval at_;
  const int32_t leaf_;
  Confirmation confirmation_ = Confirmation::kNone;
  int32_t draw_ = 0;
};

// Body of a launch of one block per sample and interval, with StepFloats(rows) of shared memory;
// rows <= S.
template <int S, class Process, class Context>
DEEPPCR_DEVICE void PropagateIntervals(Context& context, const PropagationArgs<Process>& args) {
  IntervalPropagation<S, Process, Context>(context, args).Run();
}

// ---- The states within intervals
template <class Process>
struct ExpansionArgs {
  Process process;
  IntervalsView intervals;
  float* trajectories;  // z_0..z_L [n, L + 1, D]
};

// Body of a launch of one block per sample and interval: z_l of the interval, propagated from its
// entry, and at its end y_p itself. Shared memory as for the sequential solver.
template <class Process, class Context>
DEEPPCR_DEVICE void ExpandIntervals(Context& context, const ExpansionArgs<Process>& args) {
  const Process& process = args.process;
  const int64_t dim = process.state_dim;
  const BlockInterval at(context, args.intervals, process);
  float* const to = args.trajectories + at.sample * (process.num_steps + 1) * dim;
  auto step = process.NewSoleStep(BlockTeam(context), SharedFloats(context));
  PlaceState(context, at.memory.State(at.local), 0, step, process.width);
  context.SyncBlock(kAfterInitialState);
  if (at.interval == 0) WriteState(context, step, dim, to);
  const auto steps = process.StepsOf(at.sample);
  for (int64_t l = at.begin; l + 1 < at.end; ++l) {
    step.Run(steps.At(l));
    WriteState(context, step, dim, to + (l + 1) * dim);
  }
  for (int i = context.thread(); i < dim; i += context.num_threads())
    to[at.end * dim + i] = at.memory.State(at.local + 1)[i];
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_LOOP_BLOCK_RECURRENCE_H_
