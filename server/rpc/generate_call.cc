// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "server/rpc/solve_call.h"

namespace deeppcr {
namespace {

class GenerateCall : public SolveCall {
 protected:
  using SolveCall::SolveCall;

  absl::Status Admit() override {
    return AdmitRequest(&request_, DecodeGenerate, Method::kGenerate);
  }

  void AllocateReply(const ModelInfo& info) override {
    const int64_t n = input_.num_samples;
    run_item.outputs = AllocateTensor(std::array{n, info.output_dim}, reply_.mutable_samples());
    if (info.has_decoder) {
      run_item.final_states =
          AllocateTensor(std::array{n, info.state_dim}, reply_.mutable_latents());
    }
    AllocateTrajectory(info, &reply_);
  }

  // Moves the whole reply to `reply`: its memory is the caller's.
  void TakeReply(const JobTimings& timings, v1::GenerateResponse* reply) {
    reply->Swap(&reply_);
    FillSolveReport(*model, options, reports_, timings, reply->mutable_report());
    reply->set_request_id(request_.request_id());
  }

  void FreeRequest() override {
    v1::GenerateRequest().Swap(&request_);
    v1::GenerateResponse().Swap(&reply_);
    ForgetInput();
  }

 private:
  v1::GenerateRequest request_;
  v1::GenerateResponse reply_;
};

class UnaryGenerateCall final : public GenerateCall {
 public:
  UnaryGenerateCall(ServiceContext& context, const RawCall& call, grpc::ByteBuffer* reply)
      : GenerateCall(context, Method::kGenerate, call), responder_(*this, reply) {
    RespondThrough(&responder_);
  }
  grpc::ServerUnaryReactor* reactor() { return &responder_; }

 private:
  ~UnaryGenerateCall() override = default;

  void Reply(const JobTimings& timings) override {
    v1::GenerateResponse reply;
    TakeReply(timings, &reply);
    AnswerAndShadow(reply);
  }

  UnaryResponder responder_;
};

class StreamGenerateCall final : public GenerateCall, public ProgressListener {
 public:
  StreamGenerateCall(ServiceContext& context, const RawCall& call)
      : GenerateCall(context, Method::kStreamGenerate, call), responder_(*this) {
    RespondThrough(&responder_);
  }
  grpc::ServerWriteReactor<grpc::ByteBuffer>* reactor() { return &responder_; }

  void OnProgress(const SolveProgress& progress) override {
    if (!responder_.idle()) return;  // the client is told as fast as it reads
    v1::StreamGenerateResponse event;
    FillProgress(progress, input_.num_steps, event.mutable_progress());
    responder_.Progress(Serialize(event));
  }

 private:
  ~StreamGenerateCall() override = default;

  void AllocateReply(const ModelInfo& info) override {
    GenerateCall::AllocateReply(info);
    run_item.listener = this;
  }

  void Reply(const JobTimings& timings) override {
    v1::StreamGenerateResponse reply;
    TakeReply(timings, reply.mutable_result());
    AnswerAndShadow(reply);
  }

  StreamResponder responder_;
};

}  // namespace

grpc::ServerUnaryReactor* StartGenerate(ServiceContext& context, const RawCall& call,
                                        grpc::ByteBuffer* reply) {
  auto* generate = new UnaryGenerateCall(context, call, reply);
  grpc::ServerUnaryReactor* reactor = generate->reactor();
  generate->Start();
  return reactor;
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* StartStreamGenerate(ServiceContext& context,
                                                                const RawCall& call) {
  auto* generate = new StreamGenerateCall(context, call);
  grpc::ServerWriteReactor<grpc::ByteBuffer>* reactor = generate->reactor();
  generate->Start();
  return reactor;
}

}  // namespace deeppcr
