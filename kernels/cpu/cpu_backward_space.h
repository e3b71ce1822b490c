// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CPU_CPU_BACKWARD_SPACE_H_
#define DEEPPCR_KERNELS_CPU_CPU_BACKWARD_SPACE_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend/backend.h"
#include "kernels/cpu/recurrence.h"

namespace deeppcr::cpu {

// Memory of a backward space: P matrices [D, W] and P vectors [m, W] for the parallel way, in which
// a node of the tree takes the place of one of its intervals, and [samples, m, W]. Saturates at
// INT64_MAX.
int64_t CpuBackwardSpaceBytes(const PackedSystem& system, const BackwardLimits& limits);

// `system` must outlive the space. Errors: kResourceExhausted with the bytes wanted;
// kUnimplemented if the system was packed without its backward pass.
absl::StatusOr<std::unique_ptr<BackwardSpace>> NewCpuBackwardSpace(const PackedSystem& system,
                                                                   const BackwardLimits& limits);

}  // namespace deeppcr::cpu

#endif  // DEEPPCR_KERNELS_CPU_CPU_BACKWARD_SPACE_H_
