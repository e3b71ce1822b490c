// SPDX-License-Identifier: Apache-2.0
#include "server/schedule/schedule.h"

#include <algorithm>
#include <utility>

#include "kernels/base/strings.h"

namespace deeppcr {
namespace {

bool HasExpired(const Job& job, Schedule::TimePoint now) {
  return job.token->stop_reason(now) != StopReason::kNone;
}

// True for a job that is no longer than a full batch of samples.
bool IsShort(const Job& job) { return job.work() <= job.model->model->info().max_batch_size; }

void Reset(Schedule::Batch* batch) {
  batch->jobs.clear();
  batch->expired.clear();
  batch->samples = batch->work = 0;
  batch->charged = 0;
}

}  // namespace

absl::Status ExpiredStatus(const CancelToken& token, CancelToken::Clock::time_point now) {
  if (token.stop_reason(now) == StopReason::kDeadline) {
    return absl::DeadlineExceededError("the deadline passed before it was computed");
  }
  return absl::CancelledError("cancelled before it was computed");
}

absl::Status Schedule::Admit(Job* job, TimePoint now, JobList* expired) {
  if (HasExpired(*job, now)) return ExpiredStatus(*job->token, now);
  ModelQueue& queue = job->model->queue;
  const auto too_deep = [&] {
    return queue.samples > 0 && queue.samples + job->samples > options_.max_queue_samples;
  };
  // Only a full queue is searched for expired jobs; otherwise they are found when they are taken.
  if (too_deep()) {
    RemoveExpiredOf(queue, now, expired);
    ForgetEmptyQueues();
  }
  if (too_deep()) {
    return absl::ResourceExhaustedError(StrCat("the queue of model '", job->model->name, "' holds ",
                                               queue.samples, " samples; this request has ",
                                               job->samples, ", the limit is ",
                                               options_.max_queue_samples));
  }
  job->enqueued_ = now;
  AddWaiting(*job, job->samples);
  if (queue.jobs.empty()) {
    queue.used_seconds = std::max(queue.used_seconds, virtual_time_);
    queue.start_by = TimePoint::max();
    ready_.push_back(job->model);
  }
  HastenFor(*job, &queue);
  queue.jobs.push_back(job);
  return absl::OkStatus();
}

void Schedule::RemoveExpiredOf(ModelQueue& queue, TimePoint now, JobList* expired) {
  std::deque<Job*>& jobs = queue.jobs;
  const auto first_expired = std::stable_partition(
      jobs.begin(), jobs.end(), [&](const Job* job) { return !HasExpired(*job, now); });
  if (first_expired == jobs.end()) return;
  for (auto it = first_expired; it != jobs.end(); ++it) AddWaiting(**it, -(*it)->samples);
  expired->insert(expired->end(), first_expired, jobs.end());
  jobs.erase(first_expired, jobs.end());
  queue.start_by = TimePoint::max();
  for (const Job* job : jobs) HastenFor(*job, &queue);
}

void Schedule::RemoveExpired(TimePoint now, JobList* expired) {
  for (const auto& model : ready_) RemoveExpiredOf(model->queue, now, expired);
  ForgetEmptyQueues();
}

void Schedule::ForgetEmptyQueues() {
  std::erase_if(ready_, [](const auto& model) { return model->queue.jobs.empty(); });
}

// The gauge is shared by all loads of a version, so it takes changes and no totals.
void Schedule::AddWaiting(const Job& job, int64_t change) {
  job.model->queue.samples += change;
  if (job.model->metrics == nullptr) return;
  job.model->metrics->queue_samples->Increment(static_cast<double>(change));
}

bool Schedule::HasInstance(const ModelQueue& queue, int pausing) const {
  return options_.max_instances == 0 || queue.instances - pausing < options_.max_instances;
}

Schedule::TimePoint Schedule::StartOf(const ServedModel& model) const {
  const bool full = model.queue.samples >= model.model->info().max_batch_size;
  return full || flushing_ ? model.queue.jobs.front()->enqueued_ : model.queue.start_by;
}

// Hastens the next batch of the queue, so that this job does not wait for longer than it should.
void Schedule::HastenFor(const Job& job, ModelQueue* queue) const {
  const TimePoint::duration half = (job.token->deadline() - job.enqueued_) / 2;
  const TimePoint::duration wait = std::min<TimePoint::duration>(options_.max_delay, half);
  queue->start_by =
      std::min(queue->start_by, job.enqueued_ + (job.allow_delay ? wait : wait.zero()));
}

// `lender`: null, or the model whose batch makes a pause for short jobs only.
Schedule::Models::iterator Schedule::PickModel(TimePoint now, const ServedModel* lender) {
  auto best = ready_.end();
  for (auto it = ready_.begin(); it != ready_.end(); ++it) {
    const ModelQueue& queue = (*it)->queue;
    if (!HasInstance(queue, it->get() == lender ? 1 : 0) || StartOf(**it) > now) continue;
    const bool has_short = std::ranges::any_of(
        queue.jobs, [&](const Job* job) { return IsShort(*job) && !HasExpired(*job, now); });
    if (lender != nullptr && !has_short) continue;
    if (best == ready_.end() || queue.used_seconds < (*best)->queue.used_seconds) best = it;
  }
  return best;
}

bool Schedule::TakeShort(const ServedModel& lender, TimePoint now, Batch* batch) {
  const auto picked = PickModel(now, &lender);
  if (picked == ready_.end()) return false;
  TakeBatch(picked, now, true, batch);
  return true;
}

bool Schedule::Take(TimePoint now, Batch* batch) {
  const auto picked = PickModel(now, nullptr);
  if (picked == ready_.end()) return false;
  TakeBatch(picked, now, false, batch);
  return true;
}

bool Schedule::TakeOnly(const Job& job, TimePoint now, Batch* batch) {
  const std::deque<Job*>& jobs = job.model->queue.jobs;
  if (ready_.size() != 1 || jobs.size() != 1 || jobs.front() != &job) return false;
  return Take(now, batch);
}

void Schedule::TakeBatch(Models::iterator picked, TimePoint now, bool only_short, Batch* batch) {
  Reset(batch);
  const std::shared_ptr<ServedModel> model = std::move(*picked);
  ready_.erase(picked);
  const int64_t limit = model->model->info().max_batch_size;
  std::deque<Job*>& jobs = model->queue.jobs;
  size_t kept = 0;
  model->queue.start_by = TimePoint::max();
  for (Job* job : jobs) {
    if (HasExpired(*job, now)) {
      batch->expired.push_back(job);
    } else if (batch->jobs.empty()
                   ? !only_short || IsShort(*job)
                   : (job->GoesWith(*batch->jobs.front()) && batch->work + job->work() <= limit)) {
      batch->jobs.push_back(job);
      batch->samples += job->samples;
      batch->work += job->work();
    } else {
      HastenFor(*job, &model->queue);
      jobs[kept++] = job;
      continue;
    }
    AddWaiting(*job, -job->samples);
  }
  jobs.resize(kept);
  if (kept > 0) ready_.push_back(model);
  if (!batch->jobs.empty()) Charge(batch);
}

// Charges a batch in advance, so that several free workers do not all take the same model. A
// model's first batch is free: nobody knows its time yet.
void Schedule::Charge(Batch* batch) {
  ModelQueue& queue = batch->jobs.front()->model->queue;
  virtual_time_ = std::max(virtual_time_, queue.used_seconds - queue.charged_seconds);
  batch->charged = queue.seconds_per_work * static_cast<double>(batch->work);
  queue.used_seconds += batch->charged;
  queue.charged_seconds += batch->charged;
  ++queue.instances;
}

void Schedule::Finish(const Batch& batch, double seconds) {
  if (batch.jobs.empty()) return;
  ModelQueue& queue = batch.jobs.front()->model->queue;
  queue.used_seconds += seconds - batch.charged;
  queue.charged_seconds -= batch.charged;
  queue.seconds_per_work = seconds / static_cast<double>(batch.work);
  --queue.instances;
}

Schedule::TimePoint Schedule::NextStart() const {
  TimePoint next = TimePoint::max();
  for (const auto& model : ready_) {
    if (HasInstance(model->queue)) next = std::min(next, StartOf(*model));
  }
  return next;
}

JobList Schedule::Clear() {
  JobList waiting;
  for (const auto& model : ready_) {
    std::deque<Job*>& jobs = model->queue.jobs;
    waiting.insert(waiting.end(), jobs.begin(), jobs.end());
    jobs.clear();
  }
  for (const Job* job : waiting) AddWaiting(*job, -job->samples);
  ready_.clear();
  return waiting;
}

}  // namespace deeppcr
