// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_RECURRENCE_H_
#define DEEPPCR_KERNELS_CUDA_RECURRENCE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/backend/backend.h"
#include "kernels/cuda/loop/block_recurrence.h"
#include "kernels/cuda/loop/block_shape.h"
#include "kernels/cuda/loop/newton_args.h"
#include "kernels/cuda/workspace.h"

namespace deeppcr::cuda {

// Propagation of the intervals of some samples: the members of `intervals`, counted from the sample
// `first` of the group.
struct Propagation {
  int64_t first = 0;
  IntervalsView intervals;
  int32_t num_members = 0;
  // Kind of the pass, where the host knows it; otherwise each member's progress, in the device's
  // memory, tells it, for a solver with this linearization.
  IterationKind kind;
  const Progress* progress = nullptr;
  Linearization linearization = Linearization::kFull;
};

// The steps of one family on a GPU: what a space asks of it, and what its loop does. Launches on
// the workspace's stream and waits for nothing. One thread at a time.
class Recurrence {
 public:
  virtual ~Recurrence() = default;

  // Allocates what the family has beside the workspace, which is allocated already and outlives
  // this object. Errors: kResourceExhausted.
  virtual absl::Status Allocate() { return absl::OkStatus(); }
  // The layers after the last step.
  virtual const DeviceChain& decode() const = 0;
  // See SolveSpace::StepsPerPoll.
  virtual int64_t StepsPerPoll(int32_t num_samples) const = 0;

  // Takes the input of a sample beyond its vector, which the workspace has.
  virtual void Encode(int32_t, const SampleInput&) {}
  // Guesses of the family, for the workspace's `guess`.
  virtual PassCount GuessCoarse() = 0;
  virtual void GuessAffine() = 0;

  // Computes z_0 of samples 0..n-1 into `initial`.
  virtual void LaunchEncode(int32_t num_samples) = 0;
  // Computes the data of the guess from `initial`, where the guess has data.
  virtual void LaunchGuess(int32_t) {}
  // Makes steps (begin, end] from `initial` (begin == 0) or `current` to `current`, and into
  // trajectories [n, L + 1, D], which may be null; the number of steps made goes to
  // `num_dependent`.
  virtual void LaunchSteps(int32_t num_samples, int64_t begin, int64_t end,
                           float* trajectories) = 0;
  virtual void LaunchPropagation(const Propagation& propagation) = 0;
  // Computes all states of samples first, ..., first + n - 1 into trajectories [n, L + 1, D].
  virtual void LaunchExpansion(int64_t first, const IntervalsView& intervals, int32_t num_samples,
                               float* trajectories) = 0;

  // The stack whose whole solve is one launch (newton_kernel.h); null for families whose passes are
  // launches of their own.
  virtual const StackView* whole_solve() const { return nullptr; }
  // The tree of a solve that is one launch over the whole GPU, a sample after the other; without
  // intervals, where no launch solves so.
  virtual IntervalTree grid_tree(const StoppingPolicy&) const { return {0, 1}; }
  // Launches the solve of a sample, whose `args.tree` is that tree.
  virtual void LaunchGridSolve(int64_t, const NewtonArgs&) {}
  // True if the host has to know the kind of each pass that it launches.
  virtual bool needs_kind() const { return false; }
};

// See System::SolvesAtOnce. Of most families no C is unlike the others.
template <class Model>
bool SolvesAtOnce(const LaunchLimits&, const Model&, int64_t) {
  return false;
}

// The launches of a Process of block_recurrence.h.
template <class Process>
class BlockRecurrence : public Recurrence {
 public:
  explicit BlockRecurrence(Workspace& work) : work_(work) {}

  // The process of samples first, first + 1, ...
  virtual Process ProcessFrom(int64_t first) const = 0;

  void LaunchSteps(int32_t num_samples, int64_t begin, int64_t end, float* trajectories) override {
    work_.stream->Launch(SequentialArgsOf(num_samples, begin, end, trajectories), num_samples);
  }
  void LaunchPropagation(const Propagation& propagation) override {
    work_.stream->Launch(ArgsOf(propagation), propagation.num_members);
  }
  void LaunchExpansion(int64_t first, const IntervalsView& intervals, int32_t num_samples,
                       float* trajectories) override {
    work_.stream->Launch(
        ExpansionArgs<Process>{
            .process = ProcessFrom(first), .intervals = intervals, .trajectories = trajectories},
        num_samples);
  }

 protected:
  BlockSequentialArgs<Process> SequentialArgsOf(int32_t num_samples, int64_t begin, int64_t end,
                                                float* trajectories) const {
    const Process process = ProcessFrom(0);
    return {.process = process,
            .team = ChooseTeams(process, num_samples, work_.limits),
            .num_samples = num_samples,
            .begin = begin,
            .end = end,
            .states = begin == 0 ? work_.initial.data() : work_.current.data(),
            .final_states = work_.current.data(),
            .trajectories = trajectories,
            .num_dependent = work_.num_dependent.data()};
  }
  PropagationArgs<Process> ArgsOf(const Propagation& propagation) const {
    return {.process = ProcessFrom(propagation.first),
            .intervals = propagation.intervals,
            .rows = RowsPerStep(),
            .progress = propagation.progress,
            .linearization = propagation.linearization,
            .kind = propagation.kind};
  }
  // Rows that a block takes through a step together.
  virtual int RowsPerStep() const = 0;

  Workspace& work_;
};

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_RECURRENCE_H_
