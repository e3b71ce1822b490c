// SPDX-License-Identifier: Apache-2.0
// Quick jobs, which run on the thread that enqueues them.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <thread>

#include "server/schedule/batcher.h"
#include "tests/server/schedule/batcher_rig.h"

namespace deeppcr {
namespace {

using testing::kNoPause;
using testing::TestJob;

class QuickJobTest : public testing::BatcherRig {
 protected:
  std::unique_ptr<TestJob> NewQuickJob() const {
    auto job = std::make_unique<TestJob>(model_, 1);
    job->quick = true;
    return job;
  }

  // Waits until a worker of this batcher sleeps, which the thread that runs a quick job shows.
  bool AwaitSleepingWorker(Batcher& batcher) const {
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (std::chrono::steady_clock::now() < give_up) {
      const auto job = NewQuickJob();
      if (!batcher.Enqueue(job.get()).ok() || !job->Wait().status.ok()) return false;
      if (job->computed_by == std::this_thread::get_id()) return true;
    }
    return false;
  }
};

TEST_F(QuickJobTest, ComputesAQuickJobWhereItArrives) {
  Batcher batcher({.schedule = {.workers = 1}, .quick_pause = kNoPause});

  ASSERT_TRUE(AwaitSleepingWorker(batcher));

  EXPECT_EQ(batcher.Depth(*model_), 0);
  TestJob ordinary(model_, 1);
  ASSERT_TRUE(batcher.Enqueue(&ordinary).ok());
  EXPECT_TRUE(ordinary.Wait().status.ok());
  EXPECT_NE(ordinary.computed_by, std::this_thread::get_id());
}

TEST_F(QuickJobTest, QuickJobsThatComeTogetherGoThroughTheQueue) {
  Batcher batcher({.schedule = {.workers = 1}, .quick_pause = std::chrono::hours(1)});
  for (int i = 0; i < 50; ++i) {
    const auto job = NewQuickJob();
    ASSERT_TRUE(batcher.Enqueue(job.get()).ok());
    EXPECT_TRUE(job->Wait().status.ok());
    EXPECT_NE(job->computed_by, std::this_thread::get_id());
  }
}

TEST_F(QuickJobTest, AQuickJobDoesNotOvertake) {
  Batcher batcher({.schedule = {.workers = 1}, .quick_pause = kNoPause});
  ASSERT_TRUE(AwaitSleepingWorker(batcher));
  TestJob blocker(model_, 1), first(model_, 1);
  const auto quick = NewQuickJob();
  Occupy(batcher, blocker);
  ASSERT_TRUE(batcher.Enqueue(&first).ok());

  ASSERT_TRUE(batcher.Enqueue(quick.get()).ok());

  EXPECT_EQ(quick->done_calls, 0);
  fake_->gate.Open();
  EXPECT_EQ(quick->Wait().timings.batch_samples, 2);
  EXPECT_TRUE(first.Wait().status.ok());
  EXPECT_TRUE(blocker.Wait().status.ok());
}

TEST_F(QuickJobTest, OneCallerAtATimeComputesQuickJobs) {
  Batcher batcher({.schedule = {.workers = 1}, .quick_pause = kNoPause});
  ASSERT_TRUE(AwaitSleepingWorker(batcher));
  const auto here = NewQuickJob(), there = NewQuickJob();
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

TEST_F(QuickJobTest, WhatACallerHeldBackGoesOnWhenItIsDone) {
  Batcher batcher({.schedule = {.workers = 1, .max_instances = 1}, .quick_pause = kNoPause});
  ASSERT_TRUE(AwaitSleepingWorker(batcher));
  const auto here = NewQuickJob();
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
}  // namespace deeppcr
