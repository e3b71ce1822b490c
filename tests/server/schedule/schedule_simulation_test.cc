// SPDX-License-Identifier: Apache-2.0
// Random traffic in simulated time: the schedule must decide like a second, plain implementation of
// its rules.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <random>
#include <vector>

#include "server/schedule/schedule.h"
#include "tests/server/schedule/plain_job.h"

namespace deeppcr::testing {
namespace {

using std::chrono::microseconds;

// The rules of schedule.h again, as plain as possible and without regard for speed: one list of all
// waiting jobs, by arrival.
class Rules {
 public:
  struct Expected {
    JobList jobs, expired;
  };

  explicit Rules(const ScheduleOptions& options) : options_(options) {}

  bool Admit(Job* job, TimePoint now, JobList* expired) {
    if (Expired(job, now)) return false;
    if (TooDeep(*job)) {
      for (Job* each : waiting_)
        if (each->model == job->model && Expired(each, now)) expired->push_back(each);
      Remove(*expired);
    }
    if (TooDeep(*job)) return false;
    Model& model = models_[job->model.get()];
    if (WaitingFor(job->model.get()).empty()) {
      model.real = std::max(model.real, virtual_time_ - Estimated(model));
      model.turn = ++turns_;
    }
    waiting_.push_back(job);
    return true;
  }

  std::optional<Expected> Take(TimePoint now) {
    const ServedModel* picked = Pick(now);
    if (!picked) return std::nullopt;
    Expected expected = TakeBatch(picked, now);
    Remove(expected.jobs);
    Remove(expected.expired);
    return expected;
  }

  void Finish(const Expected& batch, double seconds) {
    if (batch.jobs.empty()) return;
    Model& model = models_[batch.jobs.front()->model.get()];
    model.real += seconds;
    model.running.erase(batch.jobs.front());
    model.rate = seconds / static_cast<double>(Samples(batch.jobs));
  }
  void Drop(TimePoint now, JobList* expired) {
    for (Job* job : waiting_)
      if (Expired(job, now)) expired->push_back(job);
    Remove(*expired);
  }

 private:
  struct Model {
    double real = 0;                       // seconds that the model used
    std::map<const Job*, double> running;  // estimates of running batches, by their first jobs
    double rate = 0;                       // seconds per sample, lately
    int64_t turn = 0;                      // when the model last went to the end of the line
  };

  static bool Expired(const Job* job, TimePoint now) {
    return job->token->cancelled() || now >= job->token->deadline();
  }
  static double Estimated(const Model& model) {
    double seconds = 0;
    for (const auto& [job, estimate] : model.running) seconds += estimate;
    return seconds;
  }
  static int64_t Samples(const JobList& jobs) {
    int64_t samples = 0;
    for (const Job* job : jobs) samples += job->samples;
    return samples;
  }
  JobList WaitingFor(const ServedModel* model) const {
    JobList jobs;
    for (Job* job : waiting_)
      if (job->model.get() == model) jobs.push_back(job);
    return jobs;
  }
  bool TooDeep(const Job& job) const {
    const JobList same = WaitingFor(job.model.get());
    return !same.empty() && Samples(same) + job.samples > options_.max_queue_samples;
  }
  void Remove(const JobList& jobs) {
    std::erase_if(waiting_, [&](Job* job) { return std::ranges::count(jobs, job) > 0; });
  }
  bool MayStart(const ServedModel* model, TimePoint now) {
    const JobList jobs = WaitingFor(model);
    if (jobs.empty()) return false;
    const int instances = static_cast<int>(models_[model].running.size());
    if (options_.max_instances > 0 && instances >= options_.max_instances) return false;
    const auto has_waited = [&](const Job* job) {
      const auto waited = now - job->enqueued();
      return waited >= options_.max_delay ||
             waited >= (job->token->deadline() - job->enqueued()) / 2;
    };
    return Samples(jobs) >= kMaxBatch || std::any_of(jobs.begin(), jobs.end(), has_waited);
  }
  const ServedModel* Pick(TimePoint now) {
    const ServedModel* best = nullptr;
    for (const auto& [model, state] : models_) {
      if (!MayStart(model, now)) continue;
      const auto key = [&](const ServedModel* each) {
        const Model& of = models_.at(each);
        return std::pair(of.real + Estimated(of), of.turn);
      };
      if (best == nullptr || key(model) < key(best)) best = model;
    }
    return best;
  }
  Expected TakeBatch(const ServedModel* picked, TimePoint now) {
    Expected batch;
    for (Job* job : WaitingFor(picked)) {
      const bool fits = batch.jobs.empty() || (job->options == batch.jobs.front()->options &&
                                               Samples(batch.jobs) + job->samples <= kMaxBatch);
      if (Expired(job, now)) {
        batch.expired.push_back(job);
      } else if (fits) {
        batch.jobs.push_back(job);
      }
    }
    Model& model = models_[picked];
    model.turn = ++turns_;
    if (batch.jobs.empty()) return batch;
    virtual_time_ = std::max(virtual_time_, model.real);
    model.running[batch.jobs.front()] = model.rate * static_cast<double>(Samples(batch.jobs));
    return batch;
  }

