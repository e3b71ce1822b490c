// SPDX-License-Identifier: Apache-2.0
// Time is simulated here: nothing waits, and every decision can be replayed.
#include "server/schedule/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/server/schedule/plain_job.h"
#include "tests/testing/expect_error.h"

namespace deeppcr::testing {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class ScheduleTest : public ::testing::Test {
 protected:
  PlainJob* NewJob(const ModelPtr& model, int64_t n = 1, double rtol = 1e-4,
                   TimePoint deadline = TimePoint::max()) {
    jobs_.push_back(std::make_unique<PlainJob>(model, n, rtol, deadline));
    return jobs_.back().get();
  }
  PlainJob* Admit(Schedule& schedule, PlainJob* job) {
    JobList expired;
    EXPECT_TRUE(schedule.Admit(job, now_, &expired).ok());
    EXPECT_THAT(expired, IsEmpty());
    return job;
  }
  PlainJob* Admit(Schedule& schedule, const ModelPtr& model, int64_t n = 1) {
    return Admit(schedule, NewJob(model, n));
  }
  JobList Take(Schedule& schedule) {
    return schedule.Take(now_, &batch_) ? batch_.jobs : JobList();
  }

  std::vector<std::unique_ptr<PlainJob>> jobs_;
  const ModelPtr a_ = NewModel("a"), b_ = NewModel("b"), c_ = NewModel("c");
  TimePoint now_ = kStart;
  Schedule::Batch batch_;
};

TEST_F(ScheduleTest, ABatchThatIsNotFullWaitsForMaxDelay) {
  Schedule schedule({.max_delay = milliseconds(5)});
  Job* first = Admit(schedule, a_);
  EXPECT_EQ(schedule.NextStart(), kStart + milliseconds(5));
  now_ += milliseconds(3);
  Job* second = Admit(schedule, a_);
  EXPECT_THAT(Take(schedule), IsEmpty());
  now_ = kStart + milliseconds(5) - microseconds(1);
  EXPECT_THAT(Take(schedule), IsEmpty());

  now_ += microseconds(1);

  EXPECT_THAT(Take(schedule), ElementsAre(first, second));
  EXPECT_EQ(schedule.NextStart(), TimePoint::max());
}

TEST_F(ScheduleTest, AFullBatchDoesNotWait) {
  Schedule schedule({.max_delay = milliseconds(5)});
  Admit(schedule, a_, kMaxBatch - 1);
  EXPECT_THAT(Take(schedule), IsEmpty());
  Admit(schedule, a_, 1);

  EXPECT_EQ(Take(schedule).size(), 2u);
}

TEST_F(ScheduleTest, NoMoreInstancesOfAModelThanAllowed) {
  Schedule schedule({.workers = 4, .max_instances = 1});
  Admit(schedule, a_, kMaxBatch);
  Job* later = Admit(schedule, a_, kMaxBatch);
  Job* other = Admit(schedule, b_);
  Schedule::Batch first;
  ASSERT_TRUE(schedule.Take(now_, &first));
  EXPECT_THAT(Take(schedule), ElementsAre(other));
  EXPECT_THAT(Take(schedule), IsEmpty());
  EXPECT_EQ(schedule.NextStart(), TimePoint::max());

  schedule.Finish(first, 1);

  EXPECT_THAT(Take(schedule), ElementsAre(later));
}

TEST_F(ScheduleTest, OnlyAJobThatWaitsAloneIsTakenWhereItArrives) {
  Schedule schedule({});
  const Job* alone = Admit(schedule, a_);
  EXPECT_TRUE(schedule.TakeOnly(*alone, now_, &batch_));
  EXPECT_THAT(batch_.jobs, ElementsAre(alone));
  Admit(schedule, a_);
  const Job* second = Admit(schedule, a_);
  EXPECT_FALSE(schedule.TakeOnly(*second, now_, &batch_));

  Schedule delayed({.max_delay = milliseconds(5)});
  EXPECT_FALSE(delayed.TakeOnly(*Admit(delayed, c_), now_, &batch_));
}

TEST_F(ScheduleTest, ADeadlineEndsAJobAtArrivalAndInTheQueue) {
  Schedule schedule({});
  const TimePoint deadline = now_ + milliseconds(1);
  PlainJob* expires = Admit(schedule, NewJob(a_, 1, 1e-4, deadline));
  Job* stays = Admit(schedule, a_);
  now_ = deadline;
  JobList expired;
  ExpectError(schedule.Admit(NewJob(a_, 1, 1e-4, deadline), now_, &expired),
              absl::StatusCode::kDeadlineExceeded, "before it was computed");

  EXPECT_THAT(Take(schedule), ElementsAre(stays));

  EXPECT_THAT(batch_.expired, ElementsAre(expires));
  EXPECT_EQ(batch_.samples, 1);
}

// A batch looks at the first of a long queue only, and what it leaves keeps its order.
TEST_F(ScheduleTest, ABatchOfALongQueueIsFoundAmongItsFirstJobs) {
  Schedule schedule({.max_queue_samples = 2000});
  std::vector<Job*> others;
  Job *first = nullptr, *near = nullptr;
  for (int i = 0; i < 1000; ++i) {
    const bool same = i == 0 || i == 200 || i == 300;
    Job* job = Admit(schedule, NewJob(a_, 1, same ? 1e-4 : 1e-3 + 1e-6 * i));
    if (i == 0) first = job;
    if (i == 200) near = job;
    if (!same || i == 300) others.push_back(job);
  }
  EXPECT_THAT(Take(schedule), ElementsAre(first, near));
  EXPECT_EQ(Schedule::Depth(*a_), 998);
  for (Job* other : others) EXPECT_THAT(Take(schedule), ElementsAre(other));
  EXPECT_THAT(Take(schedule), IsEmpty());
}

// Jobs that go together are one batch, however many.
TEST_F(ScheduleTest, ABatchOfManyJobsIsNotCutShort) {
  const auto large = std::make_shared<FakeModel>();
  large->info_.max_batch_size = 1024;
  const auto model = std::make_shared<ServedModel>("large", 1, large, nullptr);
  Schedule schedule({.max_queue_samples = 2000});
  for (int i = 0; i < 700; ++i) Admit(schedule, model);
  EXPECT_EQ(Take(schedule).size(), 700u);
  EXPECT_TRUE(schedule.empty());
}

// What a batch does not look at is no reason to wait.
TEST_F(ScheduleTest, ALongQueueIsDueWhileItLasts) {
  Schedule schedule({.max_queue_samples = 2000, .max_delay = milliseconds(5)});
  for (int i = 0; i < 600; ++i) Admit(schedule, NewJob(a_, 1, 1e-3 + 1e-6 * i));
  int taken = 0;
  while (!Take(schedule).empty()) ++taken;
  EXPECT_GE(taken, 600 - 256);
  now_ += milliseconds(5);
  while (!Take(schedule).empty()) ++taken;
  EXPECT_EQ(taken, 600);
}

TEST_F(ScheduleTest, ExpiredJobsGiveTheirPlaceInAFullQueueAway) {
  Schedule schedule({.max_queue_samples = 2});
  PlainJob* expires = Admit(schedule, NewJob(a_, 2, 1e-4, now_ + milliseconds(1)));
  now_ += milliseconds(1);
  PlainJob* next = NewJob(a_, 2);
  JobList expired;

  EXPECT_TRUE(schedule.Admit(next, now_, &expired).ok());

  EXPECT_THAT(expired, ElementsAre(expires));
  EXPECT_THAT(Take(schedule), ElementsAre(next));
  EXPECT_TRUE(schedule.empty());
}

// Models that always have a batch waiting, and the time that each has used.
class Backlog {
 public:
  struct Model {
    ModelPtr model;
    double batch_seconds;
    double from = 0;    // idle before this time
    double period = 0;  // seconds from one sample to the next; 0: a backlog
    int odd_every = 0;  // every so many jobs one has a single sample and other options; 0: none
    double used = 0;
    double longest_wait = 0;
    int jobs = 0;
  };

