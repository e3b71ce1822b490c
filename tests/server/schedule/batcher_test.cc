// SPDX-License-Identifier: Apache-2.0
#include "server/schedule/batcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <thread>
#include <utility>

#include "tests/server/schedule/batcher_rig.h"
#include "tests/testing/expect_error.h"

namespace deeppcr::testing {
namespace {

using ::testing::ElementsAre;

using BatcherTest = BatcherRig;

TEST_F(BatcherTest, RunsOnlyEqualOptionsTogether) {
  Batcher batcher({.schedule = {.workers = 1}});
  TestJob blocker(model_, 1), a(model_, 1, 1e-3), b(model_, 2, 1e-5), c(model_, 3, 1e-3);
  Occupy(batcher, blocker);
  for (TestJob* job : {&a, &b, &c}) ASSERT_TRUE(batcher.Enqueue(job).ok());
  EXPECT_EQ(batcher.Depth(*model_), 6);

  fake_->gate.Open();

  EXPECT_TRUE(blocker.Wait().status.ok());
  EXPECT_EQ(a.Wait().timings.batch_samples, 4);
  EXPECT_EQ(b.Wait().timings.batch_samples, 2);
  EXPECT_TRUE(c.Wait().status.ok());
  const auto batches = fake_->batches();
  ASSERT_EQ(batches.size(), 3u);
  EXPECT_THAT(batches[1].samples, ElementsAre(1, 3));
  EXPECT_EQ(batches[1].options.rtol, 1e-3);
  EXPECT_THAT(batches[2].samples, ElementsAre(2));
  EXPECT_EQ(batcher.Depth(*model_), 0);
}

// A worker is woken for the first; it has to see that others wait.
TEST_F(BatcherTest, JobsThatComeAtOnceAndDoNotGoTogetherGetAWorkerEach) {
  Batcher batcher({.schedule = {.workers = 4}});
  for (int round = 1; round <= 50; ++round) {
    fake_->gate.Close();
    std::vector<std::unique_ptr<TestJob>> jobs;
    for (const double rtol : {1e-2, 1e-3, 1e-4, 1e-5})
      jobs.push_back(std::make_unique<TestJob>(model_, 1, rtol));
    for (const auto& job : jobs) ASSERT_TRUE(batcher.Enqueue(job.get()).ok());
    ASSERT_TRUE(fake_->gate.WaitForArrivals(4 * round)) << round;
    fake_->gate.Open();
    for (const auto& job : jobs) ASSERT_TRUE(job->Wait().status.ok());
  }
}

class WayBackTest : public BatcherRig {
 protected:
  WayBackTest() {
    fake_->backward_limits_.emplace();
    fake_->back_value = 7;
  }
};

TEST_F(WayBackTest, IsGoneAfterTheSolveAndTogether) {
  Batcher batcher({.schedule = {.workers = 1}});
  TestJob blocker(model_, 1), a(model_, 1), b(model_, 2);
  a.GoBack({});
  b.GoBack({});
  Occupy(batcher, blocker);
  for (TestJob* job : {&a, &b}) ASSERT_TRUE(batcher.Enqueue(job).ok());

  fake_->gate.Open();

  EXPECT_TRUE(blocker.Wait().status.ok());
  for (TestJob* job : {&a, &b}) {
    const TestJob::End end = job->Wait();
    EXPECT_TRUE(end.status.ok());
    EXPECT_EQ(end.timings.batch_samples, 3);
    EXPECT_GT(end.timings.back_seconds, 0);
    EXPECT_EQ(end.timings.Inference().wall_seconds,
              end.timings.run.wall_seconds + end.timings.back_seconds);
    EXPECT_TRUE(job->solved_before_back);
    EXPECT_EQ(job->gradient(), 7);
  }
  ASSERT_EQ(fake_->batches().size(), 2u);
  ASSERT_EQ(fake_->ways_back().size(), 1u);
  EXPECT_THAT(fake_->ways_back()[0].samples, ElementsAre(1, 2));
}

TEST_F(WayBackTest, IsSharedByJobsThatGoTheSameWayWithAsManyCotangents) {
  Batcher batcher({.schedule = {.workers = 1}});
  constexpr BackwardOptions kOther = {.way = BackwardWay::kParallel, .shooting_interval = 2};
  TestJob blocker(model_, 1), forward(model_, 1), a(model_, 1), b(model_, 1), c(model_, 1),
      known(model_, 1), same(model_, 1);
  a.GoBack({});
  b.GoBack(kOther);
  c.GoBack({}, 2);
  known.GoBack({});
  known.solves = false;
  same.GoBack({});
  Occupy(batcher, blocker);
  for (TestJob* job : {&forward, &a, &b, &c, &known, &same}) ASSERT_TRUE(batcher.Enqueue(job).ok());

  fake_->gate.Open();

  EXPECT_EQ(forward.Wait().timings.back_seconds, 0);
  for (TestJob* job : {&b, &c, &known}) EXPECT_EQ(job->Wait().timings.batch_samples, 1);
  for (TestJob* job : {&a, &same}) EXPECT_EQ(job->Wait().timings.batch_samples, 2);
  // The blocker, the one that goes nowhere, and three of those whose states are to be found.
  EXPECT_EQ(fake_->batches().size(), 5u);
  EXPECT_EQ(fake_->ways_back().size(), 4u);
  EXPECT_TRUE(blocker.Wait().status.ok());
}

TEST_F(WayBackTest, IsNotGoneByAJobThatHasNoStates) {
  Batcher batcher({.schedule = {.workers = 1}});
  TestJob blocker(model_, 1), bad(model_, 1), good(model_, 2);
  for (TestJob* job : {&bad, &good}) job->GoBack({});
  bad.back_status = absl::AbortedError("not converged");
  Occupy(batcher, blocker);
  for (TestJob* job : {&bad, &good}) ASSERT_TRUE(batcher.Enqueue(job).ok());

  fake_->gate.Open();

  ExpectError(bad.Wait().status, absl::StatusCode::kAborted, "not converged");
  EXPECT_TRUE(good.Wait().status.ok());
  ASSERT_EQ(fake_->ways_back().size(), 1u);
  EXPECT_THAT(fake_->ways_back()[0].samples, ElementsAre(2));
  EXPECT_TRUE(blocker.Wait().status.ok());
}

TEST_F(WayBackTest, IsFinishedByEveryJobForItself) {
  Batcher batcher({.schedule = {.workers = 1}});
  TestJob blocker(model_, 1), none(model_, 1), bad(model_, 1), good(model_, 2);
  for (TestJob* job : {&none, &bad, &good}) job->GoBack({});
  none.back_status = absl::AbortedError("not converged");
  bad.finish_status = absl::CancelledError("cancelled");
  Occupy(batcher, blocker);
  for (TestJob* job : {&none, &bad, &good}) ASSERT_TRUE(batcher.Enqueue(job).ok());

  fake_->gate.Open();

  ExpectError(none.Wait().status, absl::StatusCode::kAborted, "not converged");
  ExpectError(bad.Wait().status, absl::StatusCode::kCancelled, "cancelled");
  EXPECT_TRUE(good.Wait().status.ok());
  EXPECT_FALSE(none.finished_back);
  EXPECT_TRUE(good.finished_back);
  EXPECT_TRUE(blocker.Wait().status.ok());
}

TEST_F(WayBackTest, ErrorsOfEitherPartReachTheJob) {
  Batcher batcher({.schedule = {.workers = 1}});
  fake_->back_status = absl::UnavailableError("the device has failed");
  TestJob back(model_, 1);
  back.GoBack({});
  ASSERT_TRUE(batcher.Enqueue(&back).ok());
  ExpectError(back.Wait().status, absl::StatusCode::kUnavailable, "device");

  fake_->run_status = absl::InternalError("broken");
  TestJob solve(model_, 1);
  solve.GoBack({});
  ASSERT_TRUE(batcher.Enqueue(&solve).ok());
  ExpectError(solve.Wait().status, absl::StatusCode::kInternal, "broken");
  EXPECT_EQ(fake_->ways_back().size(), 1u);
}

TEST_F(BatcherTest, NeverExceedsTheModelsBatchSize) {
  Batcher batcher({.schedule = {.workers = 1}});
  TestJob blocker(model_, 1), a(model_, 10), b(model_, 7), c(model_, 6);
  Occupy(batcher, blocker);
  for (TestJob* job : {&a, &b, &c}) ASSERT_TRUE(batcher.Enqueue(job).ok());

  fake_->gate.Open();

  for (TestJob* job : {&blocker, &a, &b, &c}) EXPECT_TRUE(job->Wait().status.ok());
  const auto batches = fake_->batches();
  ASSERT_EQ(batches.size(), 3u);
  EXPECT_THAT(batches[1].samples, ElementsAre(10, 6));
  EXPECT_THAT(batches[2].samples, ElementsAre(7));
}

TEST_F(BatcherTest, RefusesWhatTheQueueCannotHold) {
  Batcher batcher({.schedule = {.workers = 1, .max_queue_samples = 4}});
  TestJob blocker(model_, 1), a(model_, 4), b(model_, 1);
  Occupy(batcher, blocker);
  ASSERT_TRUE(batcher.Enqueue(&a).ok());

  const absl::Status refused = batcher.Enqueue(&b);

  ExpectError(refused, absl::StatusCode::kResourceExhausted,
              "holds 4 samples; this request has 1, the limit is 4");
  fake_->gate.Open();
  EXPECT_TRUE(a.Wait().status.ok());
  EXPECT_TRUE(blocker.Wait().status.ok());
  batcher.Shutdown();
  EXPECT_EQ(b.done_calls, 0);
}

TEST_F(BatcherTest, AcceptsARequestLargerThanTheQueueIfThatIsEmpty) {
  Batcher batcher({.schedule = {.workers = 1, .max_queue_samples = 4}});
  TestJob large(model_, 16);

  ASSERT_TRUE(batcher.Enqueue(&large).ok());

  EXPECT_TRUE(large.Wait().status.ok());
}

TEST_F(BatcherTest, RefusesWhatMemoryCannotHold) {
  Batcher batcher({.schedule = {.workers = 1}, .max_bytes = 100});
  TestJob blocker(model_, 1), a(model_, 1), b(model_, 1);
  blocker.bytes = 60;
  a.bytes = 41;
  b.bytes = 40;
  Occupy(batcher, blocker);

  ExpectError(batcher.Enqueue(&a), absl::StatusCode::kResourceExhausted, "60 bytes");
  EXPECT_TRUE(batcher.Enqueue(&b).ok());

  fake_->gate.Open();
  EXPECT_TRUE(blocker.Wait().status.ok());
  EXPECT_TRUE(b.Wait().status.ok());
  // The jobs are answered, but perhaps not read: only bytes that are returned make room for `a`.
  ExpectError(batcher.Enqueue(&a), absl::StatusCode::kResourceExhausted, "100 bytes");
  batcher.ReturnBytes(60);
  ASSERT_TRUE(batcher.Enqueue(&a).ok());
  EXPECT_TRUE(a.Wait().status.ok());
}

TEST_F(BatcherTest, DropsCancelledJobsUncomputed) {
  Batcher batcher({.schedule = {.workers = 1}});
  TestJob blocker(model_, 1), cancelled(model_, 1), alive(model_, 1);
  Occupy(batcher, blocker);
  ASSERT_TRUE(batcher.Enqueue(&cancelled).ok());
  ASSERT_TRUE(batcher.Enqueue(&alive).ok());
  cancelled.Cancel();

  fake_->gate.Open();

  const auto end = cancelled.Wait();
  ExpectError(end.status, absl::StatusCode::kCancelled, "before it was computed");
  EXPECT_TRUE(end.timings.queued);
  EXPECT_GT(end.timings.queue_seconds, 0);
  EXPECT_EQ(end.timings.batch_samples, 0);
  EXPECT_EQ(alive.Wait().timings.batch_samples, 1);
  EXPECT_TRUE(blocker.Wait().status.ok());
}

TEST_F(BatcherTest, DropsExpiredJobsUncomputed) {
  Batcher batcher({.schedule = {.workers = 1}});
  TestJob blocker(model_, 1);
  TestJob expiring(model_, 1, 1e-4, CancelToken::Clock::now() + std::chrono::milliseconds(20));
  Occupy(batcher, blocker);
  ASSERT_TRUE(batcher.Enqueue(&expiring).ok());
  std::this_thread::sleep_for(std::chrono::milliseconds(40));

  fake_->gate.Open();

  ExpectError(expiring.Wait().status, absl::StatusCode::kDeadlineExceeded, "deadline passed");
  EXPECT_TRUE(blocker.Wait().status.ok());
  EXPECT_EQ(fake_->batches().size(), 1u);
}

TEST_F(BatcherTest, TellsThoseThatExpireBehindLongWorkAtOnce) {
  Batcher batcher({.schedule = {.workers = 1}});
  TestJob blocker(model_, 1), cancelled(model_, 1);
  TestJob expiring(model_, 1, 1e-4, CancelToken::Clock::now() + std::chrono::milliseconds(20));
  Occupy(batcher, blocker);
  for (TestJob* job : {&cancelled, &expiring}) ASSERT_TRUE(batcher.Enqueue(job).ok());
  cancelled.Cancel();

  // The only worker is still busy.
  ExpectError(cancelled.Wait().status, absl::StatusCode::kCancelled, "before it was computed");
  ExpectError(expiring.Wait().status, absl::StatusCode::kDeadlineExceeded, "deadline passed");
  EXPECT_EQ(batcher.Depth(*model_), 0);

  fake_->gate.Open();
  EXPECT_TRUE(blocker.Wait().status.ok());
}

TEST_F(BatcherTest, TellsForHowLongABatchHasBeenComputed) {
  Batcher batcher({.schedule = {.workers = 1}});
  EXPECT_EQ(batcher.LongestRunSeconds(), 0);
  TestJob blocker(model_, 1);
  Occupy(batcher, blocker);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_GE(batcher.LongestRunSeconds(), 0.05);
  const double busy = batcher.BusySeconds();
  EXPECT_GE(busy, 0.05);
  fake_->gate.Open();
  EXPECT_TRUE(blocker.Wait().status.ok());
  EXPECT_EQ(batcher.LongestRunSeconds(), 0);
  EXPECT_GE(batcher.BusySeconds(), busy);
  EXPECT_EQ(batcher.BusySeconds(), batcher.BusySeconds()) << "nobody computes";
}

TEST_F(BatcherTest, WhatWaitsForCompanyIsComputedOnceThereWillBeNone) {
  Batcher batcher({.schedule = {.workers = 1, .max_delay = std::chrono::hours(1)}});
  TestJob job(model_, 1);
  ASSERT_TRUE(batcher.Enqueue(&job).ok());

  batcher.Flush();

  EXPECT_TRUE(job.Wait().status.ok());
}

TEST_F(BatcherTest, RefusesJobsThatHaveExpiredOnArrival) {
  Batcher batcher({.schedule = {.workers = 1}});
  TestJob cancelled(model_, 1), expired(model_, 1, 1e-4, CancelToken::Clock::now());
  cancelled.Cancel();

  ExpectError(batcher.Enqueue(&cancelled), absl::StatusCode::kCancelled, "");
  ExpectError(batcher.Enqueue(&expired), absl::StatusCode::kDeadlineExceeded, "");
}

TEST_F(BatcherTest, ExpiredJobsDoNotFillTheQueue) {
  Batcher batcher({.schedule = {.workers = 1, .max_queue_samples = 2}});
  TestJob blocker(model_, 1), a(model_, 2), b(model_, 2);
  Occupy(batcher, blocker);
  ASSERT_TRUE(batcher.Enqueue(&a).ok());
  a.Cancel();

  EXPECT_TRUE(batcher.Enqueue(&b).ok());

  ExpectError(a.Wait().status, absl::StatusCode::kCancelled, "");
  EXPECT_NE(a.told_by, std::this_thread::get_id()) << "whoever brings b is not kept by a";
  fake_->gate.Open();
  EXPECT_TRUE(b.Wait().status.ok());
  EXPECT_TRUE(blocker.Wait().status.ok());
}

TEST_F(BatcherTest, AFailedPreparationConcernsOnlyItsJob) {
  Batcher batcher({.schedule = {.workers = 1}});
  TestJob blocker(model_, 1), bad(model_, 1), good(model_, 2);
  bad.prepare_status = absl::InvalidArgumentError("not finite");
  Occupy(batcher, blocker);
  ASSERT_TRUE(batcher.Enqueue(&bad).ok());
  ASSERT_TRUE(batcher.Enqueue(&good).ok());

  fake_->gate.Open();

  const auto refused = bad.Wait();
  ExpectError(refused.status, absl::StatusCode::kInvalidArgument, "not finite");
  EXPECT_TRUE(refused.timings.queued);
  EXPECT_EQ(refused.timings.batch_samples, 0);
  const auto end = good.Wait();
  EXPECT_TRUE(end.status.ok());
  EXPECT_EQ(end.timings.batch_samples, 2);
  EXPECT_TRUE(blocker.Wait().status.ok());
}

TEST_F(BatcherTest, PassesOnTheErrorOfTheEngine) {
  fake_->run_status = absl::InternalError("broken");
  Batcher batcher({.schedule = {.workers = 1}});
  TestJob job(model_, 1);

  ASSERT_TRUE(batcher.Enqueue(&job).ok());

  ExpectError(job.Wait().status, absl::StatusCode::kInternal, "broken");
}

TEST_F(BatcherTest, ServesTheModelThatUsedLessTime) {
  Batcher batcher({.schedule = {.workers = 1}});
  auto other_fake = std::make_shared<FakeModel>();
  auto other = std::make_shared<ServedModel>("other", 1, other_fake, nullptr);
  TestJob blocker(model_, 1), a1(model_, 16), a2(model_, 16), b(other, 1);
  Occupy(batcher, blocker);
  other_fake->gate.Close();
  for (TestJob* job : {&a1, &a2, &b}) ASSERT_TRUE(batcher.Enqueue(job).ok());

  fake_->gate.Open();

  // The blocker used time of this model, so the other model goes first.
  ASSERT_TRUE(other_fake->gate.WaitForArrivals(1));
  EXPECT_EQ(fake_->batches().size(), 1u);
  other_fake->gate.Open();
  for (TestJob* job : {&blocker, &a1, &a2, &b}) EXPECT_TRUE(job->Wait().status.ok());
}

TEST_F(BatcherTest, ABatchWaitsForMoreToComeWhereItIsToldTo) {
  Batcher batcher({.schedule = {.workers = 2, .max_delay = std::chrono::milliseconds(300)}});
  TestJob a(model_, 1), b(model_, 2);
  ASSERT_TRUE(batcher.Enqueue(&a).ok());
  ASSERT_TRUE(batcher.Enqueue(&b).ok());

  EXPECT_EQ(a.Wait().timings.batch_samples, 3);

  EXPECT_TRUE(b.Wait().status.ok());
  TestJob full(model_, 16);
  ASSERT_TRUE(batcher.Enqueue(&full).ok());
  EXPECT_LT(full.Wait().timings.queue_seconds, 0.3);
}

class SlowToTell : public TestJob {
 public:
  using TestJob::TestJob;
  void Done(absl::Status status, const JobTimings& timings) override {
    telling.Pass();
    TestJob::Done(std::move(status), timings);
  }
  Gate telling;
};

TEST_F(BatcherTest, APlaceIsFreeBeforeItsAnswersAreTold) {
  Batcher batcher({.schedule = {.workers = 2, .max_instances = 1}});
  SlowToTell first(model_, 1);
  TestJob second(model_, 1);
  Occupy(batcher, first);
  ASSERT_TRUE(batcher.Enqueue(&second).ok());
  first.telling.Close();

  fake_->gate.Open();

  EXPECT_TRUE(second.Wait().status.ok());
  first.telling.Open();
  EXPECT_TRUE(first.Wait().status.ok());
}

TEST_F(BatcherTest, CancelAllEndsWhatWaitsAndWhatRuns) {
  Batcher batcher({.schedule = {.workers = 1}});
  TestJob running(model_, 1), waiting(model_, 1);
  Occupy(batcher, running);
  ASSERT_TRUE(batcher.Enqueue(&waiting).ok());

  batcher.CancelAll();

  ExpectError(waiting.Wait().status, absl::StatusCode::kUnavailable, "shutting down");
  EXPECT_TRUE(running.token->cancelled());
  EXPECT_EQ(batcher.Depth(*model_), 0);
  fake_->gate.Open();
  EXPECT_TRUE(running.Wait().status.ok());
}

TEST_F(BatcherTest, EveryAcceptedJobIsDoneOnceWhenShutdownMeetsEnqueues) {
  constexpr int kThreads = 4;
  constexpr int kJobsPerThread = 400;
  Batcher batcher({.schedule = {.workers = 2, .max_queue_samples = 64}, .inline_pause = kNoPause});
  std::vector<std::unique_ptr<TestJob>> jobs;
  for (int i = 0; i < kThreads * kJobsPerThread; ++i) {
    jobs.push_back(std::make_unique<TestJob>(model_, 1 + i % 3, i % 2 == 0 ? 1e-3 : 1e-5));
    jobs.back()->run_inline = i % 3 == 0;
  }
  std::vector<int> accepted(jobs.size(), 0);
  std::atomic<int> started{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = t; i < kThreads * kJobsPerThread; i += kThreads) {
        accepted[i] = batcher.Enqueue(jobs[i].get()).ok() ? 1 : 0;
        ++started;
      }
    });
  }
  while (started < kThreads * kJobsPerThread / 2) std::this_thread::yield();

  batcher.Shutdown();

  for (std::thread& thread : threads) thread.join();
  int total = 0;
  for (size_t i = 0; i < jobs.size(); ++i) {
    EXPECT_EQ(jobs[i]->done_calls, accepted[i]) << "job " << i;
    total += accepted[i];
  }
  EXPECT_GT(total, 0);
  TestJob late(model_, 1);
  ExpectError(batcher.Enqueue(&late), absl::StatusCode::kUnavailable, "shutting down");
}

}  // namespace
}  // namespace deeppcr::testing
