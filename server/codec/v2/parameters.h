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

// Where the parameters of a request go.
struct V2Targets {
  v1::SolverOptions* options;
  v1::GenerationInput* generation;  // null unless the model is a diffusion model
  std::optional<std::chrono::microseconds>* timeout;
};

// Parameters of ModelInfer are the fields of SolverOptions and GenerationInput by name, enumerators
// as lower-case strings, and `timeout`, in microseconds. A name that is none of these is an error:
// a solver that is misspelt must not be answered by another. Errors: kInvalidArgument.
absl::Status DecodeV2Parameters(
    const google::protobuf::Map<std::string, inference::InferParameter>& parameters,
    const V2Targets& targets);

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_CODEC_V2_PARAMETERS_H_
