// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_CODEC_V2_REQUEST_H_
#define DEEPPCR_SERVER_CODEC_V2_REQUEST_H_

// Requests of the v2 protocol -> the requests of deeppcr.v1 that ask for the same, so that there is
// one set of checks. Only what v2 alone has is checked here. Errors are kInvalidArgument and name
// the field, what was expected and what came.

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "deeppcr/v1/deeppcr.pb.h"
#include "inference/grpc_service.pb.h"
#include "kernels/engine.h"

namespace deeppcr {

// Outputs that a reply may have; only a model with a decoder has latents. A request that names a
// gradient is one for gradients.
enum class V2Output : uint8_t {
  kValues,
  kLatents,
  kTrajectory,
  kByInputs,
  kByInitialNoise,
  kByStepNoise,
  kLosses
};

// The name of an output: values are "outputs", or "samples" of a diffusion model; gradients are
// "grad_" and the name of the input. "losses", of doubles, go with gradients of a loss.
std::string_view NameOf(V2Output output, const ModelInfo& info);
// The outputs for a request that names none.
std::vector<V2Output> DefaultOutputs(const ModelInfo& info);

struct V2Request {
  // Model and version are not set.
  std::variant<v1::ForwardRequest, v1::GenerateRequest, v1::GradientRequest> request;
  std::vector<V2Output> outputs;                     // in the order of the reply
  std::optional<std::chrono::microseconds> timeout;  // parameter `timeout`
};

// Moves the tensors out of `request`. The model takes the result as it is if DecodeForward,
// DecodeGenerate or DecodeGradient accepts it.
absl::StatusOr<V2Request> DecodeV2(inference::ModelInferRequest* request, const ModelInfo& info);

// Parses a version; an empty text gives 0.
absl::StatusOr<int64_t> DecodeVersion(const std::string& version);

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_CODEC_V2_REQUEST_H_
