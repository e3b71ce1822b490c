// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_ITERATION_TERMINATION_H_
#define DEEPPCR_KERNELS_ITERATION_TERMINATION_H_

#include <array>
#include <cstdint>
#include <string_view>

namespace deeppcr {

// Reason why a solve ended. Only the first two carry an answer that meets the tolerance.
enum class Termination : uint8_t {
  kDirect,     // no iteration: the sequential solver
  kConverged,  // the certificate holds
  kMaxIterations,
  kNonFinite,         // an overflow or NaN in the states
  kPrecisionLimited,  // only rounding is left, and its bound exceeds the tolerance
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
constexpr std::string_view ToString(Termination termination) {
  switch (termination) {
    case Termination::kDirect:
      return "direct";
    case Termination::kConverged:
      return "converged";
    case Termination::kMaxIterations:
      return "max_iterations";
    case Termination::kNonFinite:
      return "non_finite";
    case Termination::kPrecisionLimited:
      return "precision_limited";
    case Termination::kSlow:
      return "slow";
    case Termination::kDeadline:
      return "deadline";
    case Termination::kCancelled:
      return "cancelled";
  }
  return "unknown";
}

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_ITERATION_TERMINATION_H_
