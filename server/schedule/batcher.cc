// SPDX-License-Identifier: Apache-2.0
#include "server/schedule/batcher.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "kernels/base/strings.h"

namespace deeppcr {
namespace {

using Clock = CancelToken::Clock;

constexpr int kLoneArrivals = 8;

double SecondsBetween(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

JobTimings WaitOnly(double seconds) {
  JobTimings timings;
  timings.queued = true;
  timings.queue_seconds = seconds;
  return timings;
}

absl::Status Stopping() { return absl::UnavailableError("the server is shutting down"); }

}  // namespace

// A worker's next work. Kept by the worker from batch to batch, so that taking one allocates next
// to nothing.
struct Batcher::Work {
  Schedule::Batch batch;
  IdleTask idle;  // if set, runs in place of a batch
  std::optional<CancelToken> idle_token;
  bool idle_insists = false, idle_again = false;
  Clock::time_point taken;

  std::vector<RunItem> items;
  std::vector<BackwardItem> back_items;
  std::vector<absl::Status> statuses;  // one per job
  std::vector<bool> computed;          // one per job; the others failed in Prepare
  RunTimings run;
  double back_seconds = 0;
  double lent_seconds = 0;  // to batches in between
  int64_t batch_samples = 0;

  void Begin(Clock::time_point now) {
    taken = now;
    items.clear();
    back_items.clear();
    statuses.clear();
    computed.clear();
    run = RunTimings();
    back_seconds = lent_seconds = 0;
    batch_samples = batch.samples;
  }

  // Leaves jobs that failed or were given up out of what the batch's time is for.
  void LeaveOutUncomputed() {
    for (size_t i = 0; i < statuses.size(); ++i) {
      const Job& job = *batch.jobs[i];
      if (!statuses[i].ok() || Fired(job.token)) batch.computed_cost -= Schedule::CostOf(job);
    }
  }
};

// Notes what runs. The caller holds mutex_.
void Batcher::Worker::Begin(const Work& work) {
  running = work.batch.jobs;
  since = work.taken;
}

Batcher::Batcher(const BatcherOptions& options) : options_(options), schedule_(options.schedule) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (int i = 0; i < std::max(1, options.schedule.workers); ++i) {
    workers_.push_back(std::make_unique<Worker>());
    Worker* worker = workers_.back().get();
    worker->in_between = std::make_unique<Worker>();
    worker->thread = std::thread([this, worker] { RunWorker(worker); });
  }
  sweeper_ = std::thread([this] { Sweep(); });
}

Batcher::~Batcher() { Shutdown(); }

absl::Status Batcher::Enqueue(Job* job) {
  JobList expired;
  std::unique_ptr<Work> work;  // set if the job is computed inline
  bool wake = false;
  absl::Status status;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    status = Admit(job, &expired);
    // Whoever brings a request must not be kept by others' that are over.
    left_to_sweeper_.insert(left_to_sweeper_.end(), expired.begin(), expired.end());
    if (status.ok()) work = TakeInline(*job);
    // A worker that is being woken takes this job as well, or wakes another for it.
    wake = status.ok() && work == nullptr && waking_ == 0 && WakesOne();
  }
  if (wake) wake_.notify_one();
  if (work == nullptr) return status;
  Serve(&caller_, work.get());
  std::lock_guard<std::mutex> lock(mutex_);
  spare_ = std::move(work);
  return status;
}

// Takes a job to run inline only while requests come one by one: requests that come together are to
// meet in the queue and be computed together, while the queue's threads read the next ones. The
// caller holds mutex_.
std::unique_ptr<Batcher::Work> Batcher::TakeInline(const Job& job) {
  const bool pause =
      job.enqueued() - std::exchange(last_arrival_, job.enqueued()) > options_.inline_pause;
  lone_arrivals_ = pause ? std::min(lone_arrivals_ + 1, kLoneArrivals) : 0;
  const bool free = sleeping_ > 0 && caller_.running.empty();
  if (!job.run_inline || lone_arrivals_ < kLoneArrivals || !free) return nullptr;
  std::unique_ptr<Work> work = spare_ ? std::move(spare_) : std::make_unique<Work>();
  if (!schedule_.TakeOnly(job, job.enqueued(), &work->batch)) {
    spare_ = std::move(work);
    return nullptr;
  }
  work->Begin(job.enqueued());
  caller_.Begin(*work);
  return work;
}

