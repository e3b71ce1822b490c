// SPDX-License-Identifier: Apache-2.0
#include "server/batcher.h"

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

bool IsDead(const Job& job) { return job.token->stop_reason() != StopReason::kNone; }

absl::Status WhyDead(const CancelToken& token) {
  if (token.stop_reason() == StopReason::kDeadline) {
    return absl::DeadlineExceededError("the deadline passed before it was computed");
  }
  return absl::CancelledError("cancelled before it was computed");
}

JobTimings WaitOnly(double seconds) {
  JobTimings timings;
  timings.queued = true;
  timings.queue_seconds = seconds;
  return timings;
}

absl::Status Stopping() { return absl::UnavailableError("the server is shutting down"); }

}  // namespace

// What a worker does next. Kept by the worker from turn to turn, so that taking a batch allocates
// nothing.
struct Batcher::Work {
  enum class Kind { kBatch, kAlone, kIdle };
  Kind kind = Kind::kBatch;
  JobList jobs;
  JobList dead;
  std::vector<bool> computed;  // one per job; the others failed in Prepare
  IdleTask idle;
  std::optional<CancelToken> idle_token;
  Clock::time_point taken;

  std::vector<RunItem> items;
  std::vector<absl::Status> statuses;  // one per job
  RunTimings run;
  int64_t batch_samples = 0;

  void Begin(Kind what) {
    kind = what;
    taken = Clock::now();
    jobs.clear();
    dead.clear();
    computed.clear();
    items.clear();
    statuses.clear();
    run = RunTimings();
    batch_samples = 0;
  }
};

Batcher::Batcher(const BatcherOptions& options) : options_(options) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (int i = 0; i < std::max(1, options.workers); ++i) {
    workers_.push_back(std::make_unique<Worker>());
    Worker* worker = workers_.back().get();
    worker->thread = std::thread([this, worker] { RunWorker(worker); });
  }
}

Batcher::~Batcher() { Shutdown(); }

absl::Status Batcher::Enqueue(Job* job) {
  JobList dead;
  Work work;  // its lists stay empty, and unallocated, unless the job is computed here
  bool wake = false;
  bool here = false;
  absl::Status status;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    status = Admit(job, &dead);
    here = status.ok() && TakeQuick(*job, &work);
    wake = status.ok() && !here && sleeping_ > 0;
  }
  if (wake) wake_.notify_one();
  DropDead(dead);
  if (here) Serve(&caller_, &work);
  return status;
}

// Only while requests come one by one: those that come together are to meet in the queue and be
// computed together, while gRPC's threads read the next ones.
bool Batcher::TakeQuick(const Job& job, Work* work) {
  const bool pause =
      job.enqueued_ - std::exchange(last_arrival_, job.enqueued_) > options_.quick_pause;
  lone_arrivals_ = pause ? std::min(lone_arrivals_ + 1, kLoneArrivals) : 0;
  const bool first = ready_.size() == 1 && job.model->waiting_.size() == 1;
  const bool free = sleeping_ > 0 && caller_.running.empty();
  if (!job.quick || lone_arrivals_ < kLoneArrivals || !first || !free) return false;
  TakeBatch(work);
  caller_.running = work->jobs;
  return true;
}

void Batcher::DropDead(const JobList& dead) {
  const Clock::time_point now = Clock::now();
  for (Job* job : dead) {
    job->Done(WhyDead(*job->token), WaitOnly(SecondsBetween(job->enqueued_, now)));
  }
}

absl::Status Batcher::Admit(Job* job, JobList* dead) {
  if (stopping_) return Stopping();
  if (IsDead(*job)) return WhyDead(*job->token);
  ServedModel& model = *job->model;
  // Each kind has a queue's length of its own: comparisons are long, and must not shut out the
  // rest.
  const int64_t& waiting = job->batchable ? model.waiting_samples_ : model.alone_samples_;
  const auto too_deep = [&] {
    return waiting > 0 && waiting + job->samples > options_.max_queue_samples;
  };
  // Only a full queue pays for looking through it; elsewhere the dead are met when their turn
  // comes.
  if (too_deep()) *dead = RemoveDead(model);
  if (too_deep()) {
    return absl::ResourceExhaustedError(StrCat("the queue of model '", model.name, "' holds ",
                                               waiting, " samples; this request has ", job->samples,
                                               ", the limit is ", options_.max_queue_samples));
  }
  if (absl::Status status = CheckBytes(job->bytes); !status.ok()) return status;
  const bool others_wait = !ready_.empty() || !alone_.empty();
  if (idle_token_ != nullptr && (sleeping_ == 0 || others_wait)) idle_token_->Cancel();
  job->enqueued_ = Clock::now();
  bytes_ += job->bytes;
  AddWaiting(*job, job->samples);
  if (!job->batchable) {
    alone_.push_back(job);
    return absl::OkStatus();
  }
  model.waiting_.push_back(job);
  if (!std::exchange(model.listed_, true)) ready_.push_back(job->model);
  return absl::OkStatus();
}