  const ScheduleOptions options_;
  JobList waiting_;
  std::map<const ServedModel*, Model> models_;
  int64_t turns_ = 0;
  double virtual_time_ = 0;
};

// Workers that compute for simulated times, a schedule, and the rules that it must follow.
class Simulation {
 public:
  Simulation(const ScheduleOptions& options, unsigned seed)
      : options_(options), schedule_(options), rules_(options), random_(seed) {
    for (const char* name : {"a", "b", "c"}) models_.push_back(NewModel(name));
    workers_.resize(static_cast<size_t>(options.workers));
  }

  void Step() {
    now_ += microseconds(Draw(400));
    for (Worker& worker : workers_) {
      if (worker.busy && worker.end <= now_) End(&worker);
    }
    for (int64_t n = Draw(3); n > 0; --n) Arrive();
    if (!jobs_.empty() && Draw(5) == 0) jobs_[static_cast<size_t>(Draw(size()))]->token->Cancel();
    if (Draw(10) == 0) Sweep();
    for (Worker& worker : workers_) {
      if (!worker.busy) Begin(&worker);
    }
  }
  // Runs until nothing waits and nothing computes.
  void RunDry() {
    for (int i = 0; i < 20000 && (!schedule_.empty() || Busy()); ++i) {
      now_ += microseconds(200);
      for (Worker& worker : workers_) {
        if (worker.busy && worker.end <= now_) End(&worker);
        if (!worker.busy) Begin(&worker);
      }
    }
    EXPECT_TRUE(schedule_.empty());
  }
  int64_t admitted() const { return admitted_; }
  int64_t ended() const { return ended_; }
  int64_t batched() const { return batched_; }
  int64_t dropped() const { return dropped_; }
  int64_t refused() const { return refused_; }

 private:
  struct Worker {
    bool busy = false;
    Schedule::Batch batch;
    Rules::Expected expected;
    TimePoint end;
    double seconds = 0;
  };

  int64_t size() const { return static_cast<int64_t>(jobs_.size()); }
  int64_t Draw(int64_t below) {
    return std::uniform_int_distribution<int64_t>(0, below - 1)(random_);
  }
  bool Busy() const {
    return std::any_of(workers_.begin(), workers_.end(), [](const auto& w) { return w.busy; });
  }

