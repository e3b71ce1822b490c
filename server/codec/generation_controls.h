// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_CODEC_GENERATION_CONTROLS_H_
#define DEEPPCR_SERVER_CODEC_GENERATION_CONTROLS_H_

// Guidance, noise, beginning, known elements and bounds of a generation: which system solves it,
// and what that system's inputs are.

#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "deeppcr/v1/deeppcr.pb.h"
#include "kernels/engine.h"
#include "server/codec/solve_input.h"

namespace deeppcr {

// A row of `inner` values for each of n samples, or one row for all of them.
absl::StatusOr<TensorInput> DecodeRowsOrOne(const v1::Tensor& tensor, const ExpectedShape& expected,
                                            int64_t num_samples);

// Fills controls and system of `input`, whose samples, steps, condition and noise are decoded, and
// counts the memory that CompleteGeneration takes. Errors: kInvalidArgument naming the field.
absl::Status DecodeControls(const v1::GenerationInput& message, const ModelInfo& info,
                            SolveInput* input);

// The field of a request, by its name without a prefix, that wants another system than the planned
// ones.
std::string_view FieldOf(const SystemKey& key);

// Refuses bounds where the answer is no sample.
absl::Status CheckNoBounds(const SolveInput& input);

// Errors: kInvalidArgument naming the field and the index of the first NaN or infinity.
absl::Status CheckFiniteControls(const SolveInput& input);

// Values per sample that the system takes: those of `inputs`, unless it is varied.
int64_t VariedInputDim(const ModelInfo& info, const SolveInput& input);

// True if CompleteGeneration has something to do.
bool NeedsCompletion(const ModelInfo& info, const SolveInput& input);
// Makes the inputs and the noise that the system takes of the fields of a request, whose values are
// checked. Takes time in proportion to them.
void CompleteGeneration(const ModelInfo& info, SolveInput* input);

// Puts samples [n, output_dim] into the bounds.
void PutIntoBounds(const GenerationControls& controls, std::span<float> outputs);

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_CODEC_GENERATION_CONTROLS_H_
