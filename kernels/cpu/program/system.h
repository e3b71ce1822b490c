// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CPU_PROGRAM_SYSTEM_H_
#define DEEPPCR_KERNELS_CPU_PROGRAM_SYSTEM_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cpu/kernel_set.h"
#include "kernels/cpu/packed_dense.h"
#include "kernels/cpu/program/executor.h"
#include "kernels/cpu/program/packed_program.h"
#include "kernels/cpu/recurrence.h"

namespace deeppcr::cpu {

// A recurrence whose step is a program: a reverse process, or a stack of blocks, which has neither
// coefficients nor conditions.
struct PackedProgramSystem final : public PackedSystem {
  int64_t memory_bytes() const override;
  int64_t RecurrenceBytes() const override;
  std::unique_ptr<Recurrence> NewRecurrence() const override;
  int64_t BackwardRecurrenceBytes(const BackwardLimits& limits) const override;
  std::unique_ptr<BackwardRecurrence> NewBackwardRecurrence(
      const BackwardLimits& limits) const override;

  // What a condition gives: a row for all steps, then a row for each.
  int64_t condition_floats() const {
    return program.condition.row_floats + shape.num_steps * program.mixed.row_floats;
  }
  // True if the recurrence computes these rows for each sample; else `classes` has them.
  bool condition_per_sample() const { return condition_floats() > 0 && classes.size() == 0; }
  // What a row of step `step`, counted from 0, reads, with the rows of its condition; without its
  // noise.
  RowContext ContextOf(int64_t step, const float* condition_rows) const;
  // The same with the row for all steps and that for this one.
  RowContext ContextOf(int64_t step, const float* condition_row, const float* mixed_row) const;
  // Floats that a recurrence keeps for a sample: its noise, and what its condition gives.
  int64_t sample_floats() const {
    return shape.num_steps * (shape.draws_noise ? program.state_input.width : 0) +
           (condition_per_sample() ? condition_floats() : 0);
  }

  DenoiserKernels denoiser_kernels = {};
  ProgramKernels program_kernels = {};
  PackedProgram program;
  PackedTape state_tape, mixed_tape, condition_tape;  // for the backward pass; else empty
  float clip_range = 0;
  std::vector<ReverseCoefficients> coefficients;  // [L], or empty
  std::vector<HoldCoefficients> holds;            // [L], or empty
  AlignedBuffer<float> classes;                   // [num_classes, condition_floats], or empty
  PackedDense encode;                             // of a stack
  std::vector<PackedDense> decoder;
};

// Errors: as Backend::NewSystem.
absl::StatusOr<std::unique_ptr<PackedSystem>> PackProgramSystem(const DiffusionProgramSpec& spec,
                                                                const KernelSet& set,
                                                                const PackingLimits& limits);
absl::StatusOr<std::unique_ptr<PackedSystem>> PackProgramSystem(const StackProgramSpec& spec,
                                                                const KernelSet& set,
                                                                const PackingLimits& limits);

}  // namespace deeppcr::cpu

#endif  // DEEPPCR_KERNELS_CPU_PROGRAM_SYSTEM_H_
