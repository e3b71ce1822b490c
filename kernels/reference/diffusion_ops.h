// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_REFERENCE_DIFFUSION_OPS_H_
#define DEEPPCR_KERNELS_REFERENCE_DIFFUSION_OPS_H_

// The oracle of the family `diffusion`, in the manner of reference_ops.h: spec.h and
// reverse_step.h in plain double loops. Steps count from 0 here, as the rows of the tables do.

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/problem/spec.h"

namespace deeppcr::reference {

// Condition of a request, which is added to the time embedding of every step, [H]: the embedding of
// the class, the image of the vector [input_dim], or zero where the model takes neither.
std::vector<double> Condition(const DiffusionSpec& spec, const float* inputs, int32_t label);

// The denoiser's output at z, [D], or [m, v] of 2 D where the form has a learned scale.
std::vector<double> Denoise(const DiffusionSpec& spec, int64_t step,
                            std::span<const double> condition, std::span<const double> z);
// Its derivative by z, [D, D] or [2 D, D] row-major.
std::vector<double> DenoiseJacobian(const DiffusionSpec& spec, int64_t step,
                                    std::span<const double> condition, std::span<const double> z);

// x within +-range; a NaN stays a NaN. The derivative is 1 on the boundary too and 0 at a NaN, as
// the derivative of torch.clamp.
double Clip(double x, double range);
double ClipDerivative(double x, double range);

// One element of a reverse step in two halves: the denoised sample before it is clipped, and z'
// from the denoised sample.
double RawDenoised(const ReverseStep& step, double z, double m);
double NextState(const ReverseStep& step, double clip_range, double raw_denoised, double z,
                 double m, double noise);

// The next state of the recurrence from `state`, [z] or [z, c] where a memory is carried (S
// elements), with noise [D] of this step; empty: none.
std::vector<double> Step(const DiffusionSpec& spec, int64_t step, std::span<const double> condition,
                         std::span<const float> noise, std::span<const double> state);
// Derivative of Step by the state, [S, S] row-major.
std::vector<double> StepJacobian(const DiffusionSpec& spec, int64_t step,
                                 std::span<const double> condition, std::span<const double> state,
                                 std::span<const float> noise = {});
// Derivative of z' by the noise, element by element: [D].
std::vector<double> StepByNoise(const DiffusionSpec& spec, int64_t step,
                                std::span<const double> condition, std::span<const double> state);

// By the conditioning vector [input_dim] at reverse step `step`: [S, input_dim] row-major. Central
// differences in double, right to some 1e-9: plainer than a second jet.
std::vector<double> StepByInputs(const DiffusionSpec& spec, int64_t step, const float* inputs,
                                 int32_t label, std::span<const double> state,
                                 std::span<const float> noise = {});

// The answer of a final z, and its derivative, [output_dim, D] row-major.
std::vector<double> Decode(const DiffusionSpec& spec, std::span<const double> state);
std::vector<double> DecodeJacobian(const DiffusionSpec& spec, std::span<const double> state);

}  // namespace deeppcr::reference

#endif  // DEEPPCR_KERNELS_REFERENCE_DIFFUSION_OPS_H_
