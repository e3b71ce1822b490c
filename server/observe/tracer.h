// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_OBSERVE_TRACER_H_
#define DEEPPCR_SERVER_OBSERVE_TRACER_H_

// Traces of what requests spent their time on, in a file that Perfetto and chrome://tracing open.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/observe/log_queue.h"

namespace deeppcr {

// The trace of W3C's header `traceparent`: 00-<32 hex digits>-<16 hex digits>-<2 hex digits>.
struct TraceParent {
  std::string_view trace_id;  // 32 hex digits, into the header; empty: there is no valid one
  bool sampled = false;       // the caller records its trace and asks for the same
};
TraceParent ParseTraceParent(std::string_view header);

// Thread-safe; never waits for the disk.
class Tracer {
 public:
  using Clock = std::chrono::steady_clock;

  struct Stage {
    std::string_view name;
    Clock::time_point begin, end;
  };
  struct Request {
    std::string_view method, model, solver, request_id, trace_id, code;
    int64_t version = 0, samples = 0, batch_samples = 0;
    std::span<const Stage>
        stages;  // in their order; the first begins and the last ends the request
  };

  // Writes nothing without a path. rate: share of requests that are traced without their callers
  // asking for it. max_bytes: size at which the file is renamed to <path>.1, in place of the one
  // before, and begins anew.
  // Errors: kInvalidArgument if the file cannot be made.
  static absl::StatusOr<std::unique_ptr<Tracer>> Create(const std::string& path, double rate,
                                                        int64_t max_bytes);

  // False if no request is ever traced.
  bool enabled() const { return file_ != nullptr; }
  // True if the next request is to be traced. Callers that ask for it get at most kAskedPerSecond
  // traces: they must not decide how soon older ones are gone.
  bool Sample(bool asked);
  static constexpr int kAskedPerSecond = 50;
  void Write(const Request& request);

 private:
  explicit Tracer(double rate) : rate_(rate) {}
  bool TakeAsked();
  std::string EventsOf(const Request& request);

  const double rate_;
  std::atomic<int64_t> requests_{0}, traced_{0};
  std::mutex mutex_;
  Clock::time_point window_{};  // the second in which asked_ requests were traced
  int asked_ = 0;
  std::unique_ptr<LogQueue> file_;  // null without a path
};

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_OBSERVE_TRACER_H_
