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

struct ForwardMethod {
  static constexpr Method kMethod = Method::kForward;
  using Request = v1::ForwardRequest;
  using Reply = v1::ForwardResponse;
  using Responder = UnaryResponder;

  static absl::StatusOr<SolveInput> Decode(const Request* request, const ModelInfo& info,
                                           int64_t max_message_bytes) {
    return DecodeForward(*request, info, max_message_bytes);
  }
  void Allocate(const ModelInfo& info, const SolveInput& input, RunItem* item) {
    item->outputs =
        AllocateTensor(std::array{input.num_samples, info.output_dim}, reply.mutable_outputs());
    if (input.options.return_trajectory)
      item->trajectory = AllocateTrajectory(info, input, reply.mutable_trajectory());
  }
  Reply TakeReply(const ServedModel&, v1::SolveReport&& report, const std::string& request_id) {
    *reply.mutable_report() = std::move(report);
    reply.set_request_id(request_id);
    return std::move(reply);
  }

  v1::ForwardResponse reply;
};

struct GenerateMethod {
  static constexpr Method kMethod = Method::kGenerate;
  using Request = v1::GenerateRequest;
  using Reply = v1::GenerateResponse;
  using Responder = UnaryResponder;

  static absl::StatusOr<SolveInput> Decode(const Request* request, const ModelInfo& info,
                                           int64_t max_message_bytes) {
    return DecodeGenerate(*request, info, max_message_bytes);
  }
  void Allocate(const ModelInfo& info, const SolveInput& input, RunItem* item) {
    const int64_t n = input.num_samples;
    item->outputs = AllocateTensor(std::array{n, info.output_dim}, reply.mutable_samples());
    if (info.has_decoder)
      item->final_states = AllocateTensor(std::array{n, info.state_dim}, reply.mutable_latents());
    if (input.options.return_trajectory)
      item->trajectory = AllocateTrajectory(info, input, reply.mutable_trajectory());
  }
  Reply TakeReply(const ServedModel&, v1::SolveReport&& report, const std::string& request_id) {
    *reply.mutable_report() = std::move(report);
    reply.set_request_id(request_id);
    return std::move(reply);
  }

  v1::GenerateResponse reply;
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
