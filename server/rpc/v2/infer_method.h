// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_RPC_V2_INFER_METHOD_H_
#define DEEPPCR_SERVER_RPC_V2_INFER_METHOD_H_

// ModelInfer, and one request of ModelStreamInfer, for models of every kind: the M of SolveCall<M>.

#include <string>
#include <variant>
#include <vector>

#include "server/codec/solve_input.h"
#include "server/codec/v2/reply.h"
#include "server/codec/v2/request.h"
#include "server/observe/method.h"
#include "server/rpc/responder.h"
#include "server/rpc/v2/stream.h"

namespace deeppcr {

struct InferMethod {
  static constexpr Method kMethod = Method::kModelInfer;
  using Request = inference::ModelInferRequest;
  using Reply = inference::ModelInferResponse;
  using Responder = UnaryResponder;

  absl::StatusOr<SolveInput> Decode(Request* from, const ModelInfo& info,
                                    int64_t max_message_bytes);
  void Allocate(const ModelInfo& info, const SolveInput& input, RunItem* item);
  Reply TakeReply(const ServedModel& model, v1::SolveReport&& report,
                  const std::string& request_id);

  bool Wants(V2Output output) const;

  // The request in words of deeppcr.v1: the input's views are into it.
  std::variant<v1::ForwardRequest, v1::GenerateRequest> request;
  std::vector<V2Output> outputs;
  V2Tensors tensors;
};

struct StreamInferMethod : InferMethod {
  static constexpr Method kMethod = Method::kModelStreamInfer;
  using Reply = inference::ModelStreamInferResponse;
  using Responder = V2StreamResponder;

  Reply TakeReply(const ServedModel& model, v1::SolveReport&& report,
                  const std::string& request_id);
};

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_RPC_V2_INFER_METHOD_H_
