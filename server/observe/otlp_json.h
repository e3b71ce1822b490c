// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_OBSERVE_OTLP_JSON_H_
#define DEEPPCR_SERVER_OBSERVE_OTLP_JSON_H_

// Messages of OpenTelemetry's protocol 1.3 (OTLP) about traces, in JSON: ids are hexadecimal,
// 64-bit integers strings.

#include <cstdint>
#include <mutex>
#include <random>
#include <string>
#include <string_view>
#include <utility>

#include "server/observe/request_trace.h"

namespace deeppcr {

// Random ids, none of them 0, which would be no id. Thread-safe.
class SpanIds {
 public:
  std::string Span();   // 16 digits
  std::string Trace();  // 32 digits

 private:
  uint64_t Next();

  std::mutex mutex_;
  std::random_device device_;
  std::seed_seq seed_{device_(), device_(), device_(), device_()};
  std::mt19937_64 engine_{seed_};
};

// Some elements of an array of spans.
struct Spans {
  std::string json;
  int64_t count = 0;
};

// The span of a request, below its caller's if there is one, and those of its stages below it.
Spans SpansOf(const RequestTrace& request, SpanIds& ids);

// What comes before and after the spans of a message of this process.
std::pair<std::string, std::string> SpanFrame(std::string_view version, SpanIds& ids);

// Spans that a collector says it has not taken of those that it answers well; 0 where the reply
// makes no sense.
int64_t RejectedSpans(std::string_view reply);

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_OBSERVE_OTLP_JSON_H_
