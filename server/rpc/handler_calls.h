// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_RPC_HANDLER_CALLS_H_
#define DEEPPCR_SERVER_RPC_HANDLER_CALLS_H_

// Calls that need no solver: answered by the handler, or by the loader thread.

#include <utility>

#include "server/rpc/call.h"

namespace deeppcr {

// The bytes of a reply that waits to be read, with what gRPC keeps of its call.
inline int64_t ReplyBytes(const google::protobuf::Message& reply) {
  return static_cast<int64_t>(reply.ByteSizeLong()) + 4096;
}

// A call that is answered at once by the handler.
template <typename Request, typename Reply>
class ImmediateCall final : public UnaryCall {
 public:
  using UnaryCall::UnaryCall;

  // Lets the call be answered also before the server has started and while it drains.
  void AnswerAlways() { answers_always_ = true; }

  // answer(request, &reply) gives the status.
  template <typename Answer>
  void Start(const Answer& answer) {
    Request request;
    Reply reply;
    absl::Status status = Receive(&request);
    if (status.ok()) status = answer(request, &reply);
    if (status.ok()) status = HoldBytes(ReplyBytes(reply));
    Complete(status, &reply);
  }

 private:
  ~ImmediateCall() override = default;
};

// A call that changes which models are loaded; runs on the loader thread.
template <typename Request, typename Reply>
class AdminCall final : public UnaryCall {
 public:
  using UnaryCall::UnaryCall;

  // work(request, &reply) gives the status.
  template <typename Work>
  void Start(Work work) {
    absl::Status status = Admit();
    if (status.ok() && !context_.loader.Post([this, work = std::move(work)] { Run(work); })) {
      status = absl::ResourceExhaustedError("too many loads and unloads wait; try again later");
    }
    if (!status.ok()) Complete(status);
  }

 private:
  ~AdminCall() override = default;

  absl::Status Admit() {
    role_ = Role::kAdmin;
    if (!context_.allow_remote_admin && !IsLoopbackPeer(rpc_->peer())) {
      return absl::PermissionDeniedError(
          "models are loaded and unloaded from the server's own machine only, unless it runs with "
          "--allow_remote_admin");
    }
    return Receive(&request_);
  }

  template <typename Work>
  void Run(const Work& work) {
    // Loads wait for one another, perhaps long: the call may be cancelled by now.
    if (token_.cancelled()) return Complete(Attribute(absl::CancelledError("cancelled")));
    Reply reply;
    absl::Status status = work(request_, &reply);
    if (status.ok()) status = HoldBytes(ReplyBytes(reply));
    Complete(status, &reply);
  }

  Request request_;
};

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_RPC_HANDLER_CALLS_H_
