// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_MODEL_DENOISER_PROGRAM_H_
#define DEEPPCR_KERNELS_MODEL_DENOISER_PROGRAM_H_

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "kernels/model/model.h"
#include "kernels/problem/spec.h"

namespace deeppcr {

inline constexpr char kDenoiserFile[] = "denoiser.onnx";

// Reads <directory>/denoiser.onnx, and the weights beside it, of a model whose `config` is set, and
// compiles it: sets model.diffusion.program and model.weights_sha256.
// Errors: kInvalidArgument naming the node, or what of config.json the graph does not fit;
// kResourceExhausted; those of ReadFile.
absl::Status LoadDenoiserProgram(const std::string& directory, const ModelLimits& limits,
                                 Model& model);

// Specification of the system of these tables; `model` must outlive it.
DiffusionProgramSpec ProgramSpecOver(const Model& model, const StepTables& tables);

// Errors: kResourceExhausted if what depends on the time takes too long for so many steps.
absl::Status CheckTimeCost(const Model& model, int64_t steps);

// Checks that the times of these steps are integers where the time input is one, and the rows that
// the classes and these steps look up: program::CheckLookups.
absl::Status CheckLookups(const Model& model, std::span<const ReverseStep> steps,
                          const CancelToken* token);

// The most steps that a system is made for while a request waits.
int64_t MaxProgramStepsOnDemand(const Model& model);

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_MODEL_DENOISER_PROGRAM_H_
