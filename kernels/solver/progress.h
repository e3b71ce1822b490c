// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_SOLVER_PROGRESS_H_
#define DEEPPCR_KERNELS_SOLVER_PROGRESS_H_

#include <cstdint>
#include <optional>
#include <string_view>

namespace deeppcr {

// How far the solve of one sample has come.
struct SolveProgress {
  int64_t sample = 0;       // of the run item
  std::string_view solver;  // that is at work: sequential after a fallback; static storage
  int64_t steps = 0;        // of the sequential solver: made so far, in [0, L]
  int32_t iterations = 0;   // of an iterative one: updates so far, of any kind
  // Of an iterative one, as in SampleReport: the last update, and the estimate once it converged.
  std::optional<double> update;
  std::optional<double> error_estimate;
};

// Told after every update, and every few hundred microseconds of a sequential solve.
class ProgressListener {
 public:
  virtual ~ProgressListener() = default;
  // Called by the thread that computes, for different samples by several at a time. Must neither
  // block nor throw.
  virtual void OnProgress(const SolveProgress& progress) = 0;
};

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_SOLVER_PROGRESS_H_
