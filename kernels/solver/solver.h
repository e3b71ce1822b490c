// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_SOLVER_SOLVER_H_
#define DEEPPCR_KERNELS_SOLVER_SOLVER_H_

// Solvers run one group of samples in one space. Solvers are stateless: their data lives in
// GroupScratch.

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/backend/backend.h"
#include "kernels/base/cancel_token.h"
#include "kernels/iteration/stopping.h"
#include "kernels/solver/options.h"
#include "kernels/solver/progress.h"
#include "kernels/solver/report.h"

namespace deeppcr {

// True for a stop by deadline or cancellation: there is no answer then, and no answer is wanted.
constexpr bool StoppedFromOutside(Termination termination) {
  return termination == Termination::kDeadline || termination == Termination::kCancelled;
}

// One sample of a group, already encoded in the space under its index.
struct GroupSample {
  const CancelToken* token = nullptr;     // may be null
  ProgressListener* listener = nullptr;   // may be null
  int64_t index = 0;                      // within the run item, for the listener
  const float* initial_states = nullptr;  // [L + 1, D] for InitialGuess::kPrevious
  float* trajectory = nullptr;            // [L + 1, D], or null if not wanted
  SampleReport* report = nullptr;
};

// Memory of a running solver, allocated once for groups of up to `capacity` samples.
struct GroupScratch {
  explicit GroupScratch(int32_t capacity)
      : progress(capacity), members(capacity), norms(capacity), trajectories(capacity) {}
  std::vector<Progress> progress;
  std::vector<int32_t> members;
  std::vector<UpdateNorms> norms;
  std::vector<float*> trajectories;
};

// Trajectory pointers of the samples as backends take them: null if no sample wants one.
float* const* TrajectoriesOf(std::span<const GroupSample> samples, GroupScratch& scratch);

// Solves step by step. Leaves z_L as the current state of each sample and fills its report. A
// sample whose token fires ends with kDeadline or kCancelled; tokens are probed every few hundred
// microseconds.
void SolveSequentially(SolveSpace& space, const SystemShape& shape,
                       std::span<const GroupSample> samples, GroupScratch& scratch);

// The one iterative loop: Newton, quasi-Newton, Picard and Jacobi differ in
// options.policy.linearization alone.
struct FixedPointOptions {
  std::string_view solver;  // name of the solver, for the listener; static storage
  StoppingPolicy policy;
  int64_t shooting_interval = 1;
  InitialGuess initial_guess = InitialGuess::kConstant;
};

FixedPointOptions FixedPointOptionsOf(const ResolvedOptions& options, Linearization linearization,
                                      int64_t num_steps);

// Leaves y_P as the current state of each sample, converged or not, writes trajectories, and fills
// the reports.
void SolveFixedPoint(SolveSpace& space, const FixedPointOptions& options,
                     std::span<const GroupSample> samples, GroupScratch& scratch);

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_SOLVER_SOLVER_H_
