// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_SOLVER_REPORT_H_
#define DEEPPCR_KERNELS_SOLVER_REPORT_H_

#include <cstdint>
#include <optional>
#include <string_view>

#include "kernels/iteration/termination.h"

namespace deeppcr {

// What an iterative solver knew of a sample when it gave up, and the sequential one took over. The
// fields are as in SampleReport.
struct Attempt {
  std::string_view solver;
  Termination termination = Termination::kDirect;
  int32_t iterations = 0;
  int32_t chord_corrections = 0;
  int32_t confirmations = 0;
  int32_t warm_sweeps = 0;
  std::optional<double> update;
  std::optional<double> error_estimate;  // only of states whose outputs overflowed
  std::optional<double> rounding_estimate;
};

// What one sample cost, and how good its answer is. Counts come from the loops as they run, and
// include those of an attempt. A figure that was not found is absent: no number stands for it.
struct SampleReport {
  std::string_view solver = "sequential";  // whose answer it is; a name with static storage
  Termination termination = Termination::kDirect;
  bool converged = false;
  bool fallback = false;          // the sequential solver answered in place of the requested one
  int32_t iterations = 0;         // updates with newly evaluated transition matrices
  int32_t chord_corrections = 0;  // updates with reused ones
  int32_t confirmations = 0;      // passes that try the states, to certify: no updates
  int32_t warm_sweeps = 0;
  int64_t dependent_stages = 0;
  int64_t column_passes = 0;  // vectors pushed through all L steps
  // The last update of an iterative solver, relative to |y_p| + atol / rtol. Of states that
  // overflowed there is none.
  std::optional<double> update;
  // Of the states, relative likewise; of an iterative solver that converged.
  std::optional<double> error_estimate;
  // The same carried through the output layer, relative to its outputs: none of outputs that are
  // zero.
  std::optional<double> output_error_estimate;
  // The part of error_estimate that is rounding; also with kPrecisionLimited, whose reason it is.
  std::optional<double> rounding_estimate;
  Attempt attempt;  // of a fallback
};

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_SOLVER_REPORT_H_
