// SPDX-License-Identifier: Apache-2.0
// Short jobs, which run inline: on the thread that enqueues them.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <thread>

#include "server/schedule/batcher.h"
#include "tests/server/schedule/batcher_rig.h"

namespace deeppcr::testing {
namespace {

class InlineJobTest : public BatcherRig {
 protected:
  std::unique_ptr<TestJob> NewInlineJob() const {
    auto job = std::make_unique<TestJob>(model_, 1);
    job->run_inline = true;
    return job;
  }

  // Waits until a worker of this batcher sleeps, which the thread that runs an inline job shows.
  bool AwaitSleepingWorker(Batcher& batcher) const {
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (std::chrono::steady_clock::now() < give_up) {
      const auto job = NewInlineJob();
      if (!batcher.Enqueue(job.get()).ok() || !job->Wait().status.ok()) return false;
      if (job->computed_by == std::this_thread::get_id()) return true;
    }
    return false;
  }
};

TEST_F(InlineJobTest, ComputesAJobWhereItArrives) {
  Batcher batcher({.schedule = {.workers = 1}, .inline_pause = kNoPause});

  ASSERT_TRUE(AwaitSleepingWorker(batcher));

  EXPECT_EQ(batcher.Depth(*model_), 0);
  TestJob ordinary(model_, 1);
  ASSERT_TRUE(batcher.Enqueue(&ordinary).ok());
  EXPECT_TRUE(ordinary.Wait().status.ok());
  EXPECT_NE(ordinary.computed_by, std::this_thread::get_id());
}

TEST_F(InlineJobTest, JobsThatComeTogetherGoThroughTheQueue) {
  Batcher batcher({.schedule = {.workers = 1}, .inline_pause = std::chrono::hours(1)});
  for (int i = 0; i < 50; ++i) {
    const auto job = NewInlineJob();
    ASSERT_TRUE(batcher.Enqueue(job.get()).ok());
    EXPECT_TRUE(job->Wait().status.ok());
    EXPECT_NE(job->computed_by, std::this_thread::get_id());
  }
}

TEST_F(InlineJobTest, AnInlineJobDoesNotOvertake) {
  Batcher batcher({.schedule = {.workers = 1}, .inline_pause = kNoPause});
  ASSERT_TRUE(AwaitSleepingWorker(batcher));
  TestJob blocker(model_, 1), first(model_, 1);
  const auto later = NewInlineJob();
  Occupy(batcher, blocker);
  ASSERT_TRUE(batcher.Enqueue(&first).ok());

  ASSERT_TRUE(batcher.Enqueue(later.get()).ok());

  EXPECT_EQ(later->done_calls, 0);
  fake_->gate.Open();
  EXPECT_EQ(later->Wait().timings.batch_samples, 2);
  EXPECT_TRUE(first.Wait().status.ok());
  EXPECT_TRUE(blocker.Wait().status.ok());
}

TEST_F(InlineJobTest, OneCallerAtATimeComputesInline) {
  Batcher batcher({.schedule = {.workers = 1}, .inline_pause = kNoPause});
  ASSERT_TRUE(AwaitSleepingWorker(batcher));
  const auto here = NewInlineJob(), there = NewInlineJob();
  fake_->gate.Close();
  const int arrivals = static_cast<int>(fake_->batches().size());
  std::thread caller([&] { EXPECT_TRUE(batcher.Enqueue(here.get()).ok()); });
  ASSERT_TRUE(fake_->gate.WaitForArrivals(arrivals + 1));

  ASSERT_TRUE(batcher.Enqueue(there.get()).ok());

  batcher.CancelAll();
  EXPECT_TRUE(here->token->cancelled());
  fake_->gate.Open();
  caller.join();
  EXPECT_TRUE(here->Wait().status.ok());
  there->Wait();
  EXPECT_NE(there->computed_by, std::this_thread::get_id());
}

TEST_F(InlineJobTest, WhatACallerHeldBackGoesOnWhenItIsDone) {
  Batcher batcher({.schedule = {.workers = 1, .max_instances = 1}, .inline_pause = kNoPause});
  ASSERT_TRUE(AwaitSleepingWorker(batcher));
  const auto here = NewInlineJob();
  fake_->gate.Close();
  const int arrivals = static_cast<int>(fake_->batches().size());
  std::thread caller([&] { EXPECT_TRUE(batcher.Enqueue(here.get()).ok()); });
  ASSERT_TRUE(fake_->gate.WaitForArrivals(arrivals + 1));
  TestJob waiting(model_, 1);
  ASSERT_TRUE(batcher.Enqueue(&waiting).ok());

  fake_->gate.Open();

  caller.join();
  EXPECT_TRUE(waiting.Wait().status.ok());
  EXPECT_TRUE(here->Wait().status.ok());
}

}  // namespace
}  // namespace deeppcr::testing
