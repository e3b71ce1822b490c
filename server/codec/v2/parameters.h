// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_CODEC_V2_PARAMETERS_H_
#define DEEPPCR_SERVER_CODEC_V2_PARAMETERS_H_

#include <chrono>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "deeppcr/v1/deeppcr.pb.h"
#include "google/protobuf/map.h"
#include "inference/grpc_service.pb.h"

namespace deeppcr {

// The destinations of the parameters of a request.
struct V2Targets {
  v1::SolverOptions* options;
  v1::GenerationInput* generation;  // null unless the model is a diffusion model
  v1::GradientRequest* gradient;    // null unless the request is for gradients
  std::optional<std::chrono::microseconds>* timeout;
};

// Sets `timeout` (microseconds), the fields of SolverOptions and GenerationInput that parameters
// name (enumerators as lower-case strings), and `way`, `way_interval` and `trajectory_handle` of
// the way back; triton_enable_empty_final_response has no effect. Errors: kInvalidArgument, for any
// other name too: a misspelt solver must not be answered by another one.
absl::Status DecodeV2Parameters(
    const google::protobuf::Map<std::string, inference::InferParameter>& parameters,
    const V2Targets& targets);

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_CODEC_V2_PARAMETERS_H_
