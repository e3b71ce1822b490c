// SPDX-License-Identifier: Apache-2.0
// Predicted waits against those that come, in simulated time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "server/schedule/schedule.h"
#include "server/schedule/wait_prediction.h"
#include "tests/server/schedule/plain_job.h"
#include "tests/testing/expect_error.h"

namespace deeppcr::testing {
namespace {

using ::testing::AllOf;
using ::testing::Gt;
using ::testing::Lt;

TimePoint::duration Duration(double seconds) {
  return std::chrono::duration_cast<TimePoint::duration>(std::chrono::duration<double>(seconds));
}

TEST(SecondsUntilFreeTest, IsTheLevelToWhichTheWorkFillsUp) {
  std::mt19937 random(1);
  std::uniform_real_distribution<double> draw(0, 3);
  for (int n = 1; n <= 9; ++n) {
    for (int trial = 0; trial < 50; ++trial) {
      std::vector<double> busy(static_cast<size_t>(n));
      for (double& each : busy) each = trial % 3 == 0 ? 0 : draw(random);
      const double ahead = trial % 5 == 0 ? 0 : 4 * draw(random);
      const double level = SecondsUntilFree(busy, ahead);
      double filled = 0;
      for (const double each : busy) filled += std::max(0.0, level - each);
      EXPECT_NEAR(filled, ahead, 1e-12);
      EXPECT_GE(level, std::ranges::min(busy));
    }
  }
}

// Traffic in simulated time: models whose batches take a fixed time and a time per sample, and
// streams of requests for them, which come whatever has become of the earlier ones.
class Traffic {
 public:
  struct Stream {
    ModelPtr model;
    double per_second = 100;
    int64_t samples = 1;
    double expected_seconds = 0;  // per sample; 0: no plan says
    double rtol = 1e-4;           // options of its own
    std::shared_ptr<ClientAccount> client = nullptr;
    double patience = 0;  // deadline; 0: none

    int64_t refused = 0, admitted = 0, computed = 0, late = 0;
    std::vector<double> waits = {};  // of those that were computed
    double Percentile(double part) const {
      std::vector<double> sorted = waits;
      std::ranges::sort(sorted);
      return sorted.at(static_cast<size_t>(part * static_cast<double>(sorted.size())));
    }
    double Worst() const { return waits.empty() ? 0 : std::ranges::max(waits); }
    double Mean() const {
      return std::accumulate(waits.begin(), waits.end(), 0.0) / static_cast<double>(waits.size());
    }
  };

  Traffic(const ScheduleOptions& options, std::vector<Stream> streams)
      : schedule_(options),
        streams_(std::move(streams)),
        workers_(static_cast<size_t>(options.workers)),
        next_(streams_.size(), 0) {}

  // Seconds that a batch takes. `factor`: of what was expected.
  double fixed_seconds = 0.001, seconds_per_sample = 0.001, factor = 1;
  // Batches take so much longer or shorter, by a normal distribution of the logarithm.
  double variation = 0;

  void Run(double seconds) {
    for (const double end = now_ + seconds; now_ < end; now_ += 0.0001) {
      for (Worker& worker : workers_) End(&worker);
      for (size_t i = 0; i < streams_.size(); ++i) {
        for (; next_[i] <= now_; next_[i] += Pause(streams_[i])) Arrive(i);
      }
      for (Worker& worker : workers_) Begin(&worker);
    }
  }
  // Forgets what was counted so far: the first requests come before any time is known, and a
  // prediction knows nothing of requests that have yet to come when a flood begins.
  void Settle(double seconds) {
    Run(seconds);
    for (Stream& stream : streams_) {
      stream.refused = stream.admitted = stream.computed = stream.late = 0;
      stream.waits.clear();
    }
    busy_ = 0;
    begin_ = now_;
  }
  Stream& stream(size_t i) { return streams_[i]; }
  // The part of the workers' time that they computed in.
  double busy() const { return busy_ / ((now_ - begin_) * static_cast<double>(workers_.size())); }

 private:
  struct Sent : PlainJob {
    using PlainJob::PlainJob;
    size_t stream = 0;
  };
  struct Worker {
    Schedule::Batch batch;
    double end = 0, seconds = 0;
    bool is_busy = false;
  };