  Backlog(int workers, std::vector<Model> models)
      : schedule_({.workers = workers, .max_queue_samples = 64}),
        models_(std::move(models)),
        workers_(static_cast<size_t>(workers)) {}

  void Run(double seconds) {
    while (now_ < seconds) {
      Fill();
      for (Worker& worker : workers_) Start(&worker);
      double next = seconds;
      for (const Worker& worker : workers_) {
        if (worker.model != nullptr) next = std::min(next, worker.end);
      }
      for (const Model& model : models_) {
        if (model.from > now_) next = std::min(next, model.from);
      }
      now_ = next;
      for (Worker& worker : workers_) End(&worker);
    }
  }
  double used(size_t model) const { return models_[model].used; }
  double longest_wait(size_t model) const { return models_[model].longest_wait; }

 private:
  struct Worker {
    Schedule::Batch batch;
    Model* model = nullptr;
    double end = 0;
  };

  TimePoint Now() const {
    return kStart +
           std::chrono::duration_cast<TimePoint::duration>(std::chrono::duration<double>(now_));
  }
  void Fill() {
    for (Model& model : models_) {
      if (now_ < model.from) continue;
      if (model.period > 0) {
        Admit(&model, 1, 1e-4);
        model.from = now_ + model.period;
      }
      while (model.period == 0 && Schedule::Depth(*model.model) < 2 * kMaxBatch) {
        const bool odd = model.odd_every > 0 && model.jobs % model.odd_every == 0;
        Admit(&model, odd ? 1 : kMaxBatch, odd ? 1e-3 : 1e-4);
      }
    }
  }
  void Admit(Model* model, int64_t samples, double rtol) {
    ++model->jobs;
    jobs_.push_back(std::make_unique<PlainJob>(model->model, samples, rtol));
    JobList expired;
    ASSERT_TRUE(schedule_.Admit(jobs_.back().get(), Now(), &expired).ok());
  }
  void Start(Worker* worker) {
    if (worker->model != nullptr || !schedule_.Take(Now(), &worker->batch)) return;
    const auto is = [&](const Model& each) {
      return each.model == worker->batch.jobs.front()->model;
    };
    worker->model = &*std::find_if(models_.begin(), models_.end(), is);
    worker->end = now_ + worker->model->batch_seconds;
    const std::chrono::duration<double> wait = Now() - worker->batch.jobs.front()->enqueued();
    worker->model->longest_wait = std::max(worker->model->longest_wait, wait.count());
  }
  void End(Worker* worker) {
    if (worker->model == nullptr || worker->end > now_) return;
    schedule_.Finish(worker->batch, worker->model->batch_seconds);
    worker->model->used += worker->model->batch_seconds;
    worker->model = nullptr;
  }

