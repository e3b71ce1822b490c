// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_RPC_V2_INFER_METHOD_H_
#define DEEPPCR_SERVER_RPC_V2_INFER_METHOD_H_

// ModelInfer, and one request of ModelStreamInfer, for models of every kind: the M of SolveCall<M>.

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "google/protobuf/arena.h"
#include "server/codec/solve_input.h"
#include "server/codec/v2/reply.h"
#include "server/codec/v2/request.h"
#include "server/observe/method.h"
#include "server/rpc/responder.h"
#include "server/rpc/v2/stream.h"
#include "server/rpc/way_back.h"

namespace deeppcr {

struct InferMethod {
  static constexpr Method kMethod = Method::kModelInfer;
  using Request = inference::ModelInferRequest;
  using Responder = UnaryResponder;

  absl::StatusOr<SolveInput> Decode(Request* from, const ModelInfo& info,
                                    int64_t max_message_bytes);
  void Allocate(const ModelInfo& info, const SolveInput& input, google::protobuf::Arena* arena,
                RunItem* item);
  WayBack* way_back() { return back.has_value() ? &*back : nullptr; }
  void AllocateBack(const ModelInfo& info, const SolveInput& input, RunItem* run,
                    BackwardItem* item);
  void FillBack(const BackwardOptions& options, double seconds);
  v1::SolveReport* report() { return report_; }
  void SetHandle(const std::string& handle) { handle_ = handle; }
  const google::protobuf::Message& Reply(const ServedModel& model, const std::string& request_id);

  // The request in words of deeppcr.v1: the input's views are into it.
  std::variant<v1::ForwardRequest, v1::GenerateRequest, v1::GradientRequest> request;
  std::vector<V2Output> outputs;
  V2Tensors tensors;
  std::optional<WayBack> back;  // of a request for gradients, once decoded

 protected:
  absl::StatusOr<SolveInput> DecodeAs(const ModelInfo& info, int64_t max_message_bytes);
  bool Wants(V2Output output) const;
  void Fill(const ServedModel& model, const std::string& request_id,
            inference::ModelInferResponse* reply);

  // In the arena of Allocate.
  google::protobuf::Arena* arena_ = nullptr;
  v1::SolveReport* report_ = nullptr;
  v1::BackwardReport* back_report_ = nullptr;  // null without a way back
  std::string handle_;                         // of the trajectory that is kept
};

struct StreamInferMethod : InferMethod {
  static constexpr Method kMethod = Method::kModelStreamInfer;
  using Responder = V2StreamResponder;

  const google::protobuf::Message& Reply(const ServedModel& model, const std::string& request_id);
};

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_RPC_V2_INFER_METHOD_H_
