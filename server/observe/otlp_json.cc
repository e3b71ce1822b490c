// SPDX-License-Identifier: Apache-2.0
#include "server/observe/otlp_json.h"

#include <charconv>

#include "kernels/base/strings.h"
#include "nlohmann/json.hpp"

namespace deeppcr {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kServer = 2, kInternal = 1;  // SpanKind
constexpr int kError = 2;                  // StatusCode

std::string Text(const Json& json) {
  // Names that a client chooses need not be UTF-8.
  return json.dump(-1, ' ', true, Json::error_handler_t::replace);
}

Json Attribute(std::string_view key, std::string_view value) {
  return {{"key", key}, {"value", {{"stringValue", value}}}};
}
// 64-bit integers are strings in JSON of Protocol Buffers.
Json Attribute(std::string_view key, int64_t value) {
  return {{"key", key}, {"value", {{"intValue", StrCat(value)}}}};
}

std::string Hex(uint64_t value) {
  std::string text(16, '0');
  for (size_t i = text.size(); i-- > 0; value >>= 4) text[i] = "0123456789abcdef"[value & 15];
  return text;
}

// The conventions of OpenTelemetry for gRPC: other codes say that the request was wrong.
bool IsOfTheServer(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDataLoss:
      return true;
    default:
      return false;
  }
}

// Times of the steady clock as nanoseconds since 1970.
class UnixTime {
 public:
  std::string operator()(RequestTrace::Clock::time_point time) const {
    const auto at = system_ + std::chrono::duration_cast<std::chrono::nanoseconds>(time - steady_);
    return StrCat(
        std::chrono::duration_cast<std::chrono::nanoseconds>(at.time_since_epoch()).count());
  }

 private:
  std::chrono::system_clock::time_point system_ = std::chrono::system_clock::now();
  RequestTrace::Clock::time_point steady_ = RequestTrace::Clock::now();
};

}  // namespace

std::string SpanIds::Span() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return Hex(Next());
}

std::string SpanIds::Trace() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return Hex(Next()) + Hex(Next());
}

uint64_t SpanIds::Next() {
  while (true) {
    if (const uint64_t id = engine_(); id != 0) return id;
  }
}

Spans SpansOf(const RequestTrace& request, SpanIds& ids) {
  const UnixTime unix_time;
  const std::string trace = request.trace_id.empty() ? ids.Trace() : std::string(request.trace_id);
  const std::string root = ids.Span();
  Json span = {{"traceId", trace}, {"spanId", root}};
  if (!request.parent_id.empty()) span["parentSpanId"] = request.parent_id;
  span["name"] = StrCat(request.service, "/", request.method);
  span["kind"] = kServer;
  span["startTimeUnixNano"] = unix_time(request.stages.front().begin);
  span["endTimeUnixNano"] = unix_time(request.stages.back().end);
  span["attributes"] = Json::array(
      {Attribute("rpc.system", "grpc"), Attribute("rpc.service", request.service),
       Attribute("rpc.method", request.method),
       Attribute("rpc.grpc.status_code", static_cast<int64_t>(request.code)),
       Attribute("deeppcr.model", request.model), Attribute("deeppcr.version", request.version),
       Attribute("deeppcr.solver", request.solver), Attribute("deeppcr.samples", request.samples),
       Attribute("deeppcr.batch_samples", request.batch_samples),
       Attribute("deeppcr.request_id", request.request_id)});
  if (IsOfTheServer(request.code))
    span["status"] = {{"code", kError}, {"message", request.code_name}};
  Spans spans{.json = Text(span), .count = 1};
  for (const RequestTrace::Stage& stage : request.stages) {
    spans.json += "," + Text({{"traceId", trace},
                              {"spanId", ids.Span()},
                              {"parentSpanId", root},
                              {"name", stage.name},
                              {"kind", kInternal},
                              {"startTimeUnixNano", unix_time(stage.begin)},
                              {"endTimeUnixNano", unix_time(stage.end)}});
    ++spans.count;
  }
  return spans;
}

std::pair<std::string, std::string> SpanFrame(std::string_view version, SpanIds& ids) {
  const std::string_view mark = "\"SPANS\"";
  const Json attributes = Json::array({Attribute("service.name", "deeppcr-server"),
                                       Attribute("service.version", version),
                                       Attribute("service.instance.id", ids.Trace())});
  const Json scope = {{"scope", {{"name", "deeppcr"}, {"version", version}}},
                      {"spans", Json::array({"SPANS"})}};
  const Json resource = {{"resource", {{"attributes", attributes}}},
                         {"scopeSpans", Json::array({scope})}};
  const std::string text = Text({{"resourceSpans", Json::array({resource})}});
  const size_t at = text.find(mark);
  return {text.substr(0, at), text.substr(at + mark.size())};
}

int64_t RejectedSpans(std::string_view reply) {
  const nlohmann::json message = nlohmann::json::parse(reply, nullptr, /*allow_exceptions=*/false);
  const auto member = [](const nlohmann::json& object, const char* name) {
    return object.is_object() && object.contains(name) ? object[name] : nlohmann::json();
  };
  const nlohmann::json rejected = member(member(message, "partialSuccess"), "rejectedSpans");
  if (rejected.is_number_integer()) return rejected.get<int64_t>();
  if (!rejected.is_string()) return 0;
  const auto& digits = rejected.get_ref<const std::string&>();
  int64_t count = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), count);
  return count;
}

}  // namespace deeppcr
