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
  absl::StatusOr<SolveInput> input = info.generates()
                                         ? DecodeGenerate(std::get<v1::GenerateRequest>(request),
                                                          info, max_message_bytes, kV2Fields)
                                         : DecodeForward(std::get<v1::ForwardRequest>(request),
                                                         info, max_message_bytes, kV2Fields);
  if (input.ok()) input->timeout = decoded.timeout;
  return input;
}

void InferMethod::Allocate(const ModelInfo& info, const SolveInput& input, Arena* arena,
                           RunItem* item) {
  arena_ = arena;
  report_ = Arena::CreateMessage<v1::SolveReport>(arena);
  const int64_t n = input.num_samples;
  item->outputs = AllocateTensor(std::array{n, info.output_dim}, &tensors.values);
  if (Wants(V2Output::kLatents))
    item->final_states = AllocateTensor(std::array{n, info.state_dim}, &tensors.latents);
  if (Wants(V2Output::kTrajectory))
    item->trajectory = AllocateTrajectory(info, input, &tensors.trajectory);
}

const Message& InferMethod::Reply(const ServedModel& model, const std::string& request_id) {
  auto* const reply = Arena::CreateMessage<inference::ModelInferResponse>(arena_);
  Fill(model, request_id, reply);
  return *reply;
}

void InferMethod::Fill(const ServedModel& model, const std::string& request_id,
                       inference::ModelInferResponse* reply) {
  FillV2Reply(model, request_id, outputs, *report_, &tensors, reply);
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