// The caller holds mutex_.
absl::Status Batcher::CheckBytes(int64_t bytes) const {
  if (bytes_ == 0 || bytes_ + bytes <= options_.max_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(StrCat("requests in progress hold ", bytes_,
                                             " bytes; this one needs ", bytes, ", the limit is ",
                                             options_.max_bytes));
}

absl::Status Batcher::TakeBytes(int64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  absl::Status status = CheckBytes(bytes);
  if (status.ok()) bytes_ += bytes;
  return status;
}

// The caller holds mutex_ and calls Done on what comes back after releasing it.
Batcher::JobList Batcher::RemoveDead(ServedModel& model) {
  JobList dead;
  const auto sweep = [&](std::deque<Job*>& jobs) {
    const auto live = [&](Job* job) { return job->model.get() != &model || !IsDead(*job); };
    const auto first_dead = std::stable_partition(jobs.begin(), jobs.end(), live);
    dead.insert(dead.end(), first_dead, jobs.end());
    jobs.erase(first_dead, jobs.end());
  };
  sweep(model.waiting_);
  sweep(alone_);
  for (Job* job : dead) ForgetWaiting(job);
  return dead;
}

// The gauge is shared by all loads of a version, so it takes changes and no totals.
void Batcher::AddWaiting(const Job& job, int64_t change) {
  ServedModel& model = *job.model;
  (job.batchable ? model.waiting_samples_ : model.alone_samples_) += change;
  if (model.metrics == nullptr) return;
  model.metrics->queue_samples->Increment(static_cast<double>(change));
}

void Batcher::ForgetWaiting(const Job* job) { AddWaiting(*job, -job->samples); }

int64_t Batcher::Depth(const ServedModel& model) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return model.waiting_samples_ + model.alone_samples_;
}

bool Batcher::OfferIdleTask(IdleTask task) {
  bool wake = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (stopping_ || idle_task_ != nullptr || idle_token_ != nullptr) return false;
    idle_task_ = std::move(task);
    wake = sleeping_ > 0;
  }
  if (wake) wake_.notify_one();
  return true;
}

bool Batcher::PickAlone() const {
  // One worker stays free of them, so that a long comparison cannot stop every model.
  const int limit = std::max(1, static_cast<int>(workers_.size()) - 1);
  return !alone_.empty() && alone_running_ < limit && (ready_.empty() || !last_was_alone_);
}

bool Batcher::HasWork() const {
  return !ready_.empty() || PickAlone() || (idle_task_ != nullptr && alone_.empty());
}

bool Batcher::TakeWork(Worker* worker, Work* work) {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stopping_ && !HasWork()) {
    ++sleeping_;
    wake_.wait(lock);
    --sleeping_;
  }
  if (stopping_) return false;
  if (PickAlone()) {
    TakeAlone(work);
  } else if (!ready_.empty()) {
    TakeBatch(work);
  } else {
    work->Begin(Work::Kind::kIdle);
    work->idle = std::exchange(idle_task_, nullptr);
    idle_token_ = &work->idle_token.emplace();
  }
  worker->running = work->jobs;
  return true;
}

// All that wait for the next model in turn, are equal in options to the first, and fit into one
// batch.
void Batcher::TakeBatch(Work* work) {
  work->Begin(Work::Kind::kBatch);
  last_was_alone_ = false;
  const std::shared_ptr<ServedModel> model = std::move(ready_.front());
  ready_.pop_front();
  const int64_t limit = model->model->info().max_batch_size;
  std::deque<Job*>& waiting = model->waiting_;
  size_t kept = 0;
  for (Job* job : waiting) {
    if (IsDead(*job)) {
      work->dead.push_back(job);
    } else if (work->jobs.empty() || (job->options == work->jobs.front()->options &&
                                      work->batch_samples + job->samples <= limit)) {
      work->jobs.push_back(job);
      work->batch_samples += job->samples;
    } else {
      waiting[kept++] = job;
      continue;
    }
    ForgetWaiting(job);
  }
  waiting.resize(kept);
  model->listed_ = kept > 0;
  if (kept > 0) ready_.push_back(model);
}

