// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CPU_CPU_SYSTEM_H_
#define DEEPPCR_KERNELS_CPU_CPU_SYSTEM_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend/backend.h"
#include "kernels/cpu/kernel_set.h"

namespace deeppcr::cpu {

// Errors: as Backend::NewSystem.
absl::StatusOr<std::unique_ptr<System>> NewCpuSystem(const SystemSpec& spec, const KernelSet& set,
                                                     const PackingLimits& limits);

}  // namespace deeppcr::cpu

#endif  // DEEPPCR_KERNELS_CPU_CPU_SYSTEM_H_
