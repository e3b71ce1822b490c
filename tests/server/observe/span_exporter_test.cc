// SPDX-License-Identifier: Apache-2.0
#include "server/observe/span_exporter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "tests/testing/expect_error.h"
#include "tests/testing/trace_collector.h"

namespace deeppcr {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

constexpr char kTraceId[] = "4bf92f3577b34da6a3ce929d0e0e4736";
constexpr milliseconds kGather{100};
constexpr char kParentId[] = "00f067aa0ba902b7";

class SpanExporterTest : public ::testing::Test {
 protected:
  std::unique_ptr<SpanExporter> New(const std::string& endpoint, milliseconds gather = kGather) {
    const auto lost = [this](int64_t spans, std::string_view why) {
      const std::lock_guard<std::mutex> lock(mutex_);
      lost_ += spans;
      why_ = why;
    };
    return *SpanExporter::Create(
        {.endpoint = endpoint, .version = "1.2.3", .lost = lost, .gather = gather});
  }
  std::unique_ptr<SpanExporter> New() { return New(collector_.endpoint()); }

  static RequestTrace RequestOf(std::span<const RequestTrace::Stage> stages) {
    return {.service = "deeppcr.v1.DeepPcr",
            .method = "Generate",
            .model = "m\xff",
            .solver = "newton",
            .request_id = "seven",
            .trace_id = kTraceId,
            .parent_id = kParentId,
            .code_name = "OK",
            .version = 3,
            .samples = 2,
            .batch_samples = 5,
            .stages = stages};
  }
  static std::array<RequestTrace::Stage, 2> Stages() {
    const auto start = RequestTrace::Clock::now() - std::chrono::seconds(1);
    const auto middle = start + std::chrono::microseconds(100);
    return {{{"recv", start, middle}, {"send", middle, middle + std::chrono::microseconds(50)}}};
  }
  static int64_t Nanoseconds(const json& span, const char* key) {
    return std::stoll(span[key].get<std::string>());
  }
  static json AttributesOf(const json& object) {
    json attributes;
    for (const json& attribute : object["attributes"])
      attributes[attribute["key"].get<std::string>()] = *attribute["value"].begin();
    return attributes;
  }
  std::string Why() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return why_;
  }
  int64_t Lost() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return lost_;
  }

  testing::TraceCollector collector_;

 private:
  std::mutex mutex_;
  int64_t lost_ = 0;
  std::string why_;
};

TEST_F(SpanExporterTest, ARequestIsASpanBelowItsCallersAndAboveItsStages) {
  const auto stages = Stages();
  const auto exporter = New();
  exporter->Write(RequestOf(stages));

  const json message = collector_.Messages(1).at(0);
  const json& resource = message["resourceSpans"][0];
  EXPECT_EQ(AttributesOf(resource["resource"])["service.name"], "deeppcr-server");
  EXPECT_EQ(AttributesOf(resource["resource"])["service.version"], "1.2.3");
  const json& spans = resource["scopeSpans"][0]["spans"];
  ASSERT_EQ(spans.size(), 3u);
  const json& root = spans[0];
  EXPECT_EQ(root["traceId"], kTraceId);
  EXPECT_EQ(root["parentSpanId"], kParentId);
  EXPECT_EQ(root["name"], "deeppcr.v1.DeepPcr/Generate");
  EXPECT_EQ(root["kind"], 2);
  EXPECT_FALSE(root.contains("status"));
  const json attributes = AttributesOf(root);
  EXPECT_EQ(attributes["rpc.system"], "grpc");
  EXPECT_EQ(attributes["rpc.service"], "deeppcr.v1.DeepPcr");
  EXPECT_EQ(attributes["rpc.method"], "Generate");
  EXPECT_EQ(attributes["rpc.grpc.status_code"], "0");
  EXPECT_EQ(attributes["deeppcr.model"], "m\xef\xbf\xbd");
  EXPECT_EQ(attributes["deeppcr.version"], "3");
  EXPECT_EQ(attributes["deeppcr.batch_samples"], "5");
  EXPECT_EQ(attributes["deeppcr.request_id"], "seven");
  std::set<std::string> ids;
  for (const json& span : spans) {
    ids.insert(span["spanId"].get<std::string>());
    EXPECT_THAT(span["spanId"].get<std::string>(), ::testing::MatchesRegex("[0-9a-f]{16}"));
    EXPECT_EQ(span["traceId"], kTraceId);
  }
  EXPECT_EQ(ids.size(), 3u);
  EXPECT_EQ(spans[1]["name"], "recv");
  EXPECT_EQ(spans[1]["parentSpanId"], root["spanId"]);
  EXPECT_EQ(spans[2]["name"], "send");
  EXPECT_EQ(spans[2]["parentSpanId"], root["spanId"]);
  EXPECT_EQ(Nanoseconds(root, "endTimeUnixNano") - Nanoseconds(root, "startTimeUnixNano"), 150'000);
  EXPECT_EQ(spans[1]["endTimeUnixNano"], spans[2]["startTimeUnixNano"]);
  const auto now = std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::system_clock::now().time_since_epoch());
  EXPECT_LT(Nanoseconds(root, "endTimeUnixNano"), now.count());
  EXPECT_GT(Nanoseconds(root, "endTimeUnixNano"), (now - std::chrono::seconds(60)).count());
}

