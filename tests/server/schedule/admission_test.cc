// SPDX-License-Identifier: Apache-2.0
// Who is let into a queue and who is refused, one request at a time.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <vector>

#include "server/schedule/schedule.h"
#include "tests/server/schedule/plain_job.h"
#include "tests/testing/expect_error.h"

namespace deeppcr::testing {
namespace {

class AdmissionTest : public ::testing::Test {
 protected:
  PlainJob* NewJob(const ModelPtr& model, int64_t n = 1, TimePoint deadline = TimePoint::max()) {
    jobs_.push_back(std::make_unique<PlainJob>(model, n, 1e-4, deadline));
    return jobs_.back().get();
  }
  absl::Status Admit(Schedule& schedule, Job* job) {
    JobList expired;
    return schedule.Admit(job, now_, &expired);
  }
  // Computes one full batch, which takes a second, so that times are known.
  void Teach(Schedule& schedule, const ModelPtr& model) {
    ASSERT_TRUE(Admit(schedule, NewJob(model, kMaxBatch)).ok());
    ASSERT_TRUE(schedule.Take(now_, &batch_));
    schedule.Finish(batch_, 1);
  }
  // Has a full batch computed.
  void Occupy(Schedule& schedule, const ModelPtr& model) {
    ASSERT_TRUE(Admit(schedule, NewJob(model, kMaxBatch)).ok());
    ASSERT_TRUE(schedule.Take(now_, &batch_));
  }

