// SPDX-License-Identifier: Apache-2.0
#include "server/unary_call.h"

#include "kernels/base/strings.h"
#include "server/grpc_status.h"

namespace deeppcr {
namespace {

using Clock = CancelToken::Clock;

// gRPC speaks of wall-clock time, which may jump; from here on only the time left counts.
Clock::time_point SteadyDeadline(std::chrono::system_clock::time_point deadline) {
  if (deadline == std::chrono::system_clock::time_point::max()) return Clock::time_point::max();
  const auto left = deadline - std::chrono::system_clock::now();
  // Years away: as good as none, and the sum below must not overflow.
  if (left > std::chrono::hours(24 * 365)) return Clock::time_point::max();
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(left);
}

// Refusals that the operator should see, against mistakes of a client.
bool IsOurs(absl::StatusCode code) {
  return code == absl::StatusCode::kResourceExhausted || code == absl::StatusCode::kUnavailable ||
         code == absl::StatusCode::kInternal || code == absl::StatusCode::kUnknown;
}

}  // namespace

UnaryCall::UnaryCall(ServiceContext& context, Method method, grpc::CallbackServerContext* rpc,
                     std::string_view model, int64_t version)
    : context_(context),
      rpc_(rpc),
      token_(SteadyDeadline(rpc->deadline())),
      model_(model),
      version_(version),
      method_(method),
      start_(Clock::now()) {
  context_.calls.fetch_add(1);
  context_.unanswered.fetch_add(1);
  context_.metrics.in_flight(method_).Increment();
}

void UnaryCall::OnDone() {
  ServiceContext& context = context_;
  context.metrics.in_flight(method_).Decrement();
  delete this;
  // Last: once the count is 0 the server may go.
  context.calls.fetch_sub(1);
}

absl::Status UnaryCall::CheckServing() const {
  if (!context_.draining.load()) return absl::OkStatus();
  return absl::UnavailableError("the server is starting or shutting down");
}

absl::Status UnaryCall::Attribute(const absl::Status& status) const {
  if (status.code() != absl::StatusCode::kCancelled || !context_.stopping.load()) return status;
  return absl::UnavailableError("the server is shutting down");
}

void UnaryCall::Complete(const absl::Status& status) {
  const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
  context_.metrics.CountRequest(model_, method_, status.raw_code());
  if (series_ != nullptr) {
    ObserveFinite(*series_->request_seconds, seconds);
    if (timings_.queued) ObserveFinite(*series_->queue_seconds, timings_.queue_seconds);
    if (timings_.batch_samples > 0) {
      ObserveFinite(*series_->solve_seconds, timings_.run.wall_seconds);
    }
  }
  Log(status, seconds);
  context_.unanswered.fetch_sub(1);
  Finish(ToGrpcStatus(status));
}

void UnaryCall::Log(const absl::Status& status, double seconds) const {
  Logger& logger = context_.logger;
  const std::string_view method = kMethodNames[static_cast<size_t>(method_)];
  const std::string_view model = std::string_view(model_).substr(0, 128);
  const std::string_view request_id = request_id_.substr(0, 128);
  if (!status.ok()) {
    logger.LogLimited(IsOurs(status.code()) ? LogLevel::kWarn : LogLevel::kInfo, "request_refused",
                      {{"method", method},
                       {"model", model},
                       {"version", version_},
                       {"request_id", request_id},
                       {"code", StatusCodeName(status.code())},
                       {"message", ToStd(status.message())}});
  }
  if (!logger.enabled(LogLevel::kDebug)) return;
  logger.Log(LogLevel::kDebug, "request",
             {{"method", method},
              {"model", model},
              {"version", version_},
              {"request_id", request_id},
              {"code", StatusCodeName(status.code())},
              {"seconds", seconds},
              {"queue_seconds", timings_.queue_seconds},
              {"compute_seconds", timings_.run.wall_seconds},
              {"batch_samples", timings_.batch_samples}});
}

}  // namespace deeppcr
