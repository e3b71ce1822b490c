// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_SOLVER_PROGRESS_H_
#define DEEPPCR_KERNELS_SOLVER_PROGRESS_H_

#include <cstdint>
#include <optional>
#include <string_view>

namespace deeppcr {

// Progress of the solve of one sample.
struct SolveProgress {
  int64_t sample = 0;       // index within the run item
  std::string_view solver;  // solver at work: sequential after a fallback; static storage
  int64_t steps = 0;        // steps of the sequential solver so far, in [0, L]
  int32_t updates = 0;      // of an iterative solver so far, of any kind
  // Last update of an iterative solver, and its estimate once it converged, as in SampleReport.
  std::optional<double> update;
  std::optional<double> error_estimate;
};

// Listener that is told after every update, and every few hundred microseconds of a sequential
// solve.
class ProgressListener {
 public:
  virtual ~ProgressListener() = default;
  // Called by the thread that computes, for different samples by several at a time. Must neither
  // block nor throw.
  virtual void OnProgress(const SolveProgress& progress) = 0;
};

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_SOLVER_PROGRESS_H_
