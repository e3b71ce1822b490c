// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_RPC_SMALL_CALLS_H_
#define DEEPPCR_SERVER_RPC_SMALL_CALLS_H_

// Calls that solve nothing: those that only read are answered by the handler, those that change
// which models are loaded by the loader's thread.

#include <utility>

#include "server/rpc/call.h"

namespace deeppcr {

// A call that is answered at once.
template <typename Request, typename Reply>
class ImmediateCall final : public UnaryCall {
 public:
  using UnaryCall::UnaryCall;

  // answer(request, &reply) gives the status.
  template <typename Answer>
  void Start(const Answer& answer) {
    Request request;
    Reply reply;
    absl::Status status = Receive(&request);
    if (status.ok()) status = answer(request, &reply);
    if (status.ok()) status = HoldSmallReply(reply);
    Complete(status, &reply);
  }

  // The same for callers of the role admin, with a line of who they are.
  template <typename Answer>
  void StartAdmin(const Answer& answer) {
    role_ = Role::kAdmin;
    Start([&](const Request& request, Reply* reply) {
      const absl::Status status = answer(request, reply);
      LogAdministration(status);
      return status;
    });
  }

  // Lets the call be answered also before the server has started and while it drains.
  void AnswerWhileDraining() { answers_always_ = true; }

 private:
  ~ImmediateCall() override = default;
};

// A call that runs on the loader's thread.
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
    return Receive(&request_);
  }

  template <typename Work>
  void Run(const Work& work) {
    // Loads wait for one another, perhaps long: the call may be cancelled by now.
    if (token_.cancelled()) return Refuse(absl::CancelledError("cancelled"));
    // An unload is counted under the name that it takes away.
    if (const auto before = context_.store.Describe(model_, version_); before.ok())
      model_metrics_ = before->metrics;
    Reply reply;
    const absl::Status status = work(request_, &reply);
    LogAdministration(status);
    // What was done is told, whatever the replies of others hold.
    if (status.ok()) HoldSmallReply(reply).IgnoreError();
    Complete(status, &reply);
  }

  Request request_;
};

// A method of calls of this kind. request: the function Request... of `service`.
template <typename Call, typename Service, typename Request, typename Answer>
QueuedMethod QueueSmall(ServiceContext& context, Method method, Service* service, Request request,
                        Answer answer) {
  return Queued(service, request, [&context, method, answer](UnaryCallOfQueue* call) {
    call->MayTakeLong();
    (new Call(context, method, call))->Start(answer);
  });
}

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_RPC_SMALL_CALLS_H_
