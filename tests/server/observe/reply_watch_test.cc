// SPDX-License-Identifier: Apache-2.0
#include "server/observe/reply_watch.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <vector>

namespace deeppcr {
namespace {

using std::chrono::milliseconds;

bool Await(const std::atomic<int>& count, int wanted) {
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (count < wanted && std::chrono::steady_clock::now() < give_up) std::this_thread::yield();
  return count >= wanted;
}

TEST(ReplyWatchTest, CancelsWhatStaysListedOnce) {
  ReplyWatch watch(milliseconds(20));
  std::atomic<int> cancelled{0};
  ReplyWatch::Reply reply;
  reply.cancel = [&] { ++cancelled; };

  watch.Add(&reply, 0);

  EXPECT_TRUE(Await(cancelled, 1));
  std::this_thread::sleep_for(milliseconds(60));
  EXPECT_EQ(cancelled, 1);
  watch.Remove(&reply);
}

TEST(ReplyWatchTest, LeavesAloneWhatWasRemovedOrIsYoung) {
  ReplyWatch watch(milliseconds(40));
  ReplyWatch patient(std::chrono::hours(1));
  std::atomic<int> cancelled{0};
  ReplyWatch::Reply read, young;
  read.cancel = young.cancel = [&] { ++cancelled; };
  watch.Add(&read, 0);
  patient.Add(&young, 0);

  watch.Remove(&read);

  std::this_thread::sleep_for(milliseconds(120));
  EXPECT_EQ(cancelled, 0);
  patient.Remove(&young);
}

TEST(ReplyWatchTest, ACancellationMayEndItsCallAtOnce) {
  ReplyWatch watch(milliseconds(10));
  std::atomic<int> ended{0};
  std::vector<std::unique_ptr<ReplyWatch::Reply>> replies;
  for (int i = 0; i < 100; ++i) {
    replies.push_back(std::make_unique<ReplyWatch::Reply>());
    ReplyWatch::Reply* reply = replies.back().get();
    reply->cancel = [&ended, &watch, reply] {
      watch.Remove(reply);
      ++ended;
    };
    watch.Add(reply, 0);
  }

  EXPECT_TRUE(Await(ended, 100));
}

// Any of them may be removed at any time, whatever stands before and behind it.
TEST(ReplyWatchTest, RepliesOfAllSizesComeAndGoInAnyOrder) {
  constexpr int kReplies = 64;
  ReplyWatch watch(milliseconds(1));
  std::atomic<int> cancelled{0};
  std::vector<ReplyWatch::Reply> replies(kReplies);
  for (int i = 0; i < kReplies; ++i) {
    replies[i].cancel = [&] { ++cancelled; };
    watch.Add(&replies[i], i % 4 == 3 ? 3600 * ReplyWatch::kLeastBytesPerSecond << i % 8 : i % 3);
  }

  EXPECT_TRUE(Await(cancelled, kReplies * 3 / 4));
  EXPECT_EQ(cancelled, kReplies * 3 / 4);
  for (int i = 0; i < kReplies; ++i) watch.Remove(&replies[i * 37 % kReplies]);
}

TEST(ReplyWatchTest, ALargeReplyGetsTheTimeItsBytesTake) {
  ReplyWatch watch(milliseconds(1));
  std::atomic<int> small{0}, large{0};
  ReplyWatch::Reply first, second;
  first.cancel = [&] { ++large; };
  second.cancel = [&] { ++small; };

  watch.Add(&first, 3600 * ReplyWatch::kLeastBytesPerSecond);
  watch.Add(&second, 0);

  EXPECT_TRUE(Await(small, 1));
  EXPECT_EQ(large, 0);
  watch.Remove(&first);
}

// Every call takes the watch's lock, so a slow cancellation must not hold it.
TEST(ReplyWatchTest, OthersGoOnWhileACallIsCancelled) {
  ReplyWatch watch(milliseconds(1));
  std::atomic<int> cancelling{0}, go_on{0};
  ReplyWatch::Reply slow, other;
  slow.cancel = [&] {
    ++cancelling;
    Await(go_on, 1);
  };
  watch.Add(&slow, 0);
  ASSERT_TRUE(Await(cancelling, 1));

  watch.Add(&other, 1 << 30);
  watch.Remove(&other);

  ++go_on;
  watch.Remove(&slow);
}

// After Remove the call may be gone: by then the cancellation must have ended, or never come.
TEST(ReplyWatchTest, RemoveWaitsForACancellationThatRuns) {
  ReplyWatch watch(milliseconds(1));
  for (int i = 0; i < 200; ++i) {
    std::atomic<int> running{0};
    auto reply = std::make_unique<ReplyWatch::Reply>();
    reply->cancel = [&running] {
      ++running;
      std::this_thread::sleep_for(std::chrono::microseconds(200));
      --running;
    };
    watch.Add(reply.get(), 0);
    if (i % 2 == 0) std::this_thread::sleep_for(milliseconds(11));
    watch.Remove(reply.get());
    EXPECT_EQ(running, 0);
  }
}

}  // namespace
}  // namespace deeppcr
