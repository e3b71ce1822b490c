// SPDX-License-Identifier: Apache-2.0
// The validation of requests of the v2 protocol: 'F' and a ModelInferRequest for a dense stack, 'G'
// for a diffusion model with classes, 'g' for one that is conditioned on a vector. An accepted
// request must become a valid request of deeppcr.v1 with the same tensors.

#include <string>
#include <variant>

#include "google/protobuf/stubs/logging.h"
#include "server/codec/v2/request.h"
#include "tests/fuzz/request_checks.h"

namespace deeppcr::fuzz {
namespace {

using inference::ModelInferRequest;

#if defined(DEEPPCR_FUZZ_PLANTED_BUG)
// Ignores raw contents beyond the inputs, as another server does.
absl::StatusOr<V2Request> Decode(ModelInferRequest* request, const ModelInfo& info) {
  while (request->raw_input_contents_size() > request->inputs_size())
    request->mutable_raw_input_contents()->RemoveLast();
  return DecodeV2(request, info);
}
#else
absl::StatusOr<V2Request> Decode(ModelInferRequest* request, const ModelInfo& info) {
  return DecodeV2(request, info);
}
#endif

// The bytes of the input of this name; for a typed input, the bytes of its values.
std::string BytesOf(const ModelInferRequest& request, const std::string& name) {
  for (int i = 0; i < request.inputs_size(); ++i) {
    if (request.inputs(i).name() != name) continue;
    if (i < request.raw_input_contents_size()) return request.raw_input_contents(i);
    const auto& values = request.inputs(i).contents().fp32_contents();
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
  }
  return "";
}

void RequireSame(const ModelInferRequest& came, const std::string& name, const v1::Tensor& tensor) {
  Require(BytesOf(came, name) == tensor.data(), "a tensor has the bytes that came for it");
}

bool TryForward(const ModelInferRequest& came, const V2Request& decoded, const ModelInfo& info) {
  const auto& request = std::get<v1::ForwardRequest>(decoded.request);
  const absl::StatusOr<SolveInput> input =
      DecodeForward(request, info, kMaxMessageBytes, kV2Fields);
  if (!input.ok()) return RequireCleanRefusal(input.status()), false;
  RequireForward(request, *input, info);
  RequireSame(came, "inputs", request.inputs());
  RequireSame(came, "initial_states", request.initial_states());
  return true;
}

bool TryGenerate(const ModelInferRequest& came, const V2Request& decoded, const ModelInfo& info) {
  const auto& request = std::get<v1::GenerateRequest>(decoded.request);
  const absl::StatusOr<SolveInput> input =
      DecodeGenerate(request, info, kMaxMessageBytes, kV2Fields);
  if (!input.ok()) return RequireCleanRefusal(input.status()), false;
  RequireGenerate(request, *input, info);
  RequireSame(came, "conditioning", request.input().conditioning());
  RequireSame(came, "initial_noise", request.input().initial_noise());
  RequireSame(came, "step_noise", request.input().step_noise());
  RequireSame(came, "initial_states", request.initial_states());
  return true;
}

bool TryGradient(const ModelInferRequest& came, const V2Request& decoded, const ModelInfo& info) {
  const auto& request = std::get<v1::GradientRequest>(decoded.request);
  const FieldNames& names = info.generates() ? kV2SampleFields : kV2Fields;
  SolveInput solve;
  const absl::StatusOr<GradientInput> input =
      DecodeGradient(request, info, kMaxMessageBytes, &solve, names);
  if (!input.ok()) return RequireCleanRefusal(input.status()), false;
  if (info.generates()) RequireGeneration(request.generation(), solve, info);
  RequireOptions(solve.options, info, solve.num_steps);
  RequireInitialStates(request.initial_states(), solve, info);
  RequireGradient(request, solve, *input, info);
  RequireSame(came, "inputs", request.inputs());
  RequireSame(came, "conditioning", request.generation().conditioning());
  RequireSame(came, "initial_states", request.initial_states());
  RequireSame(came, std::string(names.cotangents), request.cotangents());
  RequireSame(came, std::string(names.final_cotangents), request.final_state_cotangents());
  RequireSame(came, "targets", request.targets());
  return true;
}

bool TryInfer(const std::string& bytes, const ModelInfo& info) {
  ModelInferRequest request;
  if (!Receive(bytes, &request)) return false;
  const ModelInferRequest came = request;
  const absl::StatusOr<int64_t> version = DecodeVersion(request.model_version());
  if (!version.ok()) return RequireCleanRefusal(version.status()), false;
  Require(*version >= 0, "a version is positive, or 0 for the latest");
  const absl::StatusOr<V2Request> decoded = Decode(&request, info);
  if (!decoded.ok()) return RequireCleanRefusal(decoded.status()), false;
  Require(came.raw_input_contents().empty() || came.raw_input_contents_size() == came.inputs_size(),
          "raw contents belong to an input each, or there are none");
  Require(!decoded->outputs.empty() && decoded->outputs.size() <= 7, "a reply has outputs, once");
  if (std::holds_alternative<v1::GradientRequest>(decoded->request))
    return TryGradient(came, *decoded, info);
  return info.generates() ? TryGenerate(came, *decoded, info) : TryForward(came, *decoded, info);
}

}  // namespace

bool TryInput(std::string_view bytes) {
  // Silences protobuf, which would log every name that is not UTF-8.
  [[maybe_unused]] static const auto previous = google::protobuf::SetLogHandler(nullptr);
  if (bytes.empty()) return false;
  const std::string message(bytes.substr(1));
  if (bytes.front() == 'F') return TryInfer(message, Info());
  if (bytes.front() == 'G') return TryInfer(message, ClassInfo());
  if (bytes.front() == 'g') return TryInfer(message, ConditionInfo());
  return false;
}

}  // namespace deeppcr::fuzz
