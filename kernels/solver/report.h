// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_SOLVER_REPORT_H_
#define DEEPPCR_KERNELS_SOLVER_REPORT_H_

#include <array>
#include <cstdint>
#include <string_view>

namespace deeppcr {

// Why a solve ended. Only the first two carry an answer that meets the tolerance.
enum class Termination : uint8_t {
  kDirect,     // no iteration: the sequential solver
  kConverged,  // the certificate holds
  kMaxIterations,
  kNonFinite,         // an overflow or NaN in the states
  kPrecisionLimited,  // what is left is rounding, and it exceeds the tolerance
  kSlow,              // under auto: more dependent stages than the sequential solver needs
  kDeadline,
  kCancelled,
};
inline constexpr std::array kTerminations = {
    Termination::kDirect,    Termination::kConverged,        Termination::kMaxIterations,
    Termination::kNonFinite, Termination::kPrecisionLimited, Termination::kSlow,
    Termination::kDeadline,  Termination::kCancelled,
};

// Names as on the wire and in metric labels: direct, converged, max_iterations, ...
std::string_view ToString(Termination termination);

// What one sample cost, and how good its answer is. Counts come from the loops as they run.
struct SampleReport {
  std::string_view solver = "sequential";  // whose answer it is; a name with static storage
  Termination termination = Termination::kDirect;
  bool converged = false;
  bool fallback = false;          // the sequential solver answered in place of the requested one
  int32_t iterations = 0;         // updates with newly evaluated transition matrices
  int32_t chord_corrections = 0;  // updates with reused ones
  int32_t confirmations = 0;      // passes from displaced states, to certify: no updates
  int32_t warm_sweeps = 0;
  int64_t dependent_stages = 0;
  int64_t column_passes = 0;  // vectors pushed through all L steps
  double error_estimate =
      0;  // of the states, relative to |y_p| + atol / rtol; 0 where not estimated
  double rounding_estimate = 0;      // the part of it that is rounding
  double output_error_estimate = 0;  // carried through the output layer
};

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_SOLVER_REPORT_H_
