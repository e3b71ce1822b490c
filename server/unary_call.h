// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_UNARY_CALL_H_
#define DEEPPCR_SERVER_UNARY_CALL_H_

#include <chrono>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "grpcpp/grpcpp.h"
#include "kernels/solver/cancel_token.h"
#include "server/service.h"

namespace deeppcr {

// One call of any method: its deadline and cancellation, its count, its log line. Created by the
// handler, deletes itself when gRPC is done with it. Complete is called exactly once, from any
// thread; `this` may be gone after it.
class UnaryCall : public grpc::ServerUnaryReactor {
 public:
  using Clock = CancelToken::Clock;

  UnaryCall(ServiceContext& context, Method method, grpc::CallbackServerContext* rpc,
            std::string_view model, int64_t version);

  void OnCancel() override { token_.Cancel(); }
  void OnDone() override;

 protected:
  ~UnaryCall() override = default;

  // kUnavailable before the server has started and while it drains.
  absl::Status CheckServing() const;

  // Answers the call: counts, logs, finishes.
  void Complete(const absl::Status& status);

  // As it is, but a cancellation of ours is kUnavailable: the client did not ask for it.
  absl::Status Attribute(const absl::Status& status) const;

  ServiceContext& context_;
  grpc::CallbackServerContext* const rpc_;
  CancelToken token_;
  // For metrics and logs.
  const std::string model_;
  int64_t version_;
  std::string_view request_id_;  // the request's; it lives until OnDone
  const SolverSeries* series_ = nullptr;
  JobTimings timings_;

 private:
  void Log(const absl::Status& status, double seconds) const;

  const Method method_;
  const Clock::time_point start_;
};

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_UNARY_CALL_H_
