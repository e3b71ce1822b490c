// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PROGRAM_DENOISER_PROGRAM_H_
#define DEEPPCR_KERNELS_PROGRAM_DENOISER_PROGRAM_H_

#include "absl/status/statusor.h"
#include "kernels/problem/spec.h"
#include "kernels/program/builder.h"

namespace deeppcr::program {

// The reverse step of a named denoiser (DenoiserSpec in kernels/problem/spec.h) as a program. The
// time embedding is a constant of each step. Errors: those of the builder.
absl::StatusOr<Program> ProgramOfDenoiser(const DiffusionSpec& spec,
                                          const ProgramLimits& limits = {});

// The specification of a reverse process with the program of its denoiser; both must outlive it.
DiffusionProgramSpec WithProgram(const DiffusionSpec& spec, const Program& program);

}  // namespace deeppcr::program

#endif  // DEEPPCR_KERNELS_PROGRAM_DENOISER_PROGRAM_H_
