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

// Limit on what all classes of a model give; beyond it, rows are made for each sample.
inline constexpr int64_t kMaxClassBytes = int64_t{64} << 20;

// Samples that are advanced together, at most: so many that a step which reads its weights from
// memory is bound by its products (measured on Sapphire Rapids with AVX-512, at B = 64: layers of
// 1536 gain 1.3x over 24, those of 128 to 512 up to 1.07x; on Zen 4 neither gain nor loss). Fewer,
// but no fewer than kSequentialGroup, where what is kept for so many takes more than kMaxGroupBytes
// and a quarter of the model; and fewer than those, down to one, where that takes more than
// kMostConditionBytes (packed_program.h) or a workspace may have.
inline constexpr int64_t kDiffusionGroup = 64;
inline constexpr int64_t kMaxGroupBytes = int64_t{64} << 20;

// Intervals whose states pass through a step together, at most, and tangents that do, so that
// memory is bounded for any D.
inline constexpr int64_t kStatesTogether = 16;
inline constexpr int64_t kTangentTile = 96;

// Steps of which what depends on them and on a condition is made together.
inline constexpr int64_t kModulationTile = 64;

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
  // Floats of a row of noise, as the program reads it.
  int64_t noise_width() const { return PanelRowWidth(shape.sample_dim()); }
  // Floats that a recurrence keeps for a sample: its noise, and what its condition gives.
  int64_t sample_floats() const {
    return shape.num_steps * (shape.draws_noise ? noise_width() : 0) +
           (condition_per_sample() ? condition_floats() : 0);
  }

  ProgramKernels program_kernels = {};
  PackedProgram program;
  PackedTape state_tape, mixed_tape, condition_tape;  // for the backward pass; else empty
  float clip_range = 0, initial_scale = 1;
  std::vector<ReverseCoefficients> coefficients;  // [L], or empty
  // [L, kNumStepParts] of a form that is put together from parts; else empty, and a step has the
  // part of `coefficients` only.
  std::vector<ReverseCoefficients> parts;
  std::vector<HoldCoefficients> holds;   // [L], or empty
  std::vector<MemoryHold> memory_holds;  // [L] where a memory is carried, or empty
  NoiseScale noise_scale = NoiseScale::kFixed;
  AlignedBuffer<float> classes;  // [num_classes, condition_floats], or empty
  PackedDense encode;            // of a stack
  std::vector<PackedDense> decoder;
};

// Errors: as Backend::NewSystem.
absl::StatusOr<std::unique_ptr<PackedSystem>> PackProgramSystem(
    const DiffusionProgramSpec& spec, const KernelSet& set, const PackingLimits& limits,
    int64_t max_class_bytes = kMaxClassBytes);
// A named denoiser, as the program that it is.
absl::StatusOr<std::unique_ptr<PackedSystem>> PackProgramSystem(
    const DiffusionSpec& spec, const KernelSet& set, const PackingLimits& limits,
    int64_t max_class_bytes = kMaxClassBytes);
absl::StatusOr<std::unique_ptr<PackedSystem>> PackProgramSystem(const StackProgramSpec& spec,
                                                                const KernelSet& set,
                                                                const PackingLimits& limits);

}  // namespace deeppcr::cpu

#endif  // DEEPPCR_KERNELS_CPU_PROGRAM_SYSTEM_H_
