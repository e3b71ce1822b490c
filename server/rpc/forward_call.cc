// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "server/rpc/solve_call.h"

namespace deeppcr {
namespace {

class ForwardCall final : public SolveCall {
 public:
  ForwardCall(ServiceContext& context, const RawCall& call, grpc::ByteBuffer* reply)
      : SolveCall(context, Method::kForward, call), responder_(*this, reply) {
    RespondThrough(&responder_);
  }
  grpc::ServerUnaryReactor* reactor() { return &responder_; }

 private:
  ~ForwardCall() override = default;

  absl::Status Admit() override { return AdmitRequest(&request_, DecodeForward, Method::kForward); }

  void AllocateReply(const ModelInfo& info) override {
    const int64_t n = input_.num_samples;
    run_item.outputs = AllocateTensor(std::array{n, info.output_dim}, reply_.mutable_outputs());
    AllocateTrajectory(info, &reply_);
  }

  void Reply(const JobTimings& timings) override {
    v1::ForwardResponse reply;  // its memory ends here, and not when the client has read it
    reply.Swap(&reply_);
    FillSolveReport(*model, options, reports_, timings, reply.mutable_report());
    reply.set_request_id(request_.request_id());
    AnswerAndShadow(reply);
  }

  void FreeRequest() override {
    v1::ForwardRequest().Swap(&request_);
    v1::ForwardResponse().Swap(&reply_);
    ForgetInput();
  }

  UnaryResponder responder_;
  v1::ForwardRequest request_;
  v1::ForwardResponse reply_;
};

}  // namespace

grpc::ServerUnaryReactor* StartForward(ServiceContext& context, const RawCall& call,
                                       grpc::ByteBuffer* reply) {
  auto* forward = new ForwardCall(context, call, reply);
  grpc::ServerUnaryReactor* reactor = forward->reactor();
  forward->Start();
  return reactor;
}

}  // namespace deeppcr
