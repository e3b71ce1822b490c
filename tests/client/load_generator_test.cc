// SPDX-License-Identifier: Apache-2.0
#include "client/load_generator.h"

#include <gtest/gtest.h>

#include <mutex>
#include <set>
#include <thread>
#include <vector>

namespace deeppcr {
namespace {

using std::chrono::milliseconds;

TEST(LoadGeneratorTest, SendsEachRequestOnceAndCounts) {
  std::mutex mutex;
  std::multiset<int64_t> sent;
  const SendRequest send = [&](int, int64_t index) -> absl::StatusOr<RequestOutcome> {
    const std::lock_guard<std::mutex> lock(mutex);
    sent.insert(index);
    if (index % 10 == 0) return absl::UnavailableError("down");
    return RequestOutcome{.solver = "newton", .samples = 2, .fallbacks = 1};
  };

  const auto result = GenerateLoad({.clients = 8, .requests = 100}, send, nullptr).value();

  EXPECT_EQ(sent.size(), 100u);
  EXPECT_EQ(std::set<int64_t>(sent.begin(), sent.end()).size(), 100u);
  EXPECT_EQ(result.requests, 100);
  EXPECT_EQ(result.ok, 90);
  EXPECT_EQ(result.samples, 180);
  EXPECT_EQ(result.fallbacks, 90);
  EXPECT_EQ(result.errors.at("UNAVAILABLE"), 10);
  EXPECT_EQ(result.first_error.at("UNAVAILABLE"), "down");
  EXPECT_EQ(result.solvers.at("newton"), 90);
  EXPECT_EQ(result.latency.count, 90);
}

TEST(LoadGeneratorTest, EachClientHasOneRequestUnderWay) {
  std::vector<std::atomic<int>> under_way(4);
  std::atomic<bool> overlapped{false};
  const SendRequest send = [&](int client, int64_t) -> absl::StatusOr<RequestOutcome> {
    std::atomic<int>& mine = under_way[static_cast<size_t>(client)];
    if (mine.fetch_add(1) != 0) overlapped = true;
    std::this_thread::sleep_for(milliseconds(1));
    mine.fetch_sub(1);
    return RequestOutcome{};
  };

  ASSERT_TRUE(GenerateLoad({.clients = 4, .requests = 40}, send, nullptr).ok());

  EXPECT_FALSE(overlapped);
}

TEST(LoadGeneratorTest, FixedRateChargesAStallToTheRequestsItDelayed) {
  // 20 requests are due 10 ms apart, and number 0 takes 100 ms on the only client. Number k is due
  // at 10 k ms, so numbers up to 9 wait for 100 - 10 k ms. A closed loop would see one slow
  // request.
  const SendRequest send = [](int, int64_t index) -> absl::StatusOr<RequestOutcome> {
    if (index == 0) std::this_thread::sleep_for(milliseconds(100));
    return RequestOutcome{};
  };

  const auto result = GenerateLoad({.clients = 1, .rate = 100, .requests = 20}, send, nullptr);

  ASSERT_TRUE(result.ok());
  EXPECT_GE(result->latency.max, 0.1);
  EXPECT_GE(result->latency.p90,
            0.08 - 1e-6);  // rank 18 of 20: only 0 and 1 are slower than number 2
  EXPECT_GE(result->send_lag.max, 0.09 - 1e-6);
  EXPECT_GE(result->seconds, 0.19);  // the schedule is kept, not compressed
}

TEST(LoadGeneratorTest, FixedRateStartsAsManyAsTheTimeHolds) {
  const SendRequest send = [](int, int64_t) -> absl::StatusOr<RequestOutcome> {
    return RequestOutcome{};
  };

  const auto result =
      GenerateLoad({.clients = 4, .rate = 500, .duration = absl::Milliseconds(100)}, send, nullptr);

  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->requests, 50);
}

TEST(LoadGeneratorTest, WarmUpIsSentButNotMeasured) {
  std::atomic<int64_t> calls{0};
  std::atomic<int64_t> done{0};
  const SendRequest send = [&](int, int64_t) -> absl::StatusOr<RequestOutcome> {
    ++calls;
    std::this_thread::sleep_for(milliseconds(1));
    return RequestOutcome{};
  };

  const auto result = GenerateLoad({.requests = 5, .warmup = absl::Milliseconds(50)}, send, &done);

  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->requests, 5);
  EXPECT_GT(calls, 5);
  EXPECT_EQ(done, calls);
}

TEST(LoadGeneratorTest, RefusesOptionsOutOfRange) {
  const SendRequest send = [](int, int64_t) -> absl::StatusOr<RequestOutcome> {
    return RequestOutcome{};
  };

  EXPECT_FALSE(GenerateLoad({.clients = 0}, send, nullptr).ok());
  EXPECT_FALSE(GenerateLoad({.clients = 1025}, send, nullptr).ok());
  EXPECT_FALSE(GenerateLoad({.rate = -1}, send, nullptr).ok());
  EXPECT_FALSE(GenerateLoad({.duration = absl::ZeroDuration()}, send, nullptr).ok());
  EXPECT_FALSE(GenerateLoad({.requests = -1}, send, nullptr).ok());
  EXPECT_FALSE(GenerateLoad({.requests = 1, .warmup = absl::Hours(2)}, send, nullptr).ok());
}

}  // namespace
}  // namespace deeppcr
