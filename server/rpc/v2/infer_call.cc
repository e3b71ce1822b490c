// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/v2/infer_call.h"

#include <algorithm>
#include <array>
#include <utility>
#include <variant>
#include <vector>

#include "server/codec/v2/reply.h"
#include "server/codec/v2/request.h"
#include "server/rpc/solve_call.h"
#include "server/rpc/v2/stream.h"

namespace deeppcr {
namespace {

class InferCall : public SolveCall {
 protected:
  using SolveCall::SolveCall;

  absl::Status Admit() override { return InV2Words(AdmitInfer()); }
  absl::Status Prepare() override { return InV2Words(SolveCall::Prepare()); }

  void AllocateReply(const ModelInfo& info) override {
    const int64_t n = input_.num_samples;
    run_item.outputs = AllocateTensor(std::array{n, info.output_dim}, &tensors_.values);
    if (Wants(V2Output::kLatents))
      run_item.final_states = AllocateTensor(std::array{n, info.state_dim}, &tensors_.latents);
    if (Wants(V2Output::kTrajectory))
      run_item.trajectory =
          AllocateTensor(std::array{n, input_.num_steps + 1, info.state_dim}, &tensors_.trajectory);
  }

  void FillReply(const JobTimings& timings, inference::ModelInferResponse* reply) {
    v1::SolveReport report;
    FillSolveReport(*model, options, reports_, timings, &report);
    FillV2Reply(*model, id_, outputs_, report, &tensors_, reply);
  }

  void FreeRequest() override {
    id_ = {};
    request_ = {};
    tensors_ = {};
    ForgetInput();
  }

  // Called once the id of the request is known.
  virtual void TakeId(const std::string&) {}

 private:
  bool Wants(V2Output output) const {
    return std::find(outputs_.begin(), outputs_.end(), output) != outputs_.end();
  }

  absl::Status AdmitInfer() {
    inference::ModelInferRequest request;
    DEEPPCR_RETURN_IF_ERROR(Receive(&request));
    // The check comes first: memory kept for a refused request counts against no budget.
    DEEPPCR_RETURN_IF_ERROR(CheckRequestId("id", request.id()));
    id_ = request.id();
    request_id_ = id_;
    TakeId(id_);
    DEEPPCR_ASSIGN_OR_RETURN(const int64_t version, DecodeVersion(request.model_version()));
    DEEPPCR_RETURN_IF_ERROR(NameModel(request.model_name(), version));
    DEEPPCR_ASSIGN_OR_RETURN(std::shared_ptr<ServedModel> served, FindModel());
    DEEPPCR_ASSIGN_OR_RETURN(V2Request decoded, DecodeV2(&request, served->model->info()));
    request_ = std::move(decoded.request);
    outputs_ = std::move(decoded.outputs);
    if (decoded.timeout.has_value()) LimitTo(*decoded.timeout);
    return SubmitDecoded(std::move(served));
  }

  absl::Status SubmitDecoded(std::shared_ptr<ServedModel> served) {
    const ModelInfo& info = served->model->info();
    absl::StatusOr<SolveInput> input = info.generates()
                                           ? DecodeGenerate(std::get<v1::GenerateRequest>(request_),
                                                            info, context_.max_message_bytes)
                                           : DecodeForward(std::get<v1::ForwardRequest>(request_),
                                                           info, context_.max_message_bytes);
    if (!input.ok()) return input.status();
    input_ = *std::move(input);
    const Method method = info.generates() ? Method::kGenerate : Method::kForward;
    return SubmitInput(std::move(served), method);
  }

  std::string id_;
  std::variant<v1::ForwardRequest, v1::GenerateRequest> request_;
  std::vector<V2Output> outputs_;
  V2Tensors tensors_;
};

class UnaryInferCall final : public InferCall {
 public:
  UnaryInferCall(ServiceContext& context, const RawCall& call, grpc::ByteBuffer* reply)
      : InferCall(context, Method::kModelInfer, call), responder_(*this, reply) {
    RespondThrough(&responder_);
  }
  grpc::ServerUnaryReactor* reactor() { return &responder_; }

 private:
  ~UnaryInferCall() override = default;

  void Reply(const JobTimings& timings) override {
    inference::ModelInferResponse reply;
    FillReply(timings, &reply);
    AnswerAndShadow(reply);
  }

  UnaryResponder responder_;
};

class StreamInferCall final : public InferCall {
 public:
  StreamInferCall(ServiceContext& context, const RawCall& call, V2Stream& stream)
      : InferCall(context, Method::kModelStreamInfer, call), responder_(*this, stream) {
    RespondThrough(&responder_);
    stream.Open(&responder_);
  }

 private:
  ~StreamInferCall() override = default;

  void TakeId(const std::string& id) override { responder_.set_id(id); }
  // A stream has trailers only once; the error's message says how long the queue is.
  void TellDepth(int64_t) override {}

  void Reply(const JobTimings& timings) override {
    inference::ModelStreamInferResponse reply;
    inference::ModelInferResponse* response = reply.mutable_infer_response();
    FillReply(timings, response);
    (*response->mutable_parameters())["triton_final_response"].set_bool_param(true);
    AnswerAndShadow(reply);
  }

  V2StreamResponder responder_;
};

}  // namespace

grpc::ServerUnaryReactor* StartV2Infer(ServiceContext& context, const RawCall& call,
                                       grpc::ByteBuffer* reply) {
  auto* infer = new UnaryInferCall(context, call, reply);
  grpc::ServerUnaryReactor* reactor = infer->reactor();
  infer->Start();
  return reactor;
}

void StartV2StreamInfer(ServiceContext& context, const RawCall& call, V2Stream& stream) {
  (new StreamInferCall(context, call, stream))->Start();
}

}  // namespace deeppcr