  std::vector<std::unique_ptr<PlainJob>> jobs_;
  const ModelPtr model_ = NewModel("m");
  TimePoint now_ = kStart;
  Schedule::Batch batch_;
};

TEST_F(AdmissionTest, ARefusalSaysHowLongTheWaitWouldBe) {
  Schedule schedule({.workers = 1, .max_queue_seconds = 2.5});
  Teach(schedule, model_);
  Occupy(schedule, model_);
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(Admit(schedule, NewJob(model_, kMaxBatch)).ok());
  PlainJob* late = NewJob(model_, kMaxBatch);
  ExpectError(Admit(schedule, late), absl::StatusCode::kResourceExhausted,
              "a request for model 'm' would wait about 3 s now; the limit is 2.5 s");
  EXPECT_DOUBLE_EQ(late->predicted_wait(), 3);
  EXPECT_EQ(Schedule::Depth(*model_), 2 * kMaxBatch);

  now_ += std::chrono::milliseconds(600);

  EXPECT_TRUE(Admit(schedule, late).ok());
  EXPECT_NEAR(late->predicted_wait(), 2.4, 1e-6);
}

TEST_F(AdmissionTest, ADeadlineIsNamedAsSuch) {
  Schedule schedule({.workers = 1});
  Teach(schedule, model_);
  Occupy(schedule, model_);
  ExpectError(Admit(schedule, NewJob(model_, 1, now_ + std::chrono::milliseconds(900))),
              absl::StatusCode::kResourceExhausted, "1 s now; its deadline is in 0.9 s");
  EXPECT_TRUE(Admit(schedule, NewJob(model_, 1, now_ + std::chrono::milliseconds(1100))).ok());
}

// What is computed for nobody ends within a millisecond, and what has a deadline by then.
TEST_F(AdmissionTest, NobodyWaitsForWhatIsGivenUp) {
  Schedule schedule({.workers = 1, .max_queue_seconds = 2.5});
  Teach(schedule, model_);
  std::vector<PlainJob*> running;
  for (const double seconds : {5.0, 2.0, 1.0}) {
    running.push_back(NewJob(model_, kMaxBatch / 4,
                             now_ + std::chrono::milliseconds(static_cast<int>(seconds * 1000))));
    running.back()->expected_seconds = 100;
    ASSERT_TRUE(Admit(schedule, running.back()).ok());
  }
  ASSERT_TRUE(schedule.Take(now_, &batch_));
  ASSERT_EQ(batch_.jobs.size(), 3u);
  const auto wait = [&] {
    PlainJob* job = NewJob(model_);
    job->may_wait_long = true;
    EXPECT_TRUE(Admit(schedule, job).ok());
    schedule.Clear();
    return job->predicted_wait();
  };
  EXPECT_NEAR(wait(), 5, 1e-6);
  running[0]->token->Cancel();
  EXPECT_NEAR(wait(), 2, 1e-6);
  now_ += std::chrono::milliseconds(500);
  EXPECT_NEAR(wait(), 1.5, 1e-6);
  running[1]->token->Cancel();
  EXPECT_NEAR(wait(), 0.5, 1e-6);
  now_ += std::chrono::milliseconds(500);
  EXPECT_EQ(wait(), 0);
}

TEST_F(AdmissionTest, WhoFindsAFreeWorkerIsNeverRefusedForTime) {
  Schedule schedule({.workers = 2, .max_queue_seconds = 1e-6});
  Teach(schedule, model_);
  Occupy(schedule, model_);
  PlainJob* job = NewJob(model_, 100 * kMaxBatch);
  EXPECT_TRUE(Admit(schedule, job).ok());
  EXPECT_EQ(job->predicted_wait(), 0);
}

// Others that wait for an instance, or for company, leave the free worker to who comes.
TEST_F(AdmissionTest, WhoMayNotStartKeepsNobodyWaiting) {
  const ModelPtr single = NewModel("single", {.max_instances = 1});
  const ModelPtr light = NewModel("light", {.weight = 0.01});
  Schedule schedule({.workers = 2, .max_queue_seconds = 1e-6});
  Teach(schedule, light);  // and has used much virtual time by that
  Teach(schedule, single);
  Occupy(schedule, single);
  PlainJob* waiting = NewJob(single, kMaxBatch);
  waiting->may_wait_long = true;
  ASSERT_TRUE(Admit(schedule, waiting).ok());
  EXPECT_TRUE(Admit(schedule, NewJob(light)).ok());

  const ModelPtr patient = NewModel("patient", {.max_delay = std::chrono::seconds(1)});
  Schedule other({.workers = 2, .max_queue_seconds = 1e-6});
  const ModelPtr next = NewModel("next", {.weight = 0.01});
  Teach(other, next);
  ASSERT_TRUE(Admit(other, NewJob(patient, kMaxBatch)).ok());
  ASSERT_TRUE(other.Take(now_, &batch_));
  other.Finish(batch_, 1);
  ASSERT_TRUE(Admit(other, NewJob(patient)).ok());
  EXPECT_TRUE(Admit(other, NewJob(next)).ok());
}

TEST_F(AdmissionTest, OnlyWaitsOfThoseWhoWereHeldAgainstTheLimitMakeItStricter) {
  Schedule schedule({.workers = 1, .max_queue_seconds = 2.5});
  Teach(schedule, model_);
  for (const bool may_wait_long : {true, false}) {
    Occupy(schedule, model_);
    const Schedule::Batch running = batch_;
    PlainJob* job = NewJob(model_, kMaxBatch);
    job->may_wait_long = may_wait_long;
    ASSERT_TRUE(Admit(schedule, job).ok());
    EXPECT_NEAR(job->predicted_wait(), 1, 1e-6);
    now_ += std::chrono::seconds(3);
    schedule.Finish(running, 1);
    ASSERT_TRUE(schedule.Take(now_, &batch_));
    schedule.Finish(batch_, 1);
    const double now = std::chrono::duration<double>(now_.time_since_epoch()).count();
    EXPECT_EQ(model_->queue.wait_caution.value(now, 2.5) > 1, !may_wait_long);
  }
}

// Clients that give up tell how long they waited in vain: a model that has become slow must not
// look fast to them for ever.
TEST_F(AdmissionTest, ABatchThatWasGivenUpTookAtLeastItsTime) {
  Schedule schedule({.workers = 1, .max_queue_seconds = 2.5});
  Occupy(schedule, model_);
  batch_.computed_cost = 0;
  schedule.Finish(batch_, 0.001);
  EXPECT_NEAR(model_->queue.seconds_per_cost.value() * batch_.cost, 0.001, 1e-12);
  Teach(schedule, model_);
  Occupy(schedule, model_);
  schedule.Finish(batch_, 1);
  EXPECT_EQ(model_->queue.seconds_per_cost.value() * batch_.cost, 1) << "what was computed counts";
  for (int i = 0; i < 12; ++i) {
    Occupy(schedule, model_);
    batch_.computed_cost = 0.1 * batch_.cost;
    schedule.Finish(batch_, 10);
  }
  EXPECT_GT(model_->queue.seconds_per_cost.value() * batch_.cost, 8);
  Occupy(schedule, model_);
  EXPECT_FALSE(Admit(schedule, NewJob(model_)).ok());
}

// The time until a batch was given up is not that of its work.
TEST_F(AdmissionTest, NothingIsLearnedFromWhatWasNotComputed) {
  Schedule schedule({.workers = 1, .max_queue_seconds = 2.5});
  Teach(schedule, model_);
  Occupy(schedule, model_);
  batch_.computed_cost = 0.7 * batch_.cost;
  schedule.Finish(batch_, 0.001);
  EXPECT_EQ(model_->queue.seconds_per_cost.value() * batch_.cost, 1);
  Occupy(schedule, model_);
  batch_.computed_cost = 0.8 * batch_.cost;
  schedule.Finish(batch_, 0.8);
  EXPECT_NEAR(model_->queue.seconds_per_cost.value() * batch_.cost, 1, 1e-12);
  Occupy(schedule, model_);
  PlainJob* job = NewJob(model_, kMaxBatch);
  ASSERT_TRUE(Admit(schedule, job).ok());
  EXPECT_NEAR(job->predicted_wait(), 1, 1e-6);
}

TEST_F(AdmissionTest, AWarmUpWaitsAsLongAsItHasTo) {
  Schedule schedule({.workers = 1, .max_queue_seconds = 0.5});
  Teach(schedule, model_);
  Occupy(schedule, model_);
  PlainJob* job = NewJob(model_);
  EXPECT_FALSE(Admit(schedule, job).ok());
  job->may_wait_long = true;
  EXPECT_TRUE(Admit(schedule, job).ok());
}

// What goes back in slices serves short requests in between.
TEST_F(AdmissionTest, ALongWayBackKeepsOnlyLongRequestsWaiting) {
  Schedule schedule({.workers = 1, .max_queue_seconds = 0.5});
  Teach(schedule, model_);
  PlainJob* back = NewJob(model_, kMaxBatch);
  back->back.emplace();
  back->back_item.columns = 100;
  ASSERT_TRUE(Admit(schedule, back).ok());
  ASSERT_TRUE(schedule.Take(now_, &batch_));
  EXPECT_FALSE(Admit(schedule, NewJob(model_, kMaxBatch + 1)).ok());
  EXPECT_TRUE(Admit(schedule, NewJob(model_)).ok());
}

TEST_F(AdmissionTest, SettingsOfAModelGoBeforeThoseOfTheServer) {
  const ModelPtr own = NewModel(
      "own", {.max_queue = 4, .max_queue_seconds = 0, .max_delay = std::chrono::milliseconds(7)});
  Schedule schedule({.workers = 1, .max_queue_seconds = 0.5});
  ASSERT_TRUE(Admit(schedule, NewJob(own, 3)).ok());
  EXPECT_EQ(schedule.NextStart(), now_ + std::chrono::milliseconds(7));
  ExpectError(Admit(schedule, NewJob(own, 2)), absl::StatusCode::kResourceExhausted,
              "the limit is 4");
  EXPECT_TRUE(Admit(schedule, NewJob(model_, 100)).ok());
}

TEST_F(AdmissionTest, AClientHasItsShareOfTheQueue) {
  Schedule schedule({.workers = 1, .max_queue_samples = 100});
  const auto robot = std::make_shared<ClientAccount>("robot", 0.25);
  const auto sent = [&](const std::shared_ptr<ClientAccount>& client, int64_t n) {
    PlainJob* job = NewJob(model_, n);
    job->client = client;
    return Admit(schedule, job);
  };
  // The first may have any size; after that it is a quarter.
  EXPECT_TRUE(sent(robot, 20).ok());
  EXPECT_TRUE(sent(robot, 5).ok());
  ExpectError(sent(robot, 1), absl::StatusCode::kResourceExhausted,
              "client 'robot' has 25 samples in the queue of model 'm'; this request has 1, its "
              "share is 25");
  EXPECT_TRUE(sent(nullptr, 50).ok());
  EXPECT_TRUE(sent(std::make_shared<ClientAccount>("other", 0.5), 20).ok());
  robot->share = 0.26;
  EXPECT_TRUE(sent(robot, 1).ok());

  while (schedule.Take(now_, &batch_)) schedule.Finish(batch_, 1);

  EXPECT_TRUE(model_->queue.clients.empty());
  EXPECT_EQ(model_->queue.waiting.cost, 0);
}

}  // namespace
}  // namespace deeppcr::testing
