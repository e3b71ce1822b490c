// SPDX-License-Identifier: Apache-2.0
// Time is made up here: nothing waits, and every decision can be replayed.
#include "server/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <random>

#include "tests/testing/expect_error.h"
#include "tests/testing/fake_engine.h"

namespace deeppcr {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using ::testing::ElementsAre;
using testing::ExpectError;
using testing::FakeModel;
using ::testing::IsEmpty;
using TimePoint = Schedule::TimePoint;
using ModelPtr = std::shared_ptr<ServedModel>;

constexpr TimePoint kStart(std::chrono::hours(1));
constexpr int64_t kMaxBatch = 16;  // of a FakeModel

ModelPtr NewModel(const std::string& name) {
  return std::make_shared<ServedModel>(name, 1, std::make_shared<FakeModel>(), nullptr);
}

class PlainJob : public Job {
 public:
  PlainJob(ModelPtr served, int64_t n, double rtol = 1e-4, TimePoint deadline = TimePoint::max())
      : token_(deadline) {
    model = std::move(served);
    samples = n;
    options.rtol = rtol;
    token = &token_;
  }
  void Done(absl::Status, const JobTimings&) override { ADD_FAILURE() << "not the schedule's"; }

 private:
  CancelToken token_;
};

class ScheduleTest : public ::testing::Test {
 protected:
  PlainJob* NewJob(const ModelPtr& model, int64_t n = 1, double rtol = 1e-4,
                   TimePoint deadline = TimePoint::max()) {
    jobs_.push_back(std::make_unique<PlainJob>(model, n, rtol, deadline));
    return jobs_.back().get();
  }
  PlainJob* Admit(Schedule& schedule, PlainJob* job) {
    JobList dead;
    EXPECT_TRUE(schedule.Admit(job, now_, &dead).ok());
    EXPECT_THAT(dead, IsEmpty());
    return job;
  }
  PlainJob* Admit(Schedule& schedule, const ModelPtr& model, int64_t n = 1) {
    return Admit(schedule, NewJob(model, n));
  }
  JobList Take(Schedule& schedule) { return schedule.Take(now_, &turn_) ? turn_.jobs : JobList(); }

  std::vector<std::unique_ptr<PlainJob>> jobs_;
  const ModelPtr a_ = NewModel("a"), b_ = NewModel("b"), c_ = NewModel("c");
  TimePoint now_ = kStart;
  Schedule::Turn turn_;
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
  Schedule::Turn first;
  ASSERT_TRUE(schedule.Take(now_, &first));
  EXPECT_THAT(Take(schedule), ElementsAre(other));
  EXPECT_THAT(Take(schedule), IsEmpty());
  EXPECT_EQ(schedule.NextStart(), TimePoint::max());

  schedule.Finish(first, 1);