  Schedule schedule_;
  std::vector<Model> models_;
  std::vector<Worker> workers_;
  std::vector<std::unique_ptr<PlainJob>> jobs_;
  double now_ = 0;
};

TEST_F(ScheduleTest, ModelsShareTheTimeAndNotTheTurns) {
  Backlog backlog(1, {{a_, 0.010}, {b_, 0.001}});
  backlog.Run(2);
  EXPECT_NEAR(backlog.used(0), 1, 0.02);
  EXPECT_NEAR(backlog.used(1), 1, 0.02);
}

TEST_F(ScheduleTest, ModelsShareSeveralWorkers) {
  Backlog backlog(3, {{a_, 0.010}, {b_, 0.001}});
  backlog.Run(2);
  EXPECT_NEAR(backlog.used(0), 3, 0.06);
  EXPECT_NEAR(backlog.used(1), 3, 0.06);
}

TEST_F(ScheduleTest, NobodySavesUpTime) {
  Backlog backlog(1, {{a_, 0.010}, {b_, 0.010}, {c_, 0.010, /*from=*/1}});
  backlog.Run(1.6);
  EXPECT_NEAR(backlog.used(0), 0.7, 0.03);
  EXPECT_NEAR(backlog.used(1), 0.7, 0.03);
  EXPECT_NEAR(backlog.used(2), 0.2, 0.03);
}

// A batch of one sample that takes as long as a full one makes the next estimate sixteen times too
// high. The model that comes then must not pay for the estimate.
TEST_F(ScheduleTest, AnEstimateIsNobodysDebt) {
  Backlog backlog(2, {{.model = a_, .batch_seconds = 1, .odd_every = 8},
                      {.model = b_, .batch_seconds = 0.01, .from = 0.5, .period = 7.3}});
  backlog.Run(2000);
  EXPECT_LT(backlog.longest_wait(1), 1.1);
}

TEST_F(ScheduleTest, ABatchWaitsForNoMoreThanHalfOfADeadline) {
  Schedule schedule({.max_delay = milliseconds(100)});
  Admit(schedule, a_);
  Job* urgent = Admit(schedule, NewJob(a_, 1, 1e-3, now_ + milliseconds(10)));
  EXPECT_EQ(schedule.NextStart(), kStart + milliseconds(5));
  now_ += milliseconds(5);
  EXPECT_EQ(Take(schedule).size(), 1u);  // the first job, which has other options

  EXPECT_THAT(Take(schedule), ElementsAre(urgent));
}

TEST_F(ScheduleTest, NobodyWaitsForCompanyThatCannotCome) {
  Schedule schedule({.max_delay = milliseconds(100)});
  PlainJob* warm_up = NewJob(a_);
  warm_up->allow_delay = false;
  Admit(schedule, warm_up);
  EXPECT_THAT(Take(schedule), ElementsAre(warm_up));
  Job* waiting = Admit(schedule, b_);
  EXPECT_THAT(Take(schedule), IsEmpty());

  schedule.Flush();

  EXPECT_THAT(Take(schedule), ElementsAre(waiting));
}

TEST_F(ScheduleTest, ExpiredJobsAreRemovedFromEveryQueue) {
  Schedule schedule({.workers = 1});
  for (const ModelPtr& model : {a_, b_, c_}) Admit(schedule, NewJob(model))->token->Cancel();
  Job* stays = Admit(schedule, c_);
  JobList expired;

  schedule.RemoveExpired(now_, &expired);

  EXPECT_EQ(expired.size(), 3u);
  EXPECT_EQ(Schedule::Depth(*a_) + Schedule::Depth(*b_), 0);
  EXPECT_EQ(Schedule::Depth(*c_), 1);
  EXPECT_THAT(Take(schedule), ElementsAre(stays));
  EXPECT_TRUE(schedule.empty());
}

}  // namespace
}  // namespace deeppcr::testing
