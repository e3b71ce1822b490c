// SPDX-License-Identifier: Apache-2.0
#include "server/schedule/ticker.h"

#include <gtest/gtest.h>

#include <atomic>

namespace deeppcr {
namespace {

using std::chrono::milliseconds;

TEST(TickerTest, CallsAgainAndAgainUntilItGoes) {
  std::atomic<int> calls = 0;
  {
    const Ticker ticker(milliseconds(1), [&] { ++calls; });
    while (calls < 5) std::this_thread::sleep_for(milliseconds(1));
  }
  const int after = calls;
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_EQ(calls, after);
}

TEST(TickerTest, EndsAtOnceAlsoBetweenCalls) {
  std::atomic<int> calls = 0;
  {
    const Ticker ticker(std::chrono::hours(1), [&] { ++calls; });
  }
  EXPECT_EQ(calls, 0);
}

}  // namespace
}  // namespace deeppcr
