// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CPU_PROGRAM_SYSTEM_H_
#define DEEPPCR_KERNELS_CPU_PROGRAM_SYSTEM_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cpu/kernel_set.h"
#include "kernels/cpu/packed_dense.h"
#include "kernels/cpu/program/packed_program.h"
#include "kernels/cpu/recurrence.h"

namespace deeppcr::cpu {

// A reverse process whose step is a program.
struct PackedProgramSystem final : public PackedSystem {
  int64_t memory_bytes() const override;
  int64_t RecurrenceBytes() const override;
  std::unique_ptr<Recurrence> NewRecurrence() const override;

  // Floats that a recurrence keeps for a sample: its noise, and what its condition gives.
  int64_t sample_floats() const {
    return program.condition.row_floats +
           shape.num_steps * (program.mixed.row_floats + program.state_input.width);
  }

  DenoiserKernels denoiser_kernels = {};
  ProgramKernels program_kernels = {};
  PackedProgram program;
  float clip_range = 0;
  std::vector<ReverseCoefficients> coefficients;  // [L]
  std::vector<HoldCoefficients> holds;            // [L]
  std::vector<PackedDense> decoder;
};

// Errors: as Backend::NewSystem.
absl::StatusOr<std::unique_ptr<PackedSystem>> PackProgramSystem(const DiffusionProgramSpec& spec,
                                                                const KernelSet& set,
                                                                const PackingLimits& limits);

}  // namespace deeppcr::cpu

#endif  // DEEPPCR_KERNELS_CPU_PROGRAM_SYSTEM_H_