  TimePoint Now() const { return kStart + Duration(now_); }
  double Pause(const Stream& stream) {
    return std::exponential_distribution<double>(stream.per_second)(random_);
  }
  void Arrive(size_t i) {
    Stream& stream = streams_[i];
    const TimePoint deadline =
        stream.patience > 0 ? Now() + Duration(stream.patience) : TimePoint::max();
    jobs_.push_back(std::make_unique<Sent>(stream.model, stream.samples, stream.rtol, deadline));
    Sent* job = jobs_.back().get();
    job->stream = i;
    job->client = stream.client;
    job->expected_seconds = stream.expected_seconds * static_cast<double>(stream.samples);
    JobList expired;
    const absl::Status status = schedule_.Admit(job, Now(), &expired);
    ++(status.ok() ? stream.admitted : stream.refused);
    EXPECT_TRUE(status.ok() || absl::IsResourceExhausted(status)) << status;
    for (const Job* each : expired) ++streams_[static_cast<const Sent*>(each)->stream].late;
  }
  void Begin(Worker* worker) {
    if (worker->is_busy || !schedule_.Take(Now(), &worker->batch)) return;
    for (const Job* each : worker->batch.expired)
      ++streams_[static_cast<const Sent*>(each)->stream].late;
    double seconds = worker->batch.jobs.empty() ? 0 : fixed_seconds;
    for (const Job* each : worker->batch.jobs) {
      Stream& stream = streams_[static_cast<const Sent*>(each)->stream];
      stream.waits.push_back(std::chrono::duration<double>(Now() - each->enqueued()).count());
      ++stream.computed;
      seconds += each->expected_seconds > 0
                     ? factor * each->expected_seconds
                     : seconds_per_sample * static_cast<double>(each->samples);
    }
    seconds *= std::exp(std::normal_distribution<double>(0, 1)(random_) * variation);
    worker->is_busy = true;
    worker->seconds = seconds;
    worker->end = now_ + seconds;
    busy_ += seconds;
  }
  void End(Worker* worker) {
    if (!worker->is_busy || worker->end > now_) return;
    schedule_.Finish(worker->batch, worker->seconds);
    worker->is_busy = false;
  }

