// SPDX-License-Identifier: Apache-2.0
// Predicted waits against those that come, and shares of clients, in simulated traffic.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "server/schedule/schedule.h"
#include "tests/server/schedule/plain_job.h"

namespace deeppcr::testing {
namespace {

using ::testing::AllOf;
using ::testing::Gt;
using ::testing::Lt;

TimePoint::duration Duration(double seconds) {
  return std::chrono::duration_cast<TimePoint::duration>(std::chrono::duration<double>(seconds));
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
