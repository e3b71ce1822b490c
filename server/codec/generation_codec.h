// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_CODEC_GENERATION_CODEC_H_
#define DEEPPCR_SERVER_CODEC_GENERATION_CODEC_H_

#include "absl/status/status.h"
#include "deeppcr/v1/deeppcr.pb.h"
#include "kernels/engine.h"
#include "server/codec/solve_input.h"

namespace deeppcr {

// Decodes the request to a diffusion model. Checks all but the finiteness of values. Errors:
// kInvalidArgument, which name fields by input->names.
absl::Status DecodeGeneration(const v1::GenerationInput& message, const ModelInfo& info,
                              SolveInput* input);

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_CODEC_GENERATION_CODEC_H_
