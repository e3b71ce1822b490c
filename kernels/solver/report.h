// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_SOLVER_REPORT_H_
#define DEEPPCR_KERNELS_SOLVER_REPORT_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "kernels/iteration/termination.h"

namespace deeppcr {

// Report of an iterative solver on a sample that it gave up, so that the sequential solver took
// over. The fields are as in SampleReport.
struct Attempt {
  std::string_view solver;
  Termination termination = Termination::kDirect;
  int32_t iterations = 0;
  int32_t chord_corrections = 0;
  int32_t confirmations = 0;
  int32_t warm_sweeps = 0;
  std::optional<double> update;
  std::optional<double> error_estimate;  // set only if outputs of certified states overflowed
  std::optional<double> rounding_estimate;
};

// Cost of one sample's solve, and the quality of its answer. Counts come from the loops as they
// run, and include the counts of an attempt. A figure that was not found is absent.
struct SampleReport {
  std::string_view solver = "sequential";  // solver that answered; a name with static storage
  Termination termination = Termination::kDirect;
  bool converged = false;
  bool fallback = false;          // the sequential solver answered in place of the requested one
  int32_t iterations = 0;         // updates with newly evaluated transition matrices
  int32_t chord_corrections = 0;  // updates with reused transition matrices
  int32_t confirmations = 0;      // passes that try the states, to certify: no updates
  int32_t warm_sweeps = 0;
  int64_t dependent_stages = 0;
  int64_t column_passes = 0;  // vectors pushed through all L steps
  // Last update of an iterative solver, relative to |y_p| + atol / rtol; absent if states
  // overflowed.
  std::optional<double> update;
  // Error estimate of the states, relative to |y_p| + atol / rtol; set if an iterative solver
  // converged.
  std::optional<double> error_estimate;
  // Error estimate carried through the output layers, relative to the outputs; absent if the
  // outputs are zero.
  std::optional<double> output_error_estimate;
  // Rounding part of error_estimate; also set with kPrecisionLimited, which rounding causes.
  std::optional<double> rounding_estimate;
  Attempt attempt;  // the failed attempt before a fallback
};

struct SolveOptions;

// Status of a computed request, as its options want it: kCancelled, kDeadlineExceeded, and, for
// OnNoConvergence::kError, kAborted with the first sample that did not converge.
absl::Status JudgeReports(std::span<const SampleReport> reports, const SolveOptions& options);

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_SOLVER_REPORT_H_
