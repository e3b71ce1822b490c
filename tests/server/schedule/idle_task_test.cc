// SPDX-License-Identifier: Apache-2.0
// Work that runs beside jobs, once none waits or when it insists.
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <thread>
#include <utility>

#include "server/schedule/batcher.h"
#include "tests/server/schedule/batcher_rig.h"

namespace deeppcr::testing {
namespace {

using IdleTaskTest = BatcherRig;

TEST_F(IdleTaskTest, WaitsUntilNothingElseDoes) {
  Batcher batcher({.schedule = {.workers = 1}});
  TestJob blocker(model_, 1), waiting(model_, 1, 1e-3);
  Occupy(batcher, blocker);
  ASSERT_TRUE(batcher.Enqueue(&waiting).ok());
  std::promise<int> done_before;
  ASSERT_TRUE(batcher.OfferIdleTask([&](const CancelToken&, bool insists) {
    done_before.set_value(waiting.done_calls);
    return insists;
  }));
  EXPECT_FALSE(batcher.OfferIdleTask([](const CancelToken&, bool) { return false; }));

  fake_->gate.Open();

  EXPECT_EQ(done_before.get_future().get(), 1);
  EXPECT_TRUE(blocker.Wait().status.ok());
}

TEST_F(IdleTaskTest, IsCancelledByAJobInItsWay) {
  Batcher batcher({.schedule = {.workers = 1}});
  std::promise<void> started;
  ASSERT_TRUE(batcher.OfferIdleTask([&](const CancelToken& token, bool) {
    started.set_value();
    while (!token.cancelled()) std::this_thread::yield();
    return false;
  }));
  started.get_future().wait();
  TestJob job(model_, 1);

  ASSERT_TRUE(batcher.Enqueue(&job).ok());

  EXPECT_TRUE(job.Wait().status.ok());
}

TEST_F(IdleTaskTest, ThatInsistsGoesBeforeJobsAndToItsEnd) {
  Batcher batcher({.schedule = {.workers = 1}});
  TestJob blocker(model_, 1), waiting(model_, 1), last(model_, 1);
  Occupy(batcher, blocker);
  ASSERT_TRUE(batcher.Enqueue(&waiting).ok());
  std::promise<void> started, go_on;
  std::promise<std::pair<int, bool>> seen;
  ASSERT_TRUE(batcher.OfferIdleTask(
      [&](const CancelToken& token, bool insists) {
        started.set_value();
        go_on.get_future().wait();
        seen.set_value({waiting.done_calls, token.cancelled()});
        return !insists;
      },
      Batcher::Clock::now()));

  fake_->gate.Open();
  started.get_future().wait();
  ASSERT_TRUE(batcher.Enqueue(&last).ok());
  go_on.set_value();

  EXPECT_EQ(seen.get_future().get(), std::pair(0, false));
  EXPECT_TRUE(last.Wait().status.ok());
}

TEST_F(IdleTaskTest, ThatWasCancelledInsistsWhenItsTimeComes) {
  Batcher batcher({.schedule = {.workers = 1}});
  std::promise<void> started;
  std::promise<Batcher::Clock::time_point> insisted;
  const auto insists_at = Batcher::Clock::now() + std::chrono::milliseconds(100);
  ASSERT_TRUE(batcher.OfferIdleTask(
      [&](const CancelToken& token, bool insists) {
        if (insists) {
          insisted.set_value(Batcher::Clock::now());
          return false;
        }
        started.set_value();
        while (!token.cancelled()) std::this_thread::yield();
        return true;
      },
      insists_at));
  started.get_future().wait();
  TestJob job(model_, 1);
  ASSERT_TRUE(batcher.Enqueue(&job).ok());
  EXPECT_TRUE(job.Wait().status.ok());

  // Nothing is computed meanwhile, and it waits all the same.
  EXPECT_GE(insisted.get_future().get(), insists_at);
}

// Whoever is woken for the task may find a job that came meanwhile, and takes that: another worker
// is woken for the task.
TEST_F(IdleTaskTest, StartsBesideAJobThatItsWorkerFound) {
  for (int round = 0; round < 100; ++round) {
    Batcher batcher({.schedule = {.workers = 2}});
    TestJob job(model_, 1);
    std::promise<void> started;
    fake_->gate.Close();
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // both workers sleep by now
    ASSERT_TRUE(batcher.OfferIdleTask([&](const CancelToken&, bool) {
      started.set_value();
      return false;
    }));
    ASSERT_TRUE(batcher.Enqueue(&job).ok());

    EXPECT_EQ(started.get_future().wait_for(std::chrono::seconds(20)), std::future_status::ready);

    fake_->gate.Open();
    EXPECT_TRUE(job.Wait().status.ok());
  }
}

}  // namespace
}  // namespace deeppcr::testing