void Batcher::DropExpired(const JobList& expired) {
  const Clock::time_point now = Clock::now();
  for (Job* job : expired) {
    job->Done(ExpiredStatus(*job->token, now), WaitOnly(SecondsBetween(job->enqueued(), now)));
  }
}

// The caller holds mutex_.
absl::Status Batcher::Admit(Job* job, JobList* expired) {
  if (stopping_) return Stopping();
  if (absl::Status status = CheckBytes(job->bytes, job->client.get()); !status.ok()) return status;
  const bool others_wait = !schedule_.empty();
  if (absl::Status status = schedule_.Admit(job, Clock::now(), expired); !status.ok())
    return status;
  AddBytes(job->bytes, job->client.get());
  if (idle_token_ != nullptr && !idle_insists_ && (sleeping_ == 0 || others_wait))
    idle_token_->Cancel();
  return absl::OkStatus();
}

// The caller holds mutex_.
absl::Status Batcher::CheckBytes(int64_t bytes, const ClientAccount* client) const {
  if (client != nullptr && bytes > 0) {
    const int64_t own = client->bytes.load();
    const auto share =
        static_cast<int64_t>(client->share.load() * static_cast<double>(options_.max_bytes));
    if (own > 0 && own + bytes > share)
      return absl::ResourceExhaustedError(
          StrCat("requests of client '", client->name, "' in progress hold ", own,
                 " bytes; this one needs ", bytes, ", its share is ", share));
  }
  const int64_t held = bytes_.load();
  const bool fits = bytes == 0 || held == 0 || held + bytes <= options_.max_bytes;
  if (fits) return absl::OkStatus();
  return absl::ResourceExhaustedError(StrCat("requests in progress hold ", held,
                                             " bytes; this one needs ", bytes, ", the limit is ",
                                             options_.max_bytes));
}

void Batcher::AddBytes(int64_t bytes, ClientAccount* client) {
  bytes_ += bytes;
  if (client != nullptr) client->bytes += bytes;
}

absl::Status Batcher::TakeBytes(int64_t bytes, ClientAccount* client) {
  std::lock_guard<std::mutex> lock(mutex_);
  absl::Status status = CheckBytes(bytes, client);
  if (status.ok()) AddBytes(bytes, client);
  return status;
}

int64_t Batcher::Depth(const ServedModel& model) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return Schedule::Depth(model);
}

double Batcher::BusySeconds() const {
  std::lock_guard<std::mutex> lock(mutex_);
  const Clock::time_point now = Clock::now();
  double seconds = busy_seconds_;
  for (const auto& worker : workers_)
    if (!worker->running.empty()) seconds += SecondsBetween(worker->since, now);
  return seconds;
}

double Batcher::LongestRunSeconds() const {
  std::lock_guard<std::mutex> lock(mutex_);
  const Clock::time_point now = Clock::now();
  double longest = 0;
  const auto look = [&](const Worker& worker) {
    if (!worker.running.empty()) longest = std::max(longest, SecondsBetween(worker.since, now));
  };
  for (const auto& worker : workers_) {
    look(*worker);
    look(*worker->in_between);
  }
  look(caller_);
  return longest;
}

bool Batcher::OfferIdleTask(IdleTask task, Clock::time_point insists_at) {
  bool wake = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (stopping_ || idle_task_ != nullptr || idle_token_ != nullptr) return false;
    idle_task_ = std::move(task);
    idle_insists_at_ = insists_at;
    idle_was_cancelled_ = false;
    wake = WakesOne();
  }
  if (wake) wake_.notify_one();
  return true;
}

