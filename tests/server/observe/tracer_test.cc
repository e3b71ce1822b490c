// SPDX-License-Identifier: Apache-2.0
#include "server/observe/tracer.h"

#include <gtest/gtest.h>

#include <array>
#include <fstream>

#include "nlohmann/json.hpp"
#include "tests/testing/expect_error.h"
#include "tests/testing/safetensors_writer.h"

namespace deeppcr {
namespace {

constexpr char kTrace[] = "4bf92f3577b34da6a3ce929d0e0e4736";

TEST(TraceParentTest, IsReadAsW3cWritesIt) {
  const std::string header = std::string("00-") + kTrace + "-00f067aa0ba902b7-01";
  const TraceParent sampled = ParseTraceParent(header);
  EXPECT_EQ(sampled.trace_id, kTrace);
  EXPECT_EQ(sampled.parent_id, "00f067aa0ba902b7");
  EXPECT_TRUE(sampled.sampled);
  const std::string quiet = std::string("00-") + kTrace + "-00f067aa0ba902b7-02";
  EXPECT_EQ(ParseTraceParent(quiet).trace_id, kTrace);
  EXPECT_FALSE(ParseTraceParent(quiet).sampled);
  const std::string later = std::string("cc-") + kTrace + "-00f067aa0ba902b7-01-what-comes";
  EXPECT_EQ(ParseTraceParent(later).trace_id, kTrace);
}

TEST(TraceParentTest, AnythingElseIsNone) {
  const std::string trace = kTrace, zeros(32, '0');
  for (const std::string& header :
       {std::string(), std::string("00"), "00-" + trace + "-00f067aa0ba902b7",
        "00-" + trace + "-00f067aa0ba902b7-01-", "ff-" + trace + "-00f067aa0ba902b7-01",
        "00-" + zeros + "-00f067aa0ba902b7-01", "00-" + trace + "-0000000000000000-01",
        "00-" + trace.substr(1) + "G-00f067aa0ba902b7-01",
        "00-" + trace.substr(1) + "F-00f067aa0ba902b7-01", "00_" + trace + "-00f067aa0ba902b7-01",
        "00-" + trace + "-00f067aa0ba902b7-0\n", std::string(100000, '0')}) {
    EXPECT_EQ(ParseTraceParent(header).trace_id, "") << header.substr(0, 80);
    EXPECT_FALSE(ParseTraceParent(header).sampled);
  }
}

class TracerTest : public ::testing::Test {
 protected:
  std::unique_ptr<Tracer> New(double rate, int64_t max_bytes = 1 << 20) {
    return *Tracer::Create({.rate = rate, .file = path_, .max_bytes = max_bytes});
  }
  // Parses the file as readers do: the array is not closed.
  nlohmann::json Read() const { return Read(path_); }
  static nlohmann::json Read(const std::string& path) {
    std::ifstream file(path);
    std::string text{std::istreambuf_iterator<char>(file), {}};
    while (!text.empty() && (text.back() == '\n' || text.back() == ',')) text.pop_back();
    return nlohmann::json::parse(text + "]");
  }
  static RequestTrace RequestOf(const std::array<RequestTrace::Stage, 2>& stages) {
    return {.method = "ModelInfer",
            .model = "m\xff",
            .solver = "newton",
            .request_id = "seven",
            .trace_id = kTrace,
            .code_name = "OK",
            .version = 3,
            .samples = 2,
            .batch_samples = 5,
            .stages = stages};
  }
  static std::array<RequestTrace::Stage, 2> Stages() {
    const auto start = RequestTrace::Clock::time_point(std::chrono::seconds(5));
    const auto middle = start + std::chrono::microseconds(100);
    return {{{"recv", start, middle}, {"send", middle, middle + std::chrono::microseconds(50)}}};
  }

  testing::TemporaryDirectory folder_;
  const std::string path_ = folder_.File("trace.json");
};

TEST_F(TracerTest, ARequestAndItsStagesAreNestedEvents) {
  const auto stages = Stages();
  {
    const auto tracer = New(1);
    tracer->Write(RequestOf(stages));
    tracer->Write(RequestOf(stages));
  }
  const nlohmann::json events = Read();
  ASSERT_EQ(events.size(), 12u);
  EXPECT_EQ(events[0]["ph"], "b");
  EXPECT_EQ(events[0]["args"]["request_id"], "seven");
  EXPECT_EQ(events[0]["args"]["trace_id"], kTrace);
  EXPECT_EQ(events[0]["args"]["batch_samples"], 5);
  EXPECT_EQ(events[1]["name"], "recv");
  EXPECT_EQ(events[2]["ts"].get<double>() - events[1]["ts"].get<double>(), 100);
  EXPECT_EQ(events[3]["name"], "send");
  EXPECT_EQ(events[5]["ph"], "e");
  EXPECT_EQ(events[5]["name"], events[0]["name"]);
  EXPECT_EQ(events[5]["ts"].get<double>() - events[0]["ts"].get<double>(), 150);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(events[i]["id"], events[0]["id"]);
  EXPECT_NE(events[6]["id"], events[0]["id"]);
}

TEST_F(TracerTest, TakesItsShareAndWhatIsAskedFor) {
  const auto tracer = New(0.25);
  int taken = 0;
  for (int i = 0; i < 100; ++i) taken += tracer->Sample(false) ? 1 : 0;
  EXPECT_EQ(taken, 25);
  const auto none_asked = New(0);
  taken = 0;
  for (int i = 0; i < 1000; ++i) taken += none_asked->Sample(true) ? 1 : 0;
  EXPECT_GE(taken, Tracer::kAskedPerSecond);
  EXPECT_LT(taken, 10 * Tracer::kAskedPerSecond);
  const auto none = New(0);
  EXPECT_FALSE(none->Sample(false));
  EXPECT_TRUE(none->Sample(true));
}

TEST_F(TracerTest, AFullFileBecomesTheOneBefore) {
  const auto stages = Stages();
  {
    const auto tracer = New(1, 4096);
    for (int i = 0; i < 100; ++i) {
      tracer->Write(RequestOf(stages));
      EXPECT_TRUE(tracer->Sample(false));
    }
  }
  const nlohmann::json last = Read(), before = Read(path_ + ".1");
  for (const nlohmann::json& events : {last, before}) {
    EXPECT_GT(events.size(), 0u);
    EXPECT_EQ(events.size() % 6, 0u);
    EXPECT_LT(events.dump().size(), 4096u);
  }
  // Nothing is missing in between, nor at the end.
  EXPECT_EQ(last.back()["id"], 99);
  EXPECT_EQ(last.front()["id"].get<int>(), before.back()["id"].get<int>() + 1);
}

TEST_F(TracerTest, WithoutAFileNothingIsTraced) {
  const auto tracer = *Tracer::Create({});
  EXPECT_FALSE(tracer->Sample(true));
  tracer->Write(RequestOf(Stages()));
  testing::ExpectError(Tracer::Create({.file = folder_.File("no/such/folder")}).status(),
                       absl::StatusCode::kInvalidArgument, "--trace_file");
}

}  // namespace
}  // namespace deeppcr