  void Arrive() {
    const TimePoint deadline = Draw(3) == 0 ? now_ + microseconds(Draw(4000)) : TimePoint::max();
    jobs_.push_back(std::make_unique<PlainJob>(models_[static_cast<size_t>(Draw(3))], 1 + Draw(8),
                                               Draw(2) == 0 ? 1e-4 : 1e-3, deadline));
    Job* job = jobs_.back().get();
    job->may_wait_long = true;  // wait_test.cc looks at predicted waits
    JobList expired, expected_expired;
    // The rules go first: they read when the other jobs came, which the schedule writes.
    const bool expected = rules_.Admit(job, now_, &expected_expired);
    const bool admitted = schedule_.Admit(job, now_, &expired).ok();
    EXPECT_EQ(admitted, expected);
    EXPECT_THAT(expired, ::testing::UnorderedElementsAreArray(expected_expired));
    (admitted ? admitted_ : refused_) += 1;
    ended_ += static_cast<int64_t>(expired.size());
    dropped_ += static_cast<int64_t>(expired.size());
  }

  void Sweep() {
    JobList expired, expected;
    rules_.Drop(now_, &expected);
    schedule_.RemoveExpired(now_, &expired);
    EXPECT_THAT(expired, ::testing::UnorderedElementsAreArray(expected));
    ended_ += static_cast<int64_t>(expired.size());
    dropped_ += static_cast<int64_t>(expired.size());
  }

  void Begin(Worker* worker) {
    const TimePoint promised = schedule_.NextStart();
    const auto expected = rules_.Take(now_);
    const bool taken = schedule_.Take(now_, &worker->batch);
    ASSERT_EQ(taken, expected.has_value());
    EXPECT_EQ(taken, promised <= now_);
    if (!taken) return;
    EXPECT_EQ(worker->batch.jobs, expected->jobs);
    EXPECT_THAT(worker->batch.expired, ::testing::UnorderedElementsAreArray(expected->expired));
    ended_ += static_cast<int64_t>(worker->batch.expired.size() + worker->batch.jobs.size());
    dropped_ += static_cast<int64_t>(worker->batch.expired.size());
    batched_ += worker->batch.jobs.size() > 1 ? 1 : 0;
    worker->expected = *expected;
    worker->busy = true;
    // Binary fractions have exact sums, in any order.
    worker->seconds = std::ldexp(static_cast<double>(Draw(500) * worker->batch.samples), -20);
    worker->end = now_ + microseconds(static_cast<int64_t>(1e6 * worker->seconds));
  }

  void End(Worker* worker) {
    schedule_.Finish(worker->batch, worker->seconds);
    rules_.Finish(worker->expected, worker->seconds);
    worker->busy = false;
  }

  const ScheduleOptions options_;
  Schedule schedule_;
  Rules rules_;
  std::mt19937 random_;
  std::vector<ModelPtr> models_;
  std::vector<std::unique_ptr<PlainJob>> jobs_;
  std::vector<Worker> workers_;
  TimePoint now_ = kStart;
  int64_t admitted_ = 0, ended_ = 0, batched_ = 0, dropped_ = 0, refused_ = 0;
};

TEST(ScheduleSimulationTest, FollowsItsRules) {
  int64_t batched = 0, dropped = 0, refused = 0;
  for (unsigned seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    Simulation simulation({.workers = 1 + static_cast<int>(seed % 4),
                           .max_queue_samples = seed % 5 == 0 ? 6 : 64,
                           .max_instances = static_cast<int>(seed % 3),
                           .max_delay = microseconds(seed % 2 == 0 ? 0 : 1500)},
                          seed);
    for (int step = 0; step < 400; ++step) {
      simulation.Step();
      if (::testing::Test::HasFailure()) return;
    }
    simulation.RunDry();
    // Every job ended exactly once, computed or dropped.
    EXPECT_EQ(simulation.ended(), simulation.admitted());
    batched += simulation.batched();
    dropped += simulation.dropped();
    refused += simulation.refused();
  }
  // The traffic covered every case.
  EXPECT_GT(batched, 1000);
  EXPECT_GT(dropped, 1000);
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace deeppcr::testing
