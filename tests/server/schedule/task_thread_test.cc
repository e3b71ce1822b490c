// SPDX-License-Identifier: Apache-2.0
#include "server/schedule/task_thread.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/testing/fake_engine.h"

namespace deeppcr::testing {
namespace {

using ::testing::ElementsAre;

TEST(TaskThreadTest, RunsTasksInTheirOrderAndThoseThatWaitBeforeItStops) {
  TaskThread thread;
  std::vector<int> order;
  Gate gate;
  gate.Close();
  ASSERT_TRUE(thread.Post([&] { gate.Pass(); }));
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(thread.Post([&, i] { order.push_back(i); }));

  gate.Open();
  thread.Stop();

  EXPECT_THAT(order, ElementsAre(0, 1, 2));
  EXPECT_FALSE(thread.Post([&] { order.push_back(3); }));
  thread.Stop();
  EXPECT_EQ(order.size(), 3u);
}

TEST(TaskThreadTest, RefusesMoreTasksThanMayWait) {
  TaskThread thread(/*max_waiting=*/2);
  int ran = 0;
  Gate gate;
  gate.Close();
  ASSERT_TRUE(thread.Post([&] { gate.Pass(); }));
  ASSERT_TRUE(gate.WaitForArrivals(1));  // so it does not wait any more
  EXPECT_TRUE(thread.Post([&] { ++ran; }));
  EXPECT_TRUE(thread.Post([&] { ++ran; }));

  EXPECT_FALSE(thread.Post([&] { ++ran; }));

  gate.Open();
  thread.Stop();
  EXPECT_EQ(ran, 2);
}

TEST(TaskThreadTest, ATaskThatWaitsMayBeWithdrawn) {
  TaskThread thread(/*max_waiting=*/1);
  int ran = 0;
  const int first = 0, second = 0;
  Gate gate;
  gate.Close();
  ASSERT_TRUE(thread.Post([&] { gate.Pass(); }, &first));
  ASSERT_TRUE(gate.WaitForArrivals(1));
  EXPECT_FALSE(thread.Withdraw(&first));  // it runs
  ASSERT_TRUE(thread.Post([&] { ran += 1; }, &second));

  EXPECT_TRUE(thread.Withdraw(&second));

  EXPECT_FALSE(thread.Withdraw(&second));
  EXPECT_TRUE(thread.Post([&] { ran += 10; }));  // its place is free again
  gate.Open();
  thread.Stop();
  EXPECT_EQ(ran, 10);
}

}  // namespace
}  // namespace deeppcr::testing
