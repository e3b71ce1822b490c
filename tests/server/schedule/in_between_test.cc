// SPDX-License-Identifier: Apache-2.0
// Long ways back, and what is computed in between.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/schedule/batcher_rig.h"
#include "tests/server/schedule/plain_job.h"

namespace deeppcr::testing {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

class InBetweenTest : public BatcherRig {
 protected:
  // A slice takes long enough for others to be owed more time than a busy machine takes from them.
  InBetweenTest() {
    fake_->backward_limits_ = BackwardLimits{.samples = 8, .columns = 32};
    fake_->back_time = std::chrono::milliseconds(2);
  }

  std::shared_ptr<FakeModel> other_fake_ = std::make_shared<FakeModel>();
  const std::shared_ptr<ServedModel> other_ =
      std::make_shared<ServedModel>("other", 1, other_fake_, nullptr);
};

// A job that notes who was done before it had gone back.
class LongJob : public TestJob {
 public:
  LongJob(std::shared_ptr<ServedModel> served, int64_t m, std::vector<TestJob*> watched)
      : TestJob(std::move(served), 1), watched_(std::move(watched)) {
    GoBack({}, m);
  }
  absl::Status FinishBack(GoBackFunction, absl::FunctionRef<void(double)>) override {
    for (const TestJob* job : watched_) done_before.push_back(job->done_calls > 0);
    return absl::OkStatus();
  }

  std::vector<bool> done_before;

 private:
  std::vector<TestJob*> watched_;
};

TEST_F(InBetweenTest, ShortJobsDoNotWaitForALongWayBack) {
  Batcher batcher({.schedule = {.workers = 1}, .inline_pause = std::chrono::hours(1)});
  TestJob of_other(other_, 1), of_same(model_, 1);
  LongJob longer(model_, 4096, {&of_other, &of_same});
  Occupy(batcher, longer);  // before its solve
  ASSERT_TRUE(batcher.Enqueue(&of_other).ok());
  ASSERT_TRUE(batcher.Enqueue(&of_same).ok());
  fake_->gate.Open();

  EXPECT_TRUE(longer.Wait().status.ok());

  EXPECT_THAT(longer.done_before, ElementsAre(true, true));
  EXPECT_GT(fake_->ways_back().size(), 2U);
}

TEST_F(InBetweenTest, NorDoTheyWaitBehindOneThatWaits) {
  for (const int max_instances : {0, 1}) {
    Batcher batcher({.schedule = {.workers = 1, .max_instances = max_instances},
                     .inline_pause = std::chrono::hours(1)});
    TestJob brief(model_, 1);
    LongJob second(model_, 4096, {}), first(model_, 4096, {&second, &brief});
    Occupy(batcher, first);
    ASSERT_TRUE(batcher.Enqueue(&second).ok());
    ASSERT_TRUE(batcher.Enqueue(&brief).ok());
    fake_->gate.Open();

    EXPECT_TRUE(first.Wait().status.ok());
    EXPECT_TRUE(second.Wait().status.ok());

    EXPECT_THAT(first.done_before, ElementsAre(false, true));
  }
}

// A job whose way back is short, and who takes much back after it, as an estimate of the error of
// many samples does.
class RepeatingJob : public TestJob {
 public:
  RepeatingJob(std::shared_ptr<ServedModel> served, const TestJob* watched)
      : TestJob(std::move(served), 1), watched_(watched) {
    GoBack({});
  }
  absl::Status FinishBack(GoBackFunction go_back, absl::FunctionRef<void(double)>) override {
    for (; calls < 1000 && watched_->done_calls == 0; ++calls) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      EXPECT_TRUE(go_back({&back_item, 1}).ok());
    }
    return absl::OkStatus();
  }

  int calls = 0;

 private:
  const TestJob* const watched_;
};

TEST_F(InBetweenTest, WhatIsTakenBackAfterwardsMakesPausesToo) {
  Batcher batcher({.schedule = {.workers = 1}, .inline_pause = std::chrono::hours(1)});
  TestJob brief(other_, 1);
  RepeatingJob repeating(model_, &brief);
  Occupy(batcher, repeating);
  ASSERT_TRUE(batcher.Enqueue(&brief).ok());
  fake_->gate.Open();

  EXPECT_TRUE(repeating.Wait().status.ok());

  EXPECT_LT(repeating.calls, 1000);
  EXPECT_EQ(brief.done_calls, 1);
}

// Nothing long is computed in between: one would wait for the other in the same thread.
TEST_F(InBetweenTest, LongJobsWaitForOneAnother) {
  Batcher batcher({.schedule = {.workers = 1}, .inline_pause = std::chrono::hours(1)});
  LongJob second(model_, 4096, {}), first(model_, 4096, {&second});
  Occupy(batcher, first);
  ASSERT_TRUE(batcher.Enqueue(&second).ok());
  fake_->gate.Open();

  EXPECT_TRUE(first.Wait().status.ok());
  EXPECT_TRUE(second.Wait().status.ok());

  EXPECT_THAT(first.done_before, ElementsAre(false));
}