  Schedule schedule_;
  std::vector<Stream> streams_;
  std::vector<Worker> workers_;
  std::vector<double> next_;
  std::vector<std::unique_ptr<Sent>> jobs_;
  std::mt19937 random_{7};
  double now_ = 0, busy_ = 0, begin_ = 0;
};

constexpr double kLimit = 0.5;

// A batch of 16 takes 17 ms: two workers answer 1880 samples a second.
TEST(WaitTest, UnderThreeTimesTheLoadNobodyWaitsLongerThanTheLimitAndNothingIsLost) {
  for (const int workers : {1, 2, 5}) {
    SCOPED_TRACE(workers);
    Traffic traffic({.workers = workers, .max_queue_samples = 1 << 20, .max_queue_seconds = kLimit},
                    {{.model = NewModel("a"), .per_second = 3.0 * 941 * workers}});
    traffic.Run(20);
    EXPECT_LE(traffic.stream(0).Worst(), 1.1 * kLimit);
    EXPECT_GE(traffic.busy(), 0.99);
    EXPECT_GT(traffic.stream(0).refused, traffic.stream(0).admitted);
  }
}

// As of a number of steps that no plan was made for, beside one that has a plan.
TEST(WaitTest, WhatHasNoPlanWaitsBesideWhatHasOne) {
  for (const bool planned_first : {true, false}) {
    const ModelPtr model = NewModel("a");
    Traffic traffic({.workers = 1, .max_queue_samples = 1 << 20, .max_queue_seconds = kLimit},
                    {{.model = model, .per_second = 150, .expected_seconds = 0.001},
                     {.model = model, .per_second = 150, .rtol = 1e-3}});
    traffic.stream(planned_first ? 1 : 0).per_second = 1;
    traffic.Settle(1);
    traffic.stream(0).per_second = traffic.stream(1).per_second = 150;
    traffic.Run(20);
    EXPECT_EQ(traffic.stream(0).refused, 0) << planned_first;
    EXPECT_EQ(traffic.stream(1).refused, 0) << planned_first;
    EXPECT_GT(traffic.stream(1).computed, 100) << planned_first;
  }
}

// Few batches are ahead of who waits for as long as the limit, so that their times do not even out.
TEST(WaitTest, WhereTimesVaryStillOneInAHundredWaitsLongerThanTheLimit) {
  for (const double variation : {0.1, 0.3}) {
    for (const double fixed : {0.05, 0.15, 0.2}) {
      SCOPED_TRACE(::testing::Message() << variation << ", " << fixed);
      Traffic traffic({.workers = 2, .max_queue_samples = 1 << 20, .max_queue_seconds = kLimit},
                      {{.model = NewModel("a"), .per_second = 3 * 2 * kMaxBatch / fixed}});
      traffic.fixed_seconds = fixed;
      traffic.seconds_per_sample = 0;
      traffic.variation = variation;
      traffic.Settle(60);
      traffic.Run(240);
      EXPECT_LE(traffic.stream(0).Percentile(0.99), kLimit);
      EXPECT_GE(traffic.busy(), 0.99);
      // Not for want of those who wait.
      EXPECT_GE(traffic.stream(0).Mean(), 0.3 * kLimit);
    }
  }
}

TEST(WaitCautionTest, SettlesWhereOneIn200WaitsTooLongAndForgets) {
  WaitCaution caution;
  EXPECT_EQ(caution.value(0, 1), 1);
  std::mt19937 random(2);
  std::normal_distribution<double> ratio(1.0, 0.15);
  double sum = 0;
  for (int i = 0; i < 200000; ++i) {
    caution.Add(0, 1, ratio(random) > caution.value(0, 1));
    if (i >= 50000) sum += caution.value(0, 1) / 150000;
  }
  EXPECT_NEAR(sum, 1.0 + 2.576 * 0.15, 0.02);
  for (int i = 0; i < 1000; ++i) caution.Add(0, 1, true);
  EXPECT_EQ(caution.value(0, 1), 2);
  for (int i = 0; i < 40000; ++i) caution.Add(0, 1, false);
  EXPECT_EQ(caution.value(0, 1), 1);
}

TEST(WaitCautionTest, FadesWithTimeWhoeverComes) {
  WaitCaution caution;
  for (int i = 0; i < 1000; ++i) caution.Add(7, 2, true);
  EXPECT_NEAR(caution.value(7 + 1200, 2), 1 + std::exp(-1), 1e-12);
  EXPECT_NEAR(caution.value(7 + 12000, 2), 1, 1e-4);
  caution.Add(7 + 1200, 2, true);
  EXPECT_NEAR(caution.value(7 + 1200, 2), 1.005 + std::exp(-1), 1e-12);
}

// One stall makes all who wait late. A crowd that fits into the limit is let in before and after.
TEST(WaitTest, AfterAStallAsManyAreLetInAsBefore) {
  constexpr double kUsual = 0.9 * 2 * 941, kCrowd = 12000;
  Traffic traffic({.workers = 2, .max_queue_samples = 1 << 20, .max_queue_seconds = kLimit},
                  {{.model = NewModel("a"), .per_second = kUsual}});
  const auto refused_of_a_crowd = [&] {
    traffic.Settle(5);
    traffic.stream(0).per_second = kCrowd;
    traffic.Run(0.05);
    traffic.stream(0).per_second = kUsual;
    traffic.Run(2);
    EXPECT_GT(traffic.stream(0).Worst(), 0.5 * kLimit);
    return traffic.stream(0).refused;
  };
  EXPECT_EQ(refused_of_a_crowd(), 0);
  traffic.fixed_seconds = 1.2;  // of the batches that begin now
  traffic.Run(0.05);
  traffic.fixed_seconds = 0.001;
  traffic.Run(2);
  EXPECT_GT(traffic.stream(0).Worst(), kLimit);
  EXPECT_EQ(refused_of_a_crowd(), 0);
}

TEST(SecondsPerCostTest, OneBatchChangesItByAFactorOfTwoAtMost) {
  for (const double outlier : {1e-6, 100.0}) {
    SecondsPerCost seconds;
    for (int i = 0; i < 10; ++i) seconds.Add(3, 3);
    seconds.Add(outlier, 1);
    EXPECT_GE(seconds.value(), 0.5);
    EXPECT_LE(seconds.value(), 2);
    seconds.Add(100 * outlier, 100);
    EXPECT_GE(seconds.value(), 0.25);
    EXPECT_LE(seconds.value(), 4);
    // What lasts is learned.
    for (int i = 0; i < 1000; ++i) seconds.Add(outlier, 1);
    EXPECT_NEAR(seconds.value() / outlier, 1, 1e-3);
  }
}

TEST(WaitTest, BelowTheCapacityNobodyIsRefused) {
  Traffic traffic({.workers = 2, .max_queue_seconds = 0.2},
                  {{.model = NewModel("a"), .per_second = 1200}});
  traffic.Run(20);
  EXPECT_EQ(traffic.stream(0).refused, 0);
}

TEST(WaitTest, PredictionsHoldForRequestsOfDifferentCosts) {
  const ModelPtr model = NewModel("a");
  Traffic traffic({.workers = 2, .max_queue_samples = 1 << 20, .max_queue_seconds = kLimit},
                  {{.model = model, .per_second = 500, .expected_seconds = 0.0001},
                   {.model = model, .per_second = 100, .expected_seconds = 0.01, .rtol = 1e-3}});
  traffic.factor = 2.5;  // slower than planned
  traffic.Settle(3);
  traffic.Run(30);
  for (size_t i = 0; i < 2; ++i) EXPECT_LE(traffic.stream(i).Worst(), 1.5 * kLimit) << i;
  EXPECT_GT(traffic.stream(1).refused, 0);
  EXPECT_GE(traffic.busy(), 0.95);
}

TEST(WaitTest, PredictionsHoldAmongSeveralModels) {
  const ModelPtr heavy = NewModel("heavy", ServingSettings{.weight = 3});
  Traffic traffic({.workers = 2, .max_queue_samples = 1 << 20, .max_queue_seconds = kLimit},
                  {{.model = NewModel("a"), .per_second = 3000},
                   {.model = heavy, .per_second = 3000},
                   {.model = NewModel("idle"), .per_second = 5}});
  traffic.Settle(5);
  traffic.Run(20);
  for (size_t i = 0; i < 3; ++i) EXPECT_LE(traffic.stream(i).Worst(), 1.3 * kLimit) << i;
  EXPECT_EQ(traffic.stream(2).refused, 0);
  // Time goes by weight.
  const auto answered = [&](size_t i) { return static_cast<double>(traffic.stream(i).computed); };
  EXPECT_THAT(answered(1) / answered(0), AllOf(Gt(2.7), Lt(3.3)));
}

TEST(WaitTest, PredictionsHoldForModelsOfFewInstances) {
  const ModelPtr narrow = NewModel("narrow", ServingSettings{.max_instances = 1});
  Traffic traffic({.workers = 4, .max_queue_samples = 1 << 20, .max_queue_seconds = kLimit},
                  {{.model = narrow, .per_second = 3000}});
  traffic.Run(20);
  EXPECT_LE(traffic.stream(0).Worst(), 1.1 * kLimit);
  EXPECT_GT(traffic.stream(0).refused, 0);
}

TEST(WaitTest, WhoWouldWaitBeyondItsDeadlineIsRefusedAtOnce) {
  Traffic traffic({.workers = 1, .max_queue_samples = 1 << 20},
                  {{.model = NewModel("a"), .per_second = 3000, .patience = 0.3}});
  traffic.Run(20);
  const Traffic::Stream& stream = traffic.stream(0);
  EXPECT_GT(stream.refused, 30000);
  // Few of those that were let in came too late, and nobody was idle for want of them.
  EXPECT_LT(static_cast<double>(stream.late), 0.05 * static_cast<double>(stream.admitted));
  EXPECT_GE(traffic.busy(), 0.99);
}

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
  EXPECT_FALSE(schedule.Delays());
  ASSERT_TRUE(Admit(schedule, NewJob(own, 3)).ok());
  EXPECT_TRUE(schedule.Delays());
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

// A client of a quarter that asks for ten times the capacity, beside one that asks for half of it.
TEST(ShareTest, OneClientDoesNotTakeWhatOthersAskFor) {
  const ModelPtr model = NewModel("m");
  const auto flood = std::make_shared<ClientAccount>("flood", 0.25);
  const auto modest = std::make_shared<ClientAccount>("modest", 0.75);
  Traffic traffic({.workers = 1, .max_queue_samples = 1 << 20, .max_queue_seconds = kLimit},
                  {{.model = model, .per_second = 9000, .client = flood},
                   {.model = model, .per_second = 470, .client = modest}});
  traffic.Run(20);
  EXPECT_EQ(traffic.stream(1).refused, 0);
  // The flood's quarter of the limit, and what comes of the modest half while that is computed.
  EXPECT_NEAR(traffic.stream(1).Mean(), 0.25 * kLimit / (1 - 0.5), 0.05 * kLimit);
  // What the modest one leaves, the other gets.
  EXPECT_GE(traffic.busy(), 0.99);
  EXPECT_GT(traffic.stream(0).computed, 20 * 400);
}

TEST(ShareTest, WhoAllAskForMoreGetTheirShares) {
  const ModelPtr model = NewModel("m");
  Traffic traffic(
      {.workers = 2, .max_queue_samples = 1 << 20, .max_queue_seconds = kLimit},
      {{.model = model, .per_second = 9000, .client = std::make_shared<ClientAccount>("a", 0.2)},
       {.model = model, .per_second = 5000, .client = std::make_shared<ClientAccount>("b", 0.6)}});
  traffic.Run(20);
  const double ratio = static_cast<double>(traffic.stream(1).computed) /
                       static_cast<double>(traffic.stream(0).computed);
  EXPECT_THAT(ratio, AllOf(Gt(2.7), Lt(3.3)));
}

}  // namespace
}  // namespace deeppcr::testing
