// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CPU_CPU_SPACE_H_
#define DEEPPCR_KERNELS_CPU_CPU_SPACE_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend/backend.h"
#include "kernels/cpu/recurrence.h"

namespace deeppcr::cpu {

// Memory of a space: one sample in iterative mode, PackedSystem::group in sequential mode.
// Saturates at INT64_MAX.
int64_t CpuSpaceBytes(const PackedSystem& system, const SpaceLimits& limits);

// `system` must outlive the space. Errors: kResourceExhausted with the bytes wanted.
absl::StatusOr<std::unique_ptr<SolveSpace>> NewCpuSpace(const PackedSystem& system,
                                                        const SpaceLimits& limits);

}  // namespace deeppcr::cpu

#endif  // DEEPPCR_KERNELS_CPU_CPU_SPACE_H_