TEST_F(SpanExporterTest, ARequestWithoutATraceHasOneOfItsOwn) {
  const auto stages = Stages();
  const auto exporter = New();
  RequestTrace request = RequestOf(stages);
  request.trace_id = request.parent_id = {};
  request.code = absl::StatusCode::kInternal;
  request.code_name = "INTERNAL";
  exporter->Write(request);
  // A fault of the caller's is none of the server's.
  request.code = absl::StatusCode::kInvalidArgument;
  request.code_name = "INVALID_ARGUMENT";
  exporter->Write(request);

  const std::vector<json> spans = collector_.Spans(6);
  ASSERT_EQ(spans.size(), 6u);
  EXPECT_FALSE(spans[0].contains("parentSpanId"));
  EXPECT_EQ(spans[0]["status"]["code"], 2);
  EXPECT_EQ(spans[0]["status"]["message"], "INTERNAL");
  EXPECT_EQ(AttributesOf(spans[0])["rpc.grpc.status_code"], "13");
  EXPECT_FALSE(spans[3].contains("status"));
  EXPECT_EQ(AttributesOf(spans[3])["rpc.grpc.status_code"], "3");
  EXPECT_THAT(spans[0]["traceId"].get<std::string>(), ::testing::MatchesRegex("[0-9a-f]{32}"));
  EXPECT_EQ(spans[1]["traceId"], spans[0]["traceId"]);
  EXPECT_NE(spans[3]["traceId"], spans[0]["traceId"]);
}

TEST_F(SpanExporterTest, WhatGathersGoesInOneMessageAndTheLastOnTheWayOut) {
  const auto stages = Stages();
  {
    const auto exporter = New(collector_.endpoint(), std::chrono::minutes(1));
    for (int i = 0; i < 100; ++i) exporter->Write(RequestOf(stages));
  }
  EXPECT_EQ(collector_.Messages(1).size(), 1u);
  EXPECT_EQ(collector_.Spans(300).size(), 300u);
  EXPECT_EQ(Lost(), 0);
}

TEST_F(SpanExporterTest, TriesAgainWhereTheCollectorIsBusy) {
  const auto stages = Stages();
  collector_.AnswerWith({503, 429});
  const auto exporter = New();
  exporter->Write(RequestOf(stages));
  EXPECT_EQ(collector_.Spans(3).size(), 3u);
  EXPECT_EQ(collector_.posts(), 3);
  EXPECT_EQ(Lost(), 0);
}

TEST_F(SpanExporterTest, WaitsAsLongAsTheCollectorAsks) {
  const auto stages = Stages();
  collector_.AnswerWith({503});
  collector_.SetRetryAfter("2");
  const auto exporter = New();
  exporter->Write(RequestOf(stages));
  while (collector_.posts() == 0) std::this_thread::sleep_for(milliseconds(5));
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(collector_.Spans(3).size(), 3u);
  EXPECT_GT(std::chrono::steady_clock::now() - begin, milliseconds(1500));
}

// A pause that no collector means is no reason to wait for ever, or for an exception.
TEST_F(SpanExporterTest, BelievesNoPauseThatMakesNoSense) {
  const auto stages = Stages();
  const auto exporter = New();
  int64_t sent = 0;
  for (const char* pause : {"", "-5", "x", "Wed, 21 Oct 2015 07:28:00 GMT"}) {
    collector_.AnswerWith({503});
    collector_.SetRetryAfter(pause);
    exporter->Write(RequestOf(stages));
    sent += 3;
    EXPECT_EQ(collector_.Spans(static_cast<size_t>(sent)).size(), static_cast<size_t>(sent))
        << pause;
  }
  collector_.AnswerWith({503});
  collector_.SetRetryAfter("9223372036854775807");
  exporter->Write(RequestOf(stages));
  while (collector_.posts() < 9) std::this_thread::sleep_for(milliseconds(5));
  EXPECT_EQ(Lost(), 0) << "it waits, and leaves at once when the server does";
}