  EXPECT_THAT(Take(schedule), ElementsAre(later));
}

TEST_F(ScheduleTest, ComparisonsDoNotWaitForBatchesThatMayNotBegin) {
  Schedule schedule({.workers = 4, .max_delay = milliseconds(5)});
  PlainJob* first = NewJob(a_);
  PlainJob* second = NewJob(a_);
  first->batchable = second->batchable = false;
  Admit(schedule, first);
  Admit(schedule, second);
  Admit(schedule, b_);

  EXPECT_THAT(Take(schedule), ElementsAre(first));
  EXPECT_THAT(Take(schedule), ElementsAre(second));
  EXPECT_THAT(Take(schedule), IsEmpty());
}

TEST_F(ScheduleTest, OnlyWhatIsAloneIsTakenWhereItArrives) {
  Schedule schedule({});
  const Job* alone = Admit(schedule, a_);
  EXPECT_TRUE(schedule.TakeOnly(*alone, now_, &turn_));
  EXPECT_THAT(turn_.jobs, ElementsAre(alone));
  Admit(schedule, a_);
  const Job* second = Admit(schedule, a_);
  EXPECT_FALSE(schedule.TakeOnly(*second, now_, &turn_));

  Schedule patient({.max_delay = milliseconds(5)});
  EXPECT_FALSE(patient.TakeOnly(*Admit(patient, c_), now_, &turn_));
}

TEST_F(ScheduleTest, ADeadlineEndsAJobAtArrivalAndInTheQueue) {
  Schedule schedule({});
  const TimePoint deadline = now_ + milliseconds(1);
  PlainJob* dies = Admit(schedule, NewJob(a_, 1, 1e-4, deadline));
  Job* lives = Admit(schedule, a_);
  now_ = deadline;
  JobList dead;
  ExpectError(schedule.Admit(NewJob(a_, 1, 1e-4, deadline), now_, &dead),
              absl::StatusCode::kDeadlineExceeded, "before it was computed");

  EXPECT_THAT(Take(schedule), ElementsAre(lives));

  EXPECT_THAT(turn_.dead, ElementsAre(dies));
  EXPECT_EQ(turn_.samples, 1);
}

TEST_F(ScheduleTest, TheDeadGiveTheirPlaceInAFullQueueAway) {
  Schedule schedule({.max_queue_samples = 2});
  PlainJob* dies = Admit(schedule, NewJob(a_, 2, 1e-4, now_ + milliseconds(1)));
  now_ += milliseconds(1);
  PlainJob* next = NewJob(a_, 2);
  JobList dead;

  EXPECT_TRUE(schedule.Admit(next, now_, &dead).ok());

  EXPECT_THAT(dead, ElementsAre(dies));
  EXPECT_THAT(Take(schedule), ElementsAre(next));
  EXPECT_TRUE(schedule.empty());
}

// Models that always have a batch waiting, and what they have used when `seconds` have passed.
class Backlog {
 public:
  struct Model {
    ModelPtr model;
    double batch_seconds;
    double from = 0;    // idle before
    double period = 0;  // one sample each time, instead of a backlog
    int odd_every = 0;  // of so many jobs one is of a single sample, and of options of its own
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
    Schedule::Turn turn;
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
    JobList dead;
    ASSERT_TRUE(schedule_.Admit(jobs_.back().get(), Now(), &dead).ok());
  }
  void Start(Worker* worker) {
    if (worker->model != nullptr || !schedule_.Take(Now(), &worker->turn)) return;
    const auto is = [&](const Model& each) {
      return each.model == worker->turn.jobs.front()->model;
    };
    worker->model = &*std::find_if(models_.begin(), models_.end(), is);
    worker->end = now_ + worker->model->batch_seconds;
    const std::chrono::duration<double> wait = Now() - worker->turn.jobs.front()->enqueued();
    worker->model->longest_wait = std::max(worker->model->longest_wait, wait.count());
  }
  void End(Worker* worker) {
    if (worker->model == nullptr || worker->end > now_) return;
    schedule_.Finish(worker->turn, worker->model->batch_seconds);
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

// A batch of one sample that took as long as a full one makes the estimate of the next sixteen
// times too high; whoever comes then must not be held to it.
TEST_F(ScheduleTest, AnEstimateIsNobodysDebt) {
  Backlog backlog(2, {{.model = a_, .batch_seconds = 1, .odd_every = 8},
                      {.model = b_, .batch_seconds = 0.01, .from = 0.5, .period = 7.3}});
  backlog.Run(2000);
  EXPECT_LT(backlog.longest_wait(1), 1.1);
}

TEST_F(ScheduleTest, ALongComparisonIsNotHeldAgainstItsModel) {
  Schedule schedule({.workers = 2});
  PlainJob* comparison = NewJob(a_);
  comparison->batchable = false;
  Admit(schedule, comparison);
  ASSERT_THAT(Take(schedule), ElementsAre(comparison));
  schedule.Finish(turn_, 600);
  Job* first = Admit(schedule, a_);
  Job* other = Admit(schedule, b_);
  EXPECT_THAT(Take(schedule), ElementsAre(first));
  EXPECT_THAT(Take(schedule), ElementsAre(other));
}

TEST_F(ScheduleTest, ABatchWaitsForNoMoreThanHalfOfADeadline) {
  Schedule schedule({.max_delay = milliseconds(100)});
  Admit(schedule, a_);
  Job* urgent = Admit(schedule, NewJob(a_, 1, 1e-3, now_ + milliseconds(10)));
  EXPECT_EQ(schedule.NextStart(), kStart + milliseconds(5));
  now_ += milliseconds(5);
  EXPECT_EQ(Take(schedule).size(), 1u);  // the first, whose options are others

  EXPECT_THAT(Take(schedule), ElementsAre(urgent));
}

TEST_F(ScheduleTest, NobodyWaitsForCompanyThatCannotCome) {
  Schedule schedule({.max_delay = milliseconds(100)});
  PlainJob* warm_up = NewJob(a_);
  warm_up->patient = false;
  Admit(schedule, warm_up);
  EXPECT_THAT(Take(schedule), ElementsAre(warm_up));
  Job* waiting = Admit(schedule, b_);
  EXPECT_THAT(Take(schedule), IsEmpty());

  schedule.Hurry();

  EXPECT_THAT(Take(schedule), ElementsAre(waiting));
}

TEST_F(ScheduleTest, TheDeadAreTakenOutWherever) {
  Schedule schedule({.workers = 1});
  PlainJob* alone = NewJob(a_);
  alone->batchable = false;
  for (PlainJob* job : {alone, NewJob(b_), NewJob(c_)}) Admit(schedule, job)->token->Cancel();
  Job* lives = Admit(schedule, c_);
  JobList dead;

  schedule.RemoveDead(now_, &dead);

  EXPECT_EQ(dead.size(), 3u);
  EXPECT_EQ(Schedule::Depth(*a_) + Schedule::Depth(*b_), 0);
  EXPECT_THAT(Take(schedule), ElementsAre(lives));
  EXPECT_TRUE(schedule.empty());
}

// The rules of schedule.h once more, in the plainest words and without a thought for speed: one
// list of all that wait, by arrival.
class Rules {
 public:
  struct Expected {
    JobList jobs, dead;
    bool alone = false;
  };

  explicit Rules(const ScheduleOptions& options) : options_(options) {}

  bool Admit(Job* job, TimePoint now, JobList* dead) {
    if (Dead(job, now)) return false;
    if (TooDeep(*job)) {
      for (Job* each : waiting_)
        if (each->model == job->model && Dead(each, now)) dead->push_back(each);
      Remove(*dead);
    }
    if (TooDeep(*job)) return false;
    Model& model = models_[job->model.get()];
    if (job->batchable && Batchable(job->model.get()).empty()) {
      model.real = std::max(model.real, level_ - Estimated(model));
      model.turn = ++turns_;
    }
    waiting_.push_back(job);
    return true;
  }

  std::optional<Expected> Take(TimePoint now) {
    const ServedModel* picked = Pick(now);
    const auto alone = std::find_if(waiting_.begin(), waiting_.end(),
                                    [](const Job* job) { return !job->batchable; });
    const bool free = running_alone_ < std::max(1, options_.workers - 1);
    const bool comparison = alone != waiting_.end() && free && !(picked && last_alone_);
    if (!comparison && !picked) return std::nullopt;
    last_alone_ = comparison;
    Expected expected = comparison ? TakeAlone(*alone, now) : TakeBatch(picked, now);
    Remove(expected.jobs);
    Remove(expected.dead);
    return expected;
  }

  void Finish(const Expected& turn, double seconds) {
    if (turn.jobs.empty()) return;
    if (turn.alone) {
      --running_alone_;
      return;
    }
    Model& model = models_[turn.jobs.front()->model.get()];
    model.real += seconds;
    model.running.erase(turn.jobs.front());
    model.rate = seconds / static_cast<double>(Samples(turn.jobs));
  }
  void Drop(TimePoint now, JobList* dead) {
    for (Job* job : waiting_)
      if (Dead(job, now)) dead->push_back(job);
    Remove(*dead);
  }

 private:
  struct Model {
    double real = 0;                       // seconds that it used
    std::map<const Job*, double> running;  // estimates of batches, by their first jobs
    double rate = 0;                       // seconds for a sample, lately
    int64_t turn = 0;                      // when it last came to the end of the line
  };

  static bool Dead(const Job* job, TimePoint now) {
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
  JobList Batchable(const ServedModel* model) const {
    JobList jobs;
    for (Job* job : waiting_)
      if (job->batchable && job->model.get() == model) jobs.push_back(job);
    return jobs;
  }
  bool TooDeep(const Job& job) const {
    JobList same;
    for (Job* each : waiting_)
      if (each->model == job.model && each->batchable == job.batchable) same.push_back(each);
    return !same.empty() && Samples(same) + job.samples > options_.max_queue_samples;
  }
  void Remove(const JobList& jobs) {
    std::erase_if(waiting_, [&](Job* job) { return std::ranges::count(jobs, job) > 0; });
  }
  bool MayStart(const ServedModel* model, TimePoint now) {
    const JobList jobs = Batchable(model);
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
  Expected TakeAlone(Job* job, TimePoint now) {
    if (Dead(job, now)) return {{}, {job}, true};
    ++running_alone_;
    return {{job}, {}, true};
  }
  Expected TakeBatch(const ServedModel* picked, TimePoint now) {
    Expected turn;
    for (Job* job : Batchable(picked)) {
      const bool fits = turn.jobs.empty() || (job->options == turn.jobs.front()->options &&
                                              Samples(turn.jobs) + job->samples <= kMaxBatch);
      if (Dead(job, now)) {
        turn.dead.push_back(job);
      } else if (fits) {
        turn.jobs.push_back(job);
      }
    }
    Model& model = models_[picked];
    model.turn = ++turns_;
    if (turn.jobs.empty()) return turn;
    level_ = std::max(level_, model.real);
    model.running[turn.jobs.front()] = model.rate * static_cast<double>(Samples(turn.jobs));
    return turn;
  }

  const ScheduleOptions options_;
  JobList waiting_;
  std::map<const ServedModel*, Model> models_;
  int64_t turns_ = 0;
  int running_alone_ = 0;
  bool last_alone_ = false;
  double level_ = 0;
};

// Workers that compute for made-up times, a schedule, and the rules that it has to follow.
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
  // Until nothing waits and nothing runs.
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
    Schedule::Turn turn;
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
    job->batchable = Draw(8) != 0;
    JobList dead, expected_dead;
    // First: it reads when the others came, which is the schedule's to write.
    const bool expected = rules_.Admit(job, now_, &expected_dead);
    const bool admitted = schedule_.Admit(job, now_, &dead).ok();
    EXPECT_EQ(admitted, expected);
    EXPECT_THAT(dead, ::testing::UnorderedElementsAreArray(expected_dead));
    (admitted ? admitted_ : refused_) += 1;
    ended_ += static_cast<int64_t>(dead.size());
    dropped_ += static_cast<int64_t>(dead.size());
  }

  void Sweep() {
    JobList dead, expected;
    rules_.Drop(now_, &expected);
    schedule_.RemoveDead(now_, &dead);
    EXPECT_THAT(dead, ::testing::UnorderedElementsAreArray(expected));
    ended_ += static_cast<int64_t>(dead.size());
    dropped_ += static_cast<int64_t>(dead.size());
  }

  void Begin(Worker* worker) {
    const TimePoint promised = schedule_.NextStart();
    const auto expected = rules_.Take(now_);
    const bool taken = schedule_.Take(now_, &worker->turn);
    ASSERT_EQ(taken, expected.has_value());
    EXPECT_EQ(taken, promised <= now_);
    if (!taken) return;
    EXPECT_EQ(worker->turn.jobs, expected->jobs);
    EXPECT_THAT(worker->turn.dead, ::testing::UnorderedElementsAreArray(expected->dead));
    EXPECT_EQ(worker->turn.alone, expected->alone);
    ended_ += static_cast<int64_t>(worker->turn.dead.size() + worker->turn.jobs.size());
    dropped_ += static_cast<int64_t>(worker->turn.dead.size());
    batched_ += worker->turn.jobs.size() > 1 ? 1 : 0;
    worker->expected = *expected;
    worker->busy = true;
    // Binary fractions: sums of them are exact, in whatever order.
    worker->seconds = std::ldexp(static_cast<double>(Draw(500) * worker->turn.samples), -20);
    worker->end = now_ + microseconds(static_cast<int64_t>(1e6 * worker->seconds));
  }

  void End(Worker* worker) {
    schedule_.Finish(worker->turn, worker->seconds);
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
    // Each exactly once, computed or dropped.
    EXPECT_EQ(simulation.ended(), simulation.admitted());
    batched += simulation.batched();
    dropped += simulation.dropped();
    refused += simulation.refused();
  }
  // It saw what it is about.
  EXPECT_GT(batched, 1000);
  EXPECT_GT(dropped, 1000);
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace deeppcr
