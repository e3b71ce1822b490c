// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PROGRAM_DENOISER_PROGRAM_H_
#define DEEPPCR_KERNELS_PROGRAM_DENOISER_PROGRAM_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/problem/spec.h"
#include "kernels/program/builder.h"

namespace deeppcr::program {

// The reverse step of a named denoiser (DenoiserSpec in kernels/problem/spec.h) as a program. The
// time embedding is a constant of each step. Errors: those of the builder.
absl::StatusOr<Program> ProgramOfDenoiser(const DiffusionSpec& spec,
                                          const ProgramLimits& limits = {});

// A tensor of a named denoiser, by the numbers that a DiffusionSpec views.
struct TensorPlace {
  std::span<const float> numbers;
  int32_t tensor = 0;  // ParameterSlice::tensor
};

// What a denoiser's program has as parameters in place of constants.
struct DenoiserParameters {
  std::span<const TensorPlace> places;  // every tensor of the spec and of the time embedding
  // The time embedding, second(silu(first(e))) with e = (cos(t f), sin(t f)), f the frequencies.
  DenseSpec time_first, time_second;
  std::vector<double> frequencies;
};

// The same program in which the tensors are parameters, and the time embedding follows from the
// time.
absl::StatusOr<Program> ParameterProgramOfDenoiser(const DiffusionSpec& spec,
                                                   const DenoiserParameters& parameters,
                                                   const ProgramLimits& limits);

// The layers of a reverse process or a stack, one after another, with parameters.
absl::StatusOr<Program> ParameterProgramOfLayers(std::span<const DenseSpec> layers,
                                                 std::span<const TensorPlace> places,
                                                 const ProgramLimits& limits);

// The specification of a reverse process with the program of its denoiser; both must outlive it.
DiffusionProgramSpec WithProgram(const DiffusionSpec& spec, const Program& program);

}  // namespace deeppcr::program

#endif  // DEEPPCR_KERNELS_PROGRAM_DENOISER_PROGRAM_H_
