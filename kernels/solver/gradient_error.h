// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_SOLVER_GRADIENT_ERROR_H_
#define DEEPPCR_KERNELS_SOLVER_GRADIENT_ERROR_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/solver/backward_item.h"

namespace deeppcr {

// A way back, with the options of the one whose error is asked for.
using GoBackFunction = absl::FunctionRef<absl::Status(std::span<BackwardItem>)>;

// The error of a trajectory, in max norms, by state: relative (|z_l| + floor).
struct StateError {
  double relative = 0;  // SampleReport::error_estimate
  double floor = 0;     // atol / rtol of the solve
};

// Estimates what the error of a trajectory makes of its gradients: for each sample of `done`, which
// has gone back, the largest |g - g*| / |g|, max norms of each wanted result and cotangent, with g*
// the gradient at the exact trajectory.
//
// A gradient is that of the states z_0..z_L that were handed in. Of the error of these nothing but
// a size is known, so the sample goes back kDisplacements times more, at states that are displaced
// by that much or, every other time, by kDisplacedFactor times as much: twice all states in one
// direction, as errors that travel along the steps are, else each in its own. The estimate is the
// largest change, those of the smaller displacements times kDisplacedFactor. It is no bound: errors
// in other directions may do more, and cross other kinks.
//
// Absent where nothing can be said: state_errors[i] is absent, as for the sequential solver, by
// whose states others are judged; a gradient is so small that its terms underflow; all are zero; or
// the estimate is above 1, no digit of the gradient being sure. Zero where the error of the states
// is. Allocates. Errors: those of `go_back`, and kCancelled or kDeadlineExceeded where the token of
// `done` has fired.
absl::StatusOr<std::vector<std::optional<double>>> EstimateGradientErrors(
    int64_t state_dim, const BackwardItem& done,
    std::span<const std::optional<StateError>> state_errors, GoBackFunction go_back);

inline constexpr int kDisplacements = 8;
inline constexpr double kDisplacedFactor = 3;

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_SOLVER_GRADIENT_ERROR_H_
