// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_CODEC_GENERATION_CODEC_H_
#define DEEPPCR_SERVER_CODEC_GENERATION_CODEC_H_

#include "absl/status/status.h"
#include "deeppcr/v1/deeppcr.pb.h"
#include "kernels/engine.h"
#include "server/codec/request_codec.h"

namespace deeppcr {

// Decodes the request to a diffusion model. Checks all but the finiteness of values. Errors:
// kInvalidArgument; fields are named as members of input->source.
absl::Status DecodeGeneration(const v1::GenerationInput& message, const ModelInfo& info,
                              SolveInput* input);

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_CODEC_GENERATION_CODEC_H_