bool Batcher::TakeWork(Worker* worker, Work* work) {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stopping_) {
    if (TakeNow(worker, work)) return true;
    Sleep(lock);
  }
  return false;
}

// The caller holds mutex_.
bool Batcher::TakeNow(Worker* worker, Work* work) {
  const Clock::time_point now = Clock::now();
  const bool insists = idle_task_ != nullptr && now >= idle_insists_at_;
  if (!insists && schedule_.Take(now, &work->batch)) {
    work->Begin(now);
    worker->Begin(*work);
    // This worker may be the only one that was woken for jobs that still wait, or the idle task.
    const bool leaves = schedule_.NextStart() != Clock::time_point::max() ||
                        (idle_task_ != nullptr && !idle_was_cancelled_);
    if (leaves && WakesOne()) wake_.notify_one();
    return true;
  }
  if (idle_task_ == nullptr) return false;
  if (!insists && (idle_was_cancelled_ || !schedule_.empty())) return false;
  work->idle = std::exchange(idle_task_, nullptr);
  idle_token_ = &work->idle_token.emplace();
  idle_insists_ = insists;
  work->idle_insists = insists;
  // This worker may have been woken for jobs that now wait for another.
  if (!schedule_.empty() && WakesOne()) wake_.notify_one();
  return true;
}

// True if a worker sleeps that nobody is waking: the caller, who holds mutex_, is to wake one.
bool Batcher::WakesOne() {
  if (sleeping_ <= waking_) return false;
  ++waking_;
  return true;
}

// Sleeps until there may be something to do.
void Batcher::Sleep(std::unique_lock<std::mutex>& lock) {
  Clock::time_point next = schedule_.NextStart();
  if (idle_task_ != nullptr) next = std::min(next, idle_insists_at_);
  ++sleeping_;
  if (next == Clock::time_point::max()) {
    wake_.wait(lock);
  } else {
    wake_.wait_until(lock, next);
  }
  --sleeping_;
  // Where this one woke by itself, the one that is woken is not counted: then it is woken twice.
  if (waking_ > 0) --waking_;
}

// Returns true if another worker must be woken: jobs that waited for this instance would otherwise
// not be noticed before this worker has told its own jobs, or at all if a caller ran it inline.
bool Batcher::Release(Worker* worker, Work* work, double seconds) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (work->idle != nullptr) {
    idle_token_ = nullptr;
    if (work->idle_again && !stopping_) {
      idle_task_ = std::exchange(work->idle, nullptr);
      idle_was_cancelled_ = true;
    }
    return false;
  }
  schedule_.Finish(work->batch, seconds);
  // If the inline job expired before it ran, the caller's slot was never taken.
  if (!work->batch.jobs.empty()) {
    // What is computed in another's pause is part of that one's time.
    const bool of_worker = worker != &caller_ && worker->in_between != nullptr;
    if (of_worker) busy_seconds_ += SecondsBetween(worker->since, Clock::now());
    worker->running.clear();
  }
  const bool others_waited =
      worker == &caller_ ||
      (!work->batch.jobs.empty() && schedule_.LimitsInstances(*work->batch.jobs.front()->model));
  return others_waited && !schedule_.empty() && WakesOne();
}

void Batcher::RunWorker(Worker* worker) {
  Work work;
  while (TakeWork(worker, &work)) Serve(worker, &work);
}

void Batcher::Serve(Worker* worker, Work* work) {
  if (work->idle != nullptr) {
    RunIdle(work);
  } else {
    DropExpired(work->batch.expired);
    Compute(worker, work);
  }
  Finish(worker, work);
}

