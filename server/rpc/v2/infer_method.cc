// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/v2/infer_method.h"

#include <algorithm>
#include <array>
#include <utility>

#include "kernels/base/status_macros.h"
#include "server/codec/reply_codec.h"
#include "server/codec/request_codec.h"

namespace deeppcr {

using google::protobuf::Arena;
using google::protobuf::Message;

absl::StatusOr<SolveInput> InferMethod::Decode(Request* from, const ModelInfo& info,
                                               int64_t max_message_bytes) {
  DEEPPCR_ASSIGN_OR_RETURN(V2Request decoded, DecodeV2(from, info));
  request = std::move(decoded.request);
  outputs = std::move(decoded.outputs);
  absl::StatusOr<SolveInput> input = DecodeAs(info, max_message_bytes);
  if (input.ok()) input->timeout = decoded.timeout;
  return input;
}

absl::StatusOr<SolveInput> InferMethod::DecodeAs(const ModelInfo& info, int64_t max_message_bytes) {
  if (const auto* forward = std::get_if<v1::ForwardRequest>(&request))
    return DecodeForward(*forward, info, max_message_bytes, kV2Fields);
  if (const auto* generate = std::get_if<v1::GenerateRequest>(&request))
    return DecodeGenerate(*generate, info, max_message_bytes, kV2Fields);
  SolveInput solve;
  DEEPPCR_ASSIGN_OR_RETURN(
      GradientInput gradient,
      DecodeGradient(std::get<v1::GradientRequest>(request), info, max_message_bytes, &solve,
                     info.generates() ? kV2SampleFields : kV2Fields));
  back.emplace(std::move(gradient));
  return solve;
}

void InferMethod::Allocate(const ModelInfo& info, const SolveInput& input, Arena* arena,
                           RunItem* item) {
  arena_ = arena;
  report_ = Arena::CreateMessage<v1::SolveReport>(arena);
  if (back.has_value() && !back->solves()) return;
  const int64_t n = input.num_samples;
  item->outputs = AllocateTensor(std::array{n, info.output_dim}, &tensors.values);
  if (Wants(V2Output::kLatents))
    item->final_states = AllocateTensor(std::array{n, info.state_dim}, &tensors.latents);
  if (Wants(V2Output::kTrajectory))
    item->trajectory = AllocateTrajectory(info, input, &tensors.trajectory);
}

void InferMethod::AllocateBack(const ModelInfo& info, const SolveInput& input, RunItem* run,
                               BackwardItem* item) {
  WayBack::Tensors gradients;
  if (Wants(V2Output::kByInputs)) gradients.inputs = &tensors.by_inputs;
  if (Wants(V2Output::kByInitialNoise)) gradients.initial_state = &tensors.by_initial_noise;
  if (Wants(V2Output::kByStepNoise)) gradients.step_noise = &tensors.by_step_noise;
  back->Allocate(info, input.num_steps, gradients, run, item);
}

void InferMethod::FillBack(const BackwardOptions& options, double seconds) {
  back_report_ = Arena::CreateMessage<v1::BackwardReport>(arena_);
  FillBackwardReport(options, back->reports(), back->errors(), seconds, back_report_);
  if (!Wants(V2Output::kLosses)) return;
  tensors.losses.add_shape(std::ssize(back->losses()));
  tensors.losses.set_data(back->losses().data(), back->losses().size_bytes());
}

const Message& InferMethod::Reply(const ServedModel& model, const std::string& request_id) {
  auto* const reply = Arena::CreateMessage<inference::ModelInferResponse>(arena_);
  Fill(model, request_id, reply);
  return *reply;
}

void InferMethod::Fill(const ServedModel& model, const std::string& request_id,
                       inference::ModelInferResponse* reply) {
  FillV2Reply(model, request_id, outputs, *report_, &tensors, reply);
  if (back_report_ != nullptr) FillV2WayBack(*back_report_, reply);
  if (!handle_.empty())
    (*reply->mutable_parameters())["trajectory_handle"].set_string_param(handle_);
}

bool InferMethod::Wants(V2Output output) const {
  return std::find(outputs.begin(), outputs.end(), output) != outputs.end();
}

const Message& StreamInferMethod::Reply(const ServedModel& model, const std::string& request_id) {
  auto* const reply = Arena::CreateMessage<inference::ModelStreamInferResponse>(arena_);
  inference::ModelInferResponse* const response = reply->mutable_infer_response();
  Fill(model, request_id, response);
  (*response->mutable_parameters())["triton_final_response"].set_bool_param(true);
  return *reply;
}

}  // namespace deeppcr
