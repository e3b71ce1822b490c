// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/call_threads.h"

#include <gtest/gtest.h>

#include <chrono>

namespace deeppcr {
namespace {

using std::chrono::microseconds;

TEST(CallThreadsTest, AreAsManyAsHalfOfTheCoresAndHalfOfThemLead) {
  const struct {
    double cores;
    int all, leaders;
  } cases[] = {{0.5, 2, 1}, {1, 2, 1}, {2, 2, 1}, {7, 3, 1}, {8, 4, 2}, {32, 16, 8}, {96, 16, 8}};
  for (const auto& wanted : cases) {
    const CallQueue::Threads threads = CallThreadsFor(wanted.cores, /*tls=*/false, -1);
    EXPECT_EQ(threads.all, wanted.all) << wanted.cores;
    EXPECT_EQ(threads.leaders, wanted.leaders) << wanted.cores;
    const CallQueue::Threads decrypting = CallThreadsFor(wanted.cores, /*tls=*/true, -1);
    EXPECT_EQ(decrypting.all, 2 * wanted.all) << wanted.cores;
    EXPECT_EQ(decrypting.leaders, 2 * wanted.all) << wanted.cores;
  }
}

// A looking thread must not take the only core, or a quota's share beyond one.
TEST(CallThreadsTest, TryLookingWhereOneWaitsAndACoreIsLeft) {
  for (const double cores : {0.5, 1.0, 1.1, 1.9, 8.0, 64.0})
    EXPECT_EQ(CallThreadsFor(cores, false, -1).busy_poll, microseconds(0)) << cores;
  for (const double cores : {2.0, 2.5, 4.0, 7.0})
    EXPECT_EQ(CallThreadsFor(cores, false, -1).busy_poll, microseconds(100)) << cores;
  for (const double cores : {1.0, 2.0, 8.0})
    EXPECT_EQ(CallThreadsFor(cores, true, -1).busy_poll, microseconds(0)) << cores;
  EXPECT_FALSE(CallThreadsFor(2, false, -1).always_poll);
}

TEST(CallThreadsTest, LookAlwaysOrNeverWhereTheyAreToldTo) {
  for (const double cores : {1.0, 2.0, 64.0}) {
    for (const bool tls : {false, true}) {
      EXPECT_EQ(CallThreadsFor(cores, tls, 0).busy_poll, microseconds(0));
      const CallQueue::Threads threads = CallThreadsFor(cores, tls, 0.002);
      EXPECT_EQ(threads.busy_poll, microseconds(2000));
      EXPECT_TRUE(threads.always_poll);
      EXPECT_EQ(threads.leaders, 1);
    }
  }
  // No time above 0 is rounded to none, and no part of a microsecond is added.
  EXPECT_EQ(CallThreadsFor(2, false, 1e-9).busy_poll, microseconds(1));
  EXPECT_EQ(CallThreadsFor(2, false, 1).busy_poll, microseconds(1'000'000));
}

}  // namespace
}  // namespace deeppcr
