// SPDX-License-Identifier: Apache-2.0
#include "server/observe/log_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <string>
#include <vector>

#include "tests/testing/fake_engine.h"

namespace deeppcr {
namespace {

using ::testing::ElementsAre;

// The written lines; outlives the queue, as the functions of a queue must.
struct Written {
  testing::Gate gate;
  std::mutex mutex;
  std::vector<std::string> lines;

  void Write(std::string_view line) {
    gate.Pass();
    std::lock_guard<std::mutex> lock(mutex);
    lines.emplace_back(line);
  }
};

std::string Notice(int64_t dropped) { return std::to_string(dropped) + " dropped"; }

TEST(LogQueueTest, WritesInOrder) {
  const auto written = std::make_shared<Written>();
  LogQueue queue([written](std::string_view line) { written->Write(line); }, Notice);

  for (const char* line : {"a", "b", "c"}) queue.Push(line);

  EXPECT_TRUE(queue.Flush());
  EXPECT_THAT(written->lines, ElementsAre("a", "b", "c"));
}

TEST(LogQueueTest, AStalledWriterDropsAndCountsButNeverBlocks) {
  const auto written = std::make_shared<Written>();
  written->gate.Close();
  LogQueue queue([written](std::string_view line) { written->Write(line); }, Notice, 6);
  queue.Push("aa");
  ASSERT_TRUE(written->gate.WaitForArrivals(1));

  for (const char* line : {"bb", "cc", "dd", "ee"}) queue.Push(line);

  EXPECT_FALSE(queue.Flush());
  written->gate.Open();
  EXPECT_TRUE(queue.Flush());
  EXPECT_THAT(written->lines, ElementsAre("aa", "bb", "cc", "2 dropped"));
  queue.Push("ff");
  EXPECT_TRUE(queue.Flush());
  EXPECT_EQ(written->lines.back(), "ff");
}

TEST(LogQueueTest, GoesAwayWhileItsWriterIsStalled) {
  const auto written = std::make_shared<Written>();
  written->gate.Close();
  {
    LogQueue queue([written](std::string_view line) { written->Write(line); }, Notice);
    queue.Push("a");
    ASSERT_TRUE(written->gate.WaitForArrivals(1));
  }
  EXPECT_TRUE(written->lines.empty());
  written->gate.Open();
}

}  // namespace
}  // namespace deeppcr
