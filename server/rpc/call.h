// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_RPC_CALL_H_
#define DEEPPCR_SERVER_RPC_CALL_H_

#include <array>
#include <chrono>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "google/protobuf/message.h"
#include "grpcpp/grpcpp.h"
#include "kernels/base/cancel_token.h"
#include "kernels/base/status_macros.h"
#include "server/codec/request_codec.h"
#include "server/codec/v2/request.h"
#include "server/rpc/responder.h"
#include "server/rpc/service.h"

namespace deeppcr {

// What a handler gets of gRPC; both live until OnDone.
struct RawCall {
  grpc::ServerContext* rpc;
  const grpc::ByteBuffer* request;
};

// One call of any method: its bytes, its deadline and cancellation, its count, its log line.
// Created by the handler, deletes itself when gRPC is done with it. Complete is called exactly
// once, from any thread; `this` may be gone after it.
class Call : public CallEvents {
 public:
  using Clock = CancelToken::Clock;

  Call(ServiceContext& context, Method method, const RawCall& call);

  void OnCancelled() override { token_.Cancel(); }
  void OnTurn(int64_t bytes) override { context_.replies.Add(&unread_, bytes); }
  void OnDone() override;

 protected:
  virtual ~Call() = default;

  // Checks that the caller may call and the server serves, parses the request, and checks the
  // fields that name the request and a model. Errors: those of Authorizer; kUnavailable before the
  // server has started and while it drains, unless this call is answered then too;
  // kInvalidArgument.
  template <typename Request>
  absl::Status Receive(Request* request) {
    client_ = context_.authorizer.ClientOf(Header());
    DEEPPCR_RETURN_IF_ERROR(Authorize());
    DEEPPCR_RETURN_IF_ERROR(Parse(request));
    if constexpr (requires { request->model(); }) {
      NoteModel(request->model());
    } else if constexpr (requires { request->model_name(); }) {
      NoteModel(request->model_name());
    } else if constexpr (requires { request->name(); }) {
      NoteModel(request->name());
    }
    if constexpr (requires { request->request_id(); }) {
      DEEPPCR_RETURN_IF_ERROR(NameRequest("request_id", request->request_id()));
    } else if constexpr (requires { request->id(); }) {
      DEEPPCR_RETURN_IF_ERROR(NameRequest("id", request->id()));
    }
    if constexpr (requires { request->model(); }) {
      return NameModel(request->model(), request->version());
    } else if constexpr (requires { request->model_version(); }) {
      DEEPPCR_ASSIGN_OR_RETURN(const int64_t version, DecodeVersion(request->model_version()));
      return NameModel(request->model_name(), version);
    }
    return absl::OkStatus();
  }
  // Keeps the id of the request, after it has checked the size: memory kept for a refused request
  // counts against no budget. `field`: the protocol's name for the id.
  absl::Status NameRequest(std::string_view field, const std::string& id) {
    DEEPPCR_RETURN_IF_ERROR(CheckRequestId(field, id));
    request_id_ = id;
    responder_->SetId(id);
    return absl::OkStatus();
  }
  // The id of the request: its own, or that of its header x-request-id, as proxies give one. Looked
  // for where it is shown only: gRPC makes a map of the metadata for whoever asks for it.
  std::string_view RequestId() const;
  // Keeps a valid name for metrics and logs; an invalid one is refused where it is used.
  void NoteModel(const std::string& name) {
    if (CheckModelFields(name, 0).ok()) model_ = name;
  }
  absl::Status NameModel(const std::string& model, int64_t version) {
    DEEPPCR_RETURN_IF_ERROR(CheckModelFields(model, version));
    model_ = model;
    version_ = version;
    return absl::OkStatus();
  }

  // The responder is set before the call starts, and lives until OnDone.
  void RespondThrough(Responder* responder) { responder_ = responder; }

  // Answers the call: serializes the reply, which an OK needs, counts, logs, finishes.
  void Complete(const absl::Status& status, const google::protobuf::Message* reply = nullptr);
  // Completes with the error, which names model and request if the request is at fault.
  void Refuse(const absl::Status& error);
  // Tells a client that is refused how long the queue is, for its back-off.
  void SendDepth(int64_t depth, double predicted_wait);

  // Who calls; see Authorizer::Identify.
  absl::StatusOr<std::string> Caller() const { return context_.authorizer.Identify(Header()); }

  // Frees memory that the reply does not need. Called before the reply is sent: from then on the
  // client decides how long the call lasts.
  virtual void FreeRequest() {}

  // Writes who has changed which models are loaded, or tried to.
  void LogAdministration(const absl::Status& status) const;

  // Counts bytes against the budget of all requests and replies until OnDone.
  // Errors: kResourceExhausted.
  absl::Status HoldBytes(int64_t bytes);
  // The same for the reply of a call that solves nothing, against the budget of these.
  absl::Status HoldSmallReply(const google::protobuf::Message& reply);

  ServiceContext& context_;
  grpc::ServerContext* const rpc_;
  const Clock::time_point start_;  // the call's arrival
  CancelToken token_;
  // Values for metrics and logs.
  std::string model_;
  int64_t version_ = 0;
  std::string request_id_;                       // as the request bears it
  std::shared_ptr<ModelMetrics> model_metrics_;  // keeps the series below
  const SolverSeries* series_ = nullptr;
  const StageSeries* stages_ = nullptr;        // set for calls that are computed in a batch
  Clock::time_point submitted_{};              // time of the hand-over to the batcher
  InferenceStatistics* statistics_ = nullptr;  // null until the model is known that is to infer
  int64_t num_samples_ = 0;
  std::string_view solver_;  // resolved; static storage
  JobTimings timings_;
  bool goes_back_ = false;                 // the call asks for gradients
  int64_t parsed_bytes_ = 0;               // of the request's data and unknown fields, at most
  std::shared_ptr<ClientAccount> client_;  // null: of no named client
  int64_t held_bytes_ = 0;                 // part of the batcher's budget, and of the client's
  int64_t small_reply_bytes_ = 0;          // part of small_reply_bytes
  bool answers_always_ = false;
  Role role_ = Role::kInfer;  // the role that a caller needs

 private:
  // The part of a trace beside its times, kept until the reply has been sent.
  struct TraceNote {
    std::string request_id, trace_id, parent_id;
    absl::StatusCode code;
  };

  std::string_view Header() const;
  std::string_view MetadataOf(const char* name) const;
  absl::Status Authorize() const;
  TraceParent Trace() const;
  void NoteTrace(const absl::Status& status);
  void SendNeverFits();
  using Stages = std::array<RequestTrace::Stage, kStageNames.size()>;
  Stages StagesUntil(Clock::time_point end) const;
  void ReportStages() const;
  absl::Status Parse(google::protobuf::Message* request);
  absl::Status Attribute(const absl::Status& status) const;
  void Observe(const absl::Status& status, double seconds) const;
  void Drop() const;
  void Log(const absl::Status& status, double seconds) const;

  const RawCall call_;
  const Method method_;
  Responder* responder_ = nullptr;
  ReplyWatch::Reply unread_;
  std::unique_ptr<TraceNote> note_;  // null: this call is not traced
};

grpc::ByteBuffer Serialize(const google::protobuf::Message& message);

// A call with one reply.
class UnaryCall : public Call {
 public:
  UnaryCall(ServiceContext& context, Method method, UnaryCallOfQueue* call)
      : Call(context, method, {call->rpc(), call->request()}), responder_(*this, call) {
    RespondThrough(&responder_);
  }

 private:
  UnaryResponder responder_;
};

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_RPC_CALL_H_