// Lets go of the jobs before it tells them: a job may be gone once it is done.
void Batcher::Finish(Worker* worker, Work* work) {
  const double seconds = SecondsBetween(work->taken, Clock::now()) - work->lent_seconds;
  const bool idle = work->idle != nullptr;
  if (!idle) work->LeaveOutUncomputed();
  if (Release(worker, work, seconds)) wake_.notify_one();
  if (idle) {
    work->idle = nullptr;
    return;
  }
  for (size_t i = 0; i < work->batch.jobs.size(); ++i) {
    Job* job = work->batch.jobs[i];
    JobTimings timings = WaitOnly(SecondsBetween(job->enqueued(), work->taken));
    if (work->computed[i]) {
      timings.run = work->run;
      timings.back_seconds = work->back_seconds;
      timings.lent_seconds = work->lent_seconds;
      timings.batch_samples = work->batch_samples;
    }
    job->Done(std::move(work->statuses[i]), timings);
  }
}

void Batcher::Compute(Worker* worker, Work* work) {
  if (work->batch.jobs.empty()) return;
  const ServedModel& model = *work->batch.jobs.front()->model;
  for (Job* job : work->batch.jobs) {
    absl::Status status = job->Prepare();
    work->computed.push_back(status.ok());
    if (status.ok()) {
      work->items.push_back(job->run_item);
      work->items.back().token = job->token;
    } else {
      work->batch_samples -= job->samples;
    }
    work->statuses.push_back(std::move(status));
  }
  if (work->items.empty()) return;
  const absl::Status status = Solve(work);
  if (status.ok() && work->batch.jobs.front()->back.has_value()) GoBack(worker, work);
  if (model.metrics != nullptr) {
    ObserveFinite(*model.metrics->batch_samples, static_cast<double>(work->batch_samples));
    const JobTimings timings = {.run = work->run, .back_seconds = work->back_seconds};
    if (status.ok()) model.metrics->statistics.AddBatch(work->batch_samples, timings.Inference());
  }
}

// Solves the items, unless the states of these jobs are known.
absl::Status Batcher::Solve(Work* work) {
  const Job& first = *work->batch.jobs.front();
  if (!first.solves) return absl::OkStatus();
  absl::Status status = first.system->Run(first.options, work->items, &work->run);
  for (absl::Status& each : work->statuses) {
    if (each.ok()) each = status;
  }
  work->run = ScaleToWall(work->run);
  return status;
}

// Takes the cotangents of the jobs that have their states back.
void Batcher::GoBack(Worker* worker, Work* work) {
  const Job& first = *work->batch.jobs.front();
  std::unique_ptr<Work> in_between;
  double owed = 0;  // seconds to others; below zero where these have had more
  const auto at_once = [&](std::span<BackwardItem> items) {
    const Clock::time_point start = Clock::now();
    absl::Status status = first.system->GoBack(*first.back, items);
    const double seconds = SecondsBetween(start, Clock::now());
    work->back_seconds += seconds;
    owed += seconds;
    return status;
  };
  const auto pause = [&](double) {
    if (owed <= 0) return;
    if (in_between == nullptr) in_between = std::make_unique<Work>();
    const double taken = ServeInBetween(*first.model, worker, in_between.get(), owed);
    work->lent_seconds += taken;
    owed = taken > 0 ? owed - taken : 0;  // nothing is owed to who does not wait
  };
  const BackwardLimits* limits = first.system->backward_limits();
  const int64_t least_rows = limits == nullptr ? 1 : limits->busy_rows;
  const auto go_back = [&](std::span<BackwardItem> items) {
    return GoBackInSlices(items, least_rows, at_once, pause);
  };
  // What a job takes back after that may be many calls, each of which is short.
  const auto go_back_again = [&](std::span<BackwardItem> items) {
    pause(0);
    return go_back(items);
  };
  const auto pause_after = [&](double seconds) {
    work->back_seconds += seconds;
    owed += seconds;
    pause(0);
  };
  std::vector<absl::Status>& statuses = work->statuses;
  for (size_t i = 0; i < statuses.size(); ++i) {
    Job* job = work->batch.jobs[i];
    if (statuses[i].ok()) statuses[i] = job->PrepareBack();
    if (!statuses[i].ok()) continue;
    work->back_items.push_back(job->back_item);
    work->back_items.back().token = job->token;
  }
  if (work->back_items.empty()) return;
  const absl::Status status = go_back(work->back_items);
  for (size_t i = 0; i < statuses.size(); ++i) {
    if (!statuses[i].ok()) continue;
    statuses[i] =
        status.ok() ? work->batch.jobs[i]->FinishBack(go_back_again, pause_after) : status;
  }
}

