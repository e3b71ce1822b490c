// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CPU_CPU_BACKEND_H_
#define DEEPPCR_KERNELS_CPU_CPU_BACKEND_H_

#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/backend/backend.h"

namespace deeppcr::cpu {

// The instruction sets with kernels, oldest first. An answer's bits depend on which one runs.
enum class InstructionSet : uint8_t { kBaseline, kAvx2, kAvx512 };

// Newest instruction set that this machine has.
InstructionSet DetectInstructionSet();
// "baseline", "avx2", "avx512".
std::string_view ToString(InstructionSet set);

// The backend for one thread per space: samples go to threads, nothing is shared between spaces.
// DEEPPCR_CPU_ISA=baseline|avx2|avx512 in the environment asks for an older set.
// Errors: kUnavailable for a set that the machine lacks, kInvalidArgument for an unknown name.
absl::StatusOr<std::unique_ptr<Backend>> NewCpuBackend();
absl::StatusOr<std::unique_ptr<Backend>> NewCpuBackend(InstructionSet set);

}  // namespace deeppcr::cpu

#endif  // DEEPPCR_KERNELS_CPU_CPU_BACKEND_H_
