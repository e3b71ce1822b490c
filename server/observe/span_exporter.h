// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_OBSERVE_SPAN_EXPORTER_H_
#define DEEPPCR_SERVER_OBSERVE_SPAN_EXPORTER_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/observe/request_trace.h"

namespace deeppcr {

// Sends traces to a collector of OpenTelemetry, as OTLP over HTTP in JSON: a span of the request,
// below its caller's if that said one, and below it a span of each stage. Source: OpenTelemetry
// protocol 1.3. A thread of its own sends what has gathered for a while, tries again where the
// protocol allows it, and drops what does not fit in memory in the meantime. The variables
// http_proxy and https_proxy are heeded. Thread-safe; Write never waits for the network.
class SpanExporter {
 public:
  struct Counts {
    int64_t sent = 0, dropped = 0;  // spans
  };
  // Called on the exporter's thread with what is lost and why.
  using Lost = std::function<void(int64_t spans, std::string_view why)>;

  struct Options {
    std::string endpoint;  // the URL of traces, http://collector:4318/v1/traces
    std::string version;   // of the service
    Lost lost;             // not empty
    std::chrono::milliseconds gather{1000};
  };

  // Errors: kInvalidArgument if the URL is none, not of HTTP, or holds a password.
  static absl::StatusOr<std::unique_ptr<SpanExporter>> Create(Options options);
  // Sends what waits, for two or three seconds at most.
  ~SpanExporter();
  SpanExporter(const SpanExporter&) = delete;
  SpanExporter& operator=(const SpanExporter&) = delete;

  void Write(const RequestTrace& request);
  Counts counts() const;

 private:
  class Sender;
  explicit SpanExporter(std::unique_ptr<Sender> sender);

  const std::unique_ptr<Sender> sender_;
};

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_OBSERVE_SPAN_EXPORTER_H_
