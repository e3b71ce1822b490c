// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PROGRAM_SAMPLER_STEP_H_
#define DEEPPCR_KERNELS_PROGRAM_SAMPLER_STEP_H_

// The step of a sampler around a denoiser, as instructions: what a form adds to the reverse step is
// put together from its parts (kernels/problem/reverse_step.h), so that values, tangents,
// cotangents and rounding are those of any other instruction.

#include <cstdint>

#include "absl/status/statusor.h"
#include "kernels/problem/reverse_step.h"
#include "kernels/program/builder.h"
#include "kernels/program/program.h"

namespace deeppcr::program {

// Adds the state of a recurrence, [z] or [z, c], and returns z [dim], which is what the denoiser
// reads.
absl::StatusOr<ValueId> AddSamplerState(ProgramBuilder& builder, int64_t dim, bool carries);

// The same z of a builder that has the state already.
absl::StatusOr<ValueId> SamplerStateOf(ProgramBuilder& builder, bool carries);

// Finishes a program whose denoiser says `prediction` at z: m, or [m, v] where the form has a
// learned scale. Errors: as ProgramBuilder.
absl::StatusOr<Program> FinishSampler(ProgramBuilder& builder, ValueId z, ValueId prediction,
                                      const SamplerForm& form);

// Elements of a denoiser's output for a state z of `dim`.
constexpr int64_t PredictionSize(int64_t dim, const SamplerForm& form) {
  return form.noise_scale == NoiseScale::kFixed ? dim : 2 * dim;
}

}  // namespace deeppcr::program

#endif  // DEEPPCR_KERNELS_PROGRAM_SAMPLER_STEP_H_