// What others took is not charged to the model that lent its worker.
TEST_F(InBetweenTest, ItsTimeIsItsOwn) {
  Batcher batcher({.schedule = {.workers = 1}, .inline_pause = std::chrono::hours(1)});
  TestJob other(other_, 1);
  LongJob longer(model_, 4096, {&other});
  Occupy(batcher, longer);
  ASSERT_TRUE(batcher.Enqueue(&other).ok());
  other_fake_->gate.Close();
  fake_->gate.Open();
  ASSERT_TRUE(other_fake_->gate.WaitForArrivals(1));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  other_fake_->gate.Open();

  const TestJob::End end = longer.Wait();

  EXPECT_LT(end.timings.back_seconds, 0.3);
  EXPECT_LT(model_->queue.used_seconds, 0.3);
}

TEST_F(InBetweenTest, ShutdownCancelsWhatRunsInBetween) {
  Batcher batcher({.schedule = {.workers = 1}, .inline_pause = std::chrono::hours(1)});
  TestJob other(other_, 1);
  LongJob longer(model_, 4096, {});
  Occupy(batcher, longer);
  ASSERT_TRUE(batcher.Enqueue(&other).ok());
  other_fake_->gate.Close();
  fake_->gate.Open();
  ASSERT_TRUE(other_fake_->gate.WaitForArrivals(1));

  batcher.CancelAll();

  EXPECT_TRUE(other.token->cancelled());
  EXPECT_TRUE(longer.token->cancelled());
  other_fake_->gate.Open();
  other.Wait();
  longer.Wait();
}

class LongScheduleTest : public ::testing::Test {
 protected:
  PlainJob* Admit(int64_t n, int64_t m) {
    jobs_.push_back(std::make_unique<PlainJob>(model_, n));
    if (m > 0) {
      jobs_.back()->back = BackwardOptions{};
      jobs_.back()->back_item.columns = m;
    }
    JobList expired;
    EXPECT_TRUE(schedule_.Admit(jobs_.back().get(), kStart, &expired).ok());
    return jobs_.back().get();
  }

  Schedule schedule_{{}};
  const ModelPtr model_ = NewModel("a");
  std::vector<std::unique_ptr<PlainJob>> jobs_;
  Schedule::Batch batch_;
};

TEST_F(LongScheduleTest, CotangentsFillABatch) {
  Job* first = Admit(1, kMaxBatch / 2);
  Job* second = Admit(1, kMaxBatch / 2);
  Job* third = Admit(1, kMaxBatch / 2);

  ASSERT_TRUE(schedule_.Take(kStart, &batch_));
  EXPECT_THAT(batch_.jobs, ElementsAre(first, second));
  EXPECT_EQ(batch_.samples, 2);
  schedule_.Finish(batch_, 1);
  ASSERT_TRUE(schedule_.Take(kStart, &batch_));
  EXPECT_THAT(batch_.jobs, ElementsAre(third));
  EXPECT_DOUBLE_EQ(batch_.charged, 0.5);
}

TEST_F(LongScheduleTest, TakesALongJobAlone) {
  Job* first = Admit(1, 1000);
  Job* second = Admit(1, 1000);

  EXPECT_FALSE(schedule_.TakeShort(*model_, kStart, &batch_));
  ASSERT_TRUE(schedule_.Take(kStart, &batch_));
  EXPECT_THAT(batch_.jobs, ElementsAre(first));
  schedule_.Finish(batch_, 1);
  ASSERT_TRUE(schedule_.Take(kStart, &batch_));
  EXPECT_THAT(batch_.jobs, ElementsAre(second));
}

TEST_F(LongScheduleTest, TakesAShortJobInBetween) {
  Admit(1, 1000);
  Job* full = Admit(kMaxBatch, 0);

  ASSERT_TRUE(schedule_.TakeShort(*model_, kStart, &batch_));
  EXPECT_THAT(batch_.jobs, ElementsAre(full));
}

// However many long jobs wait before it.
TEST_F(LongScheduleTest, FindsAShortJobBehindManyLongOnes) {
  std::vector<Job*> longs;
  for (int i = 0; i < 600; ++i) longs.push_back(Admit(1, 1000));
  Job* brief = Admit(1, 0);

  ASSERT_TRUE(schedule_.TakeShort(*model_, kStart, &batch_));
  EXPECT_THAT(batch_.jobs, ElementsAre(brief));
  EXPECT_FALSE(schedule_.TakeShort(*model_, kStart, &batch_));
  for (Job* each : longs) {
    ASSERT_TRUE(schedule_.Take(kStart, &batch_));
    EXPECT_THAT(batch_.jobs, ElementsAre(each));
    schedule_.Finish(batch_, 1);
  }
}

}  // namespace
}  // namespace deeppcr::testing