// Serves short batches until some time has passed, the last of them whole. Returns the time that it
// took.
double Batcher::ServeInBetween(const ServedModel& lender, Worker* worker, Work* work,
                               double seconds) {
  if (worker->in_between == nullptr) return 0;
  const Clock::time_point start = Clock::now();
  double taken = 0;
  for (; taken < seconds && TakeInBetween(lender, worker->in_between.get(), work);
       taken = SecondsBetween(start, Clock::now()))
    Serve(worker->in_between.get(), work);
  return taken;
}

bool Batcher::TakeInBetween(const ServedModel& lender, Worker* worker, Work* work) {
  std::lock_guard<std::mutex> lock(mutex_);
  const Clock::time_point now = Clock::now();
  if (stopping_ || !schedule_.TakeShort(lender, now, &work->batch)) return false;
  work->Begin(now);
  worker->Begin(*work);
  return true;
}

void Batcher::RunIdle(Work* work) {
  work->idle_again = work->idle(*work->idle_token, work->idle_insists);
}

void Batcher::ReturnBytes(int64_t bytes, ClientAccount* client) { AddBytes(-bytes, client); }

// Wakes by the clock alone: each arrival would pay for waking this thread.
void Batcher::Sweep() {
  JobList expired;
  Clock::duration pause = options_.sweep_interval;
  bool was_waking = false;
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stop_.wait_for(lock, pause, [this] { return stopping_; })) {
    const Clock::time_point start = Clock::now();
    expired.swap(left_to_sweeper_);
    schedule_.RemoveExpired(start, &expired);
    // Very long queues take long to look through: a hundredth of the time is enough.
    pause = std::max<Clock::duration>(options_.sweep_interval, 100 * (Clock::now() - start));
    // Older C libraries lose a wake once in a very long while (glibc bug 25847). Whoever brings
    // jobs relies on a worker that is being woken, so it would be missed for ever.
    if (was_waking && waking_ > 0) {
      waking_ = 0;
      wake_.notify_all();
    }
    was_waking = waking_ > 0;
    // Workers that slept before the idle task was offered do not wake when its time comes.
    if (idle_task_ != nullptr && start >= idle_insists_at_ && WakesOne()) wake_.notify_one();
    if (expired.empty()) continue;
    lock.unlock();
    DropExpired(expired);
    expired.clear();
    lock.lock();
  }
}

void Batcher::Flush() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    schedule_.Flush();
  }
  wake_.notify_all();
}

void Batcher::CancelAll() {
  JobList waiting;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    waiting = schedule_.Clear();
    idle_task_ = nullptr;
    if (idle_token_ != nullptr) idle_token_->Cancel();
    const auto cancel = [](Job* job) { job->token->Cancel(); };
    for (const auto& worker : workers_) {
      std::ranges::for_each(worker->running, cancel);
      std::ranges::for_each(worker->in_between->running, cancel);
    }
    std::ranges::for_each(caller_.running, cancel);
  }
  const Clock::time_point now = Clock::now();
  for (Job* job : waiting) {
    job->Done(Stopping(), WaitOnly(SecondsBetween(job->enqueued(), now)));
  }
}

void Batcher::Shutdown() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  stop_.notify_all();
  CancelAll();
  for (const auto& worker : workers_) {
    if (worker->thread.joinable()) worker->thread.join();
  }
  if (sweeper_.joinable()) sweeper_.join();
  JobList left;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    left.swap(left_to_sweeper_);
  }
  DropExpired(left);
}

}  // namespace deeppcr