void Batcher::TakeAlone(Work* work) {
  work->Begin(Work::Kind::kAlone);
  last_was_alone_ = true;
  Job* job = alone_.front();
  alone_.pop_front();
  ForgetWaiting(job);
  if (IsDead(*job)) {
    work->dead.push_back(job);
    return;
  }
  work->jobs.push_back(job);
  work->batch_samples = job->samples;
  ++alone_running_;
}

void Batcher::Release(Worker* worker, const Work& work) {
  std::lock_guard<std::mutex> lock(mutex_);
  // A caller whose quick job died on the way holds no place.
  if (!work.jobs.empty()) worker->running.clear();
  if (work.kind == Work::Kind::kAlone && !work.jobs.empty()) --alone_running_;
  if (work.kind == Work::Kind::kIdle) idle_token_ = nullptr;
}

void Batcher::RunWorker(Worker* worker) {
  Work work;
  while (TakeWork(worker, &work)) Serve(worker, &work);
}

void Batcher::Serve(Worker* worker, Work* work) {
  DropDead(work->dead);
  switch (work->kind) {
    case Work::Kind::kBatch:
      ComputeBatch(work);
      break;
    case Work::Kind::kAlone:
      ComputeAlone(work);
      break;
    case Work::Kind::kIdle:
      RunIdle(work);
      break;
  }
  Finish(worker, work);
}

// Lets go of the jobs before it tells them: a job may be gone once it is done.
void Batcher::Finish(Worker* worker, Work* work) {
  Release(worker, *work);
  for (size_t i = 0; i < work->jobs.size(); ++i) {
    Job* job = work->jobs[i];
    JobTimings timings = WaitOnly(SecondsBetween(job->enqueued_, work->taken));
    if (work->computed[i]) {
      timings.run = work->run;
      timings.batch_samples = work->batch_samples;
    }
    job->Done(std::move(work->statuses[i]), timings);
  }
}

void Batcher::ComputeBatch(Work* work) {
  if (work->jobs.empty()) return;
  const ServedModel& model = *work->jobs.front()->model;
  for (Job* job : work->jobs) {
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
  const absl::Status status =
      model.model->Run(work->jobs.front()->options, work->items, &work->run);
  for (absl::Status& each : work->statuses) {
    if (each.ok()) each = status;
  }
  work->run = ScaleToWall(work->run);
  if (model.metrics != nullptr) {
    ObserveFinite(*model.metrics->batch_samples, static_cast<double>(work->batch_samples));
    if (status.ok()) model.metrics->statistics.AddBatch(work->batch_samples, work->run);
  }
}

void Batcher::ComputeAlone(Work* work) {
  if (work->jobs.empty()) return;
  Job* job = work->jobs.front();
  absl::Status status = job->Prepare();
  work->computed.push_back(status.ok());
  if (status.ok()) status = job->RunAlone();
  work->statuses.push_back(std::move(status));
}

void Batcher::RunIdle(Work* work) {
  work->idle(*work->idle_token);
  work->idle = nullptr;
}

void Batcher::ReturnBytes(int64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  bytes_ -= bytes;
}

void Batcher::CancelAll() {
  JobList waiting;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& model : ready_) {
      waiting.insert(waiting.end(), model->waiting_.begin(), model->waiting_.end());
      model->waiting_.clear();
      model->listed_ = false;
    }
    waiting.insert(waiting.end(), alone_.begin(), alone_.end());
    for (Job* job : waiting) ForgetWaiting(job);
    ready_.clear();
    alone_.clear();
    idle_task_ = nullptr;
    if (idle_token_ != nullptr) idle_token_->Cancel();
    const auto cancel = [](Job* job) { job->token->Cancel(); };
    for (const auto& worker : workers_) std::ranges::for_each(worker->running, cancel);
    std::ranges::for_each(caller_.running, cancel);
  }
  const Clock::time_point now = Clock::now();
  for (Job* job : waiting) {
    job->Done(Stopping(), WaitOnly(SecondsBetween(job->enqueued_, now)));
  }
}

void Batcher::Shutdown() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  CancelAll();
  for (const auto& worker : workers_) {
    if (worker->thread.joinable()) worker->thread.join();
  }
}

}  // namespace deeppcr
