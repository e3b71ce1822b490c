// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_RPC_SOLVE_METHODS_H_
#define DEEPPCR_SERVER_RPC_SOLVE_METHODS_H_

// The methods of deeppcr.v1 that solve: the M of SolveCall<M>.

#include <array>
#include <string>
#include <utility>

#include "server/codec/reply_codec.h"
#include "server/codec/request_codec.h"
#include "server/observe/method.h"
#include "server/rpc/responder.h"

namespace deeppcr {

// A method whose request `decode` reads and whose reply has a report and a request id beside its
// tensors.
template <Method method, typename RequestType, typename ReplyType, auto decode>
struct V1Method {
  static constexpr Method kMethod = method;
  using Request = RequestType;
  using Reply = ReplyType;
  using Responder = UnaryResponder;

  static absl::StatusOr<SolveInput> Decode(const Request* request, const ModelInfo& info,
                                           int64_t max_message_bytes) {
    return decode(*request, info, max_message_bytes, kV1Fields);
  }
  Reply TakeReply(const ServedModel&, v1::SolveReport&& report, const std::string& request_id) {
    *reply.mutable_report() = std::move(report);
    reply.set_request_id(request_id);
    return std::move(reply);
  }

  Reply reply;
};

struct ForwardMethod
    : V1Method<Method::kForward, v1::ForwardRequest, v1::ForwardResponse, DecodeForward> {
  void Allocate(const ModelInfo& info, const SolveInput& input, RunItem* item) {
    item->outputs =
        AllocateTensor(std::array{input.num_samples, info.output_dim}, reply.mutable_outputs());
    if (input.options.return_trajectory)
      item->trajectory = AllocateTrajectory(info, input, reply.mutable_trajectory());
  }
};

struct GenerateMethod
    : V1Method<Method::kGenerate, v1::GenerateRequest, v1::GenerateResponse, DecodeGenerate> {
  void Allocate(const ModelInfo& info, const SolveInput& input, RunItem* item) {
    const int64_t n = input.num_samples;
    item->outputs = AllocateTensor(std::array{n, info.output_dim}, reply.mutable_samples());
    if (info.has_decoder)
      item->final_states = AllocateTensor(std::array{n, info.state_dim}, reply.mutable_latents());
    if (input.options.return_trajectory)
      item->trajectory = AllocateTrajectory(info, input, reply.mutable_trajectory());
  }
};

struct StreamGenerateMethod : GenerateMethod {
  static constexpr Method kMethod = Method::kStreamGenerate;
  using Reply = v1::StreamGenerateResponse;
  using Responder = StreamResponder;

  Reply TakeReply(const ServedModel& model, v1::SolveReport&& report,
                  const std::string& request_id) {
    Reply last;
    *last.mutable_result() = GenerateMethod::TakeReply(model, std::move(report), request_id);
    return last;
  }
  static Reply ProgressOf(const SolveProgress& progress, int64_t num_steps) {
    Reply event;
    FillProgress(progress, num_steps, event.mutable_progress());
    return event;
  }
};

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_RPC_SOLVE_METHODS_H_
