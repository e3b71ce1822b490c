// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_MODEL_STEP_TABLE_H_
#define DEEPPCR_KERNELS_MODEL_STEP_TABLE_H_

// step_table.safetensors: the reverse steps themselves, in place of scheduler_config.json, for
// whatever is affine in the state, the network's output, the clipped x0 and noise
// (kernels/problem/reverse_step.h). Tensors of F64 or F32:
//
//   x0_z, x0_m, z_z, z_m, z_x0, sigma  [L] coefficients, finite as float32
//   z_c, c_z, c_m, c_x0                [L] the same of a memory; optional, 0 without
//   time                               [L] what the network sees
//   clip_range                         [] or [1], above 0; optional, no clip without
//   initial_scale                      [] or [1], above 0; optional, 1 without

#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/model/model.h"

namespace deeppcr {

inline constexpr char kStepTableFile[] = "step_table.safetensors";
inline constexpr int64_t kMaxTableSteps = 65536;
// Of the file: so many steps in double take less than half of it.
inline constexpr int64_t kMaxTableBytes = int64_t{16} << 20;

// Reads and validates the file. Thread-safe. Errors: kInvalidArgument naming tensor and element,
// what was expected, what came; kResourceExhausted as ParseSafetensors.
absl::StatusOr<StepTables> ParseStepTable(std::string_view bytes);

// Refuses a config.json that a step table contradicts.
absl::Status CheckStepTable(const StepTables& table, const ModelConfig& config);

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_MODEL_STEP_TABLE_H_
