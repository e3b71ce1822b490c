// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_REFERENCE_PROGRAM_OPS_H_
#define DEEPPCR_KERNELS_REFERENCE_PROGRAM_OPS_H_

// The functions of diffusion_ops.h for a step program in place of a named denoiser, in double.

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/problem/spec.h"

namespace deeppcr::reference {

// The condition as the program reads it: the inputs, then the label of a model with classes.
std::vector<double> Condition(const DiffusionProgramSpec& spec, const float* inputs, int32_t label);

// The denoiser's output at a state of reverse step `step`, counted from 0.
std::vector<double> Denoise(const DiffusionProgramSpec& spec, int64_t step,
                            std::span<const double> condition, std::span<const double> state);

// See diffusion_ops.h. StepByInputs is empty where the program does not read the condition.
std::vector<double> Step(const DiffusionProgramSpec& spec, int64_t step,
                         std::span<const double> condition, std::span<const float> noise,
                         std::span<const double> state);
std::vector<double> StepJacobian(const DiffusionProgramSpec& spec, int64_t step,
                                 std::span<const double> condition, std::span<const double> state,
                                 std::span<const float> noise = {});
std::vector<double> StepByNoise(const DiffusionProgramSpec& spec, int64_t step,
                                std::span<const double> condition, std::span<const double> state);
std::vector<double> StepByInputs(const DiffusionProgramSpec& spec, int64_t step,
                                 const float* inputs, int32_t label, std::span<const double> state,
                                 std::span<const float> noise = {});
std::vector<double> Decode(const DiffusionProgramSpec& spec, std::span<const double> state);
std::vector<double> DecodeJacobian(const DiffusionProgramSpec& spec, std::span<const double> state);

}  // namespace deeppcr::reference

#endif  // DEEPPCR_KERNELS_REFERENCE_PROGRAM_OPS_H_