TEST_F(SpanExporterTest, DropsWhatTheCollectorRefuses) {
  const auto stages = Stages();
  collector_.AnswerWith({400});
  const auto exporter = New();
  exporter->Write(RequestOf(stages));
  while (exporter->counts().dropped == 0) std::this_thread::sleep_for(milliseconds(5));
  EXPECT_EQ(collector_.posts(), 1);
  EXPECT_EQ(Lost(), 3);
  EXPECT_EQ(Why(), "the collector answered 400");

  collector_.SetReply(R"({"partialSuccess":{"rejectedSpans":"2","errorMessage":"why"}})");
  exporter->Write(RequestOf(stages));
  while (exporter->counts().dropped == 3) std::this_thread::sleep_for(milliseconds(5));
  EXPECT_EQ(exporter->counts().dropped, 5);
  EXPECT_EQ(exporter->counts().sent, 1);
  EXPECT_EQ(Why(), "the collector rejected them");
}

// A reply is no reason to count below zero, or for an exception.
TEST_F(SpanExporterTest, BelievesNoReplyThatMakesNoSense) {
  const auto stages = Stages();
  const auto exporter = New();
  int64_t sent = 0;
  for (const char* reply :
       {"", "[]", "{\"partialSuccess\":7}", "{\"partialSuccess\":{\"rejectedSpans\":-4}}",
        "{\"partialSuccess\":{\"rejectedSpans\":\"x\"}}", "{\"partialSuccess\":{}}"}) {
    collector_.SetReply(reply);
    exporter->Write(RequestOf(stages));
    sent += 3;
    while (exporter->counts().sent < sent) std::this_thread::sleep_for(milliseconds(5));
    EXPECT_EQ(exporter->counts().dropped, 0) << reply;
  }
  collector_.SetReply("{\"partialSuccess\":{\"rejectedSpans\":1000000}}");
  exporter->Write(RequestOf(stages));
  while (exporter->counts().dropped == 0) std::this_thread::sleep_for(milliseconds(5));
  EXPECT_EQ(exporter->counts().dropped, 3);
}

TEST_F(SpanExporterTest, AReplyWithoutAnEndIsJudgedByItsStatus) {
  const auto stages = Stages();
  collector_.SetReply(std::string(1 << 20, 'x'));
  const auto exporter = New();
  exporter->Write(RequestOf(stages));
  while (exporter->counts().sent == 0) std::this_thread::sleep_for(milliseconds(5));
  EXPECT_EQ(collector_.posts(), 1);
}

// Whoever writes never waits, and memory ends.
TEST_F(SpanExporterTest, AStalledCollectorCostsABoundedQueue) {
  const auto stages = Stages();
  collector_.Hold(true);
  const std::string name(100'000, 'x');
  const auto exporter = New();
  RequestTrace request = RequestOf(stages);
  request.model = name;
  for (int i = 0; i < 100; ++i) exporter->Write(request);
  const int64_t dropped = exporter->counts().dropped;
  EXPECT_GT(dropped, 3 * 50);
  EXPECT_LT(dropped, 3 * 65);

  collector_.Hold(false);
  while (exporter->counts().sent + exporter->counts().dropped < 300)
    std::this_thread::sleep_for(milliseconds(5));
  EXPECT_EQ(exporter->counts().dropped, dropped);
  EXPECT_EQ(Lost(), dropped);
}

TEST_F(SpanExporterTest, LeavesWhileTheCollectorIsStalledOrGone) {
  const auto stages = Stages();
  const auto leave = [&](const std::string& endpoint) {
    auto exporter = New(endpoint);
    exporter->Write(RequestOf(stages));
    std::this_thread::sleep_for(2 * kGather);
    const auto begin = RequestTrace::Clock::now();
    exporter.reset();
    return RequestTrace::Clock::now() - begin;
  };
  collector_.Hold(true);
  // It would be kSendMilliseconds without an end, and as long again for each attempt.
  EXPECT_LT(leave(collector_.endpoint()), std::chrono::seconds(8));
  EXPECT_EQ(Lost(), 3);
  EXPECT_LT(leave("http://127.0.0.1:1/v1/traces"), std::chrono::seconds(8));
  EXPECT_EQ(Lost(), 6);
}

TEST(SpanExporterEndpointTest, IsAUrlOfHttpWithoutAPassword) {
  for (const char* endpoint :
       {"collector:4318", "collector", "ftp://collector/", "file:///etc/passwd", "http://",
        "http://user:secret@collector:4318/v1/traces", "http://user@collector/", "unix:/x"}) {
    const auto exporter = SpanExporter::Create({.endpoint = endpoint});
    testing::ExpectError(exporter, absl::StatusCode::kInvalidArgument,
                         "--otlp_traces_endpoint: expected a URL as ");
    EXPECT_THAT(exporter.status().message(), ::testing::Not(::testing::HasSubstr("secret")));
  }
  EXPECT_TRUE(SpanExporter::Create({.endpoint = "https://collector/v1/traces"}).ok());
}

}  // namespace
}  // namespace deeppcr
