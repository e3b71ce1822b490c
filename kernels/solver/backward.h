// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_SOLVER_BACKWARD_H_
#define DEEPPCR_KERNELS_SOLVER_BACKWARD_H_

#include <cstdint>
#include <span>

#include "kernels/backend/backend.h"

namespace deeppcr {

// Takes the samples of a group, which have begun and share a number of columns, back step by step.
// Stops, unfinished, once the tokens of all samples, which may be null, have fired.
PassCount GoBackSequentially(BackwardSpace& space, int64_t num_steps,
                             std::span<const CancelToken* const> tokens);

// Takes samples 0..n-1, which have begun, back by the transposed reverse scan over intervals of C
// steps; n is 1 where the space puts the scan's stages one after another. These are
// 2 C + 2 ceil(log2 P) - 1 for P >= 2 intervals, counted as the loops run; the scan stops,
// unfinished, where the token of its sample has fired. Scans on a device: see BackwardScan.
PassCount GoBackByScan(BackwardSpace& space, int32_t num_samples, int64_t shooting_interval);

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_SOLVER_BACKWARD_H_
