// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_SOLVER_BACKWARD_SLICES_H_
#define DEEPPCR_KERNELS_SOLVER_BACKWARD_SLICES_H_

#include <cstdint>
#include <span>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "kernels/solver/backward_item.h"
#include "kernels/solver/gradient_error.h"

namespace deeppcr {

// Takes items back in slices of some tens of milliseconds, but of no fewer than `least_rows`
// cotangents (BackwardLimits::busy_rows), as a request may have thousands of them, and calls
// `pause` after each slice but the last with the seconds that it took, so that a thread which does
// this can do something else in between. Results and reports are those of go_back(items).
// Allocates. Errors: those of `go_back`, after which nothing more is computed.
absl::Status GoBackInSlices(std::span<BackwardItem> items, int64_t least_rows,
                            GoBackFunction go_back, absl::FunctionRef<void(double seconds)> pause);

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_SOLVER_BACKWARD_SLICES_H_
