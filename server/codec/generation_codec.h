// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_CODEC_GENERATION_CODEC_H_
#define DEEPPCR_SERVER_CODEC_GENERATION_CODEC_H_

#include "absl/status/status.h"
#include "deeppcr/v1/deeppcr.pb.h"
#include "kernels/engine.h"
#include "server/codec/request_codec.h"

namespace deeppcr {

// What a diffusion model is asked for. Checks all but the finiteness of values; fields are named as
// those of input->source. Errors: kInvalidArgument.
absl::Status DecodeGeneration(const v1::GenerationInput& message, const ModelInfo& info,
                              SolveInput* input);

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_CODEC_GENERATION_CODEC_H_
