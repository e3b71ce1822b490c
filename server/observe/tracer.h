// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_OBSERVE_TRACER_H_
#define DEEPPCR_SERVER_OBSERVE_TRACER_H_

// Traces of what requests spent their time on, in a file and on their way to a collector.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/observe/request_trace.h"
#include "server/observe/span_exporter.h"
#include "server/observe/trace_file.h"

namespace deeppcr {

// The trace of W3C's header `traceparent`: 00-<32 hex digits>-<16 hex digits>-<2 hex digits>.
struct TraceParent {
  // 32 and 16 hex digits, into the header; empty: there is no valid one.
  std::string_view trace_id, parent_id;
  bool sampled = false;  // the caller records its trace and asks for the same
};
TraceParent ParseTraceParent(std::string_view header);

struct TracerOptions {
  double rate = 1;  // share of requests that are traced without their callers asking for it
  // Each writes nothing without the first of its options; see there.
  std::string file;
  int64_t max_bytes = int64_t{256} << 20;
  std::string endpoint, version;
  SpanExporter::Lost lost;
};

// Thread-safe; never waits for the disk or the network.
class Tracer {
 public:
  // Errors: those of TraceFile and SpanExporter.
  static absl::StatusOr<std::unique_ptr<Tracer>> Create(const TracerOptions& options);

  // False if no request is ever traced.
  bool enabled() const { return file_ != nullptr || exporter_ != nullptr; }
  // True if the next request is to be traced. Callers that ask for it get at most kAskedPerSecond
  // traces: they must not decide how soon older ones are gone.
  bool Sample(bool asked);
  static constexpr int kAskedPerSecond = 50;
  void Write(const RequestTrace& request);
  SpanExporter::Counts spans() const;

 private:
  using Clock = RequestTrace::Clock;
  explicit Tracer(double rate) : rate_(rate) {}
  bool TakeAsked();

  const double rate_;
  std::atomic<int64_t> requests_{0};
  std::mutex mutex_;
  Clock::time_point window_{};  // the second in which asked_ requests were traced
  int asked_ = 0;
  std::unique_ptr<TraceFile> file_;         // null without a file
  std::unique_ptr<SpanExporter> exporter_;  // null without an endpoint
};

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_OBSERVE_TRACER_H_
