// SPDX-License-Identifier: Apache-2.0
#include "server/schedule/schedule.h"

#include <algorithm>
#include <utility>

#include "kernels/base/strings.h"

namespace deeppcr {
namespace {

bool IsDead(const Job& job, Schedule::TimePoint now) {
  return job.token->stop_reason(now) != StopReason::kNone;
}

void Begin(bool alone, Schedule::Turn* turn) {
  turn->jobs.clear();
  turn->dead.clear();
  turn->alone = alone;
  turn->samples = 0;
  turn->charged = 0;
}

}  // namespace

absl::Status WhyDead(const CancelToken& token, CancelToken::Clock::time_point now) {
  if (token.stop_reason(now) == StopReason::kDeadline) {
    return absl::DeadlineExceededError("the deadline passed before it was computed");
  }
  return absl::CancelledError("cancelled before it was computed");
}

absl::Status Schedule::Admit(Job* job, TimePoint now, JobList* dead) {
  if (IsDead(*job, now)) return WhyDead(*job->token, now);
  ServedModel& model = *job->model;
  // Each kind of job has a queue length of its own: comparisons are long, and must not shut out the
  // rest.
  const int64_t& waiting = job->batchable ? model.waiting_samples_ : model.alone_samples_;
  const auto too_deep = [&] {
    return waiting > 0 && waiting + job->samples > options_.max_queue_samples;
  };
  // Only a full queue is searched for dead jobs; otherwise they are found when their turn comes.
  if (too_deep()) {
    RemoveDeadOf(model, now, dead);
    RemoveDead(alone_, &model, now, dead);
    ForgetEmptyQueues();
  }
  if (too_deep()) {
    return absl::ResourceExhaustedError(StrCat("the queue of model '", model.name, "' holds ",
                                               waiting, " samples; this request has ", job->samples,
                                               ", the limit is ", options_.max_queue_samples));
  }
  job->enqueued_ = now;
  AddWaiting(*job, job->samples);
  if (!job->batchable) {
    alone_.push_back(job);
    return absl::OkStatus();
  }
  if (model.waiting_.empty()) {
    model.used_seconds_ = std::max(model.used_seconds_, level_);
    model.start_by_ = TimePoint::max();
    ready_.push_back(job->model);
  }
  HastenFor(*job, &model);
  model.waiting_.push_back(job);
  return absl::OkStatus();
}

// Removes the dead jobs of one model, or of all models if `model` is null.
void Schedule::RemoveDead(std::deque<Job*>& jobs, const ServedModel* model, TimePoint now,
                          JobList* dead) {
  const auto stays = [&](const Job* job) {
    return (model != nullptr && job->model.get() != model) || !IsDead(*job, now);
  };
  const auto first_dead = std::stable_partition(jobs.begin(), jobs.end(), stays);
  for (auto it = first_dead; it != jobs.end(); ++it) AddWaiting(**it, -(*it)->samples);
  dead->insert(dead->end(), first_dead, jobs.end());
  jobs.erase(first_dead, jobs.end());
}

void Schedule::RemoveDeadOf(ServedModel& model, TimePoint now, JobList* dead) {
  const size_t before = dead->size();
  RemoveDead(model.waiting_, &model, now, dead);
  if (dead->size() == before) return;
  model.start_by_ = TimePoint::max();
  for (const Job* job : model.waiting_) HastenFor(*job, &model);
}

void Schedule::RemoveDead(TimePoint now, JobList* dead) {
  for (const auto& model : ready_) RemoveDeadOf(*model, now, dead);
  RemoveDead(alone_, nullptr, now, dead);
  ForgetEmptyQueues();
}

void Schedule::ForgetEmptyQueues() {
  std::erase_if(ready_, [](const auto& model) { return model->waiting_.empty(); });
}

// The gauge is shared by all loads of a version, so it takes changes and no totals.
void Schedule::AddWaiting(const Job& job, int64_t change) {
  ServedModel& model = *job.model;
  (job.batchable ? model.waiting_samples_ : model.alone_samples_) += change;
  if (model.metrics == nullptr) return;
  model.metrics->queue_samples->Increment(static_cast<double>(change));
}

// One worker stays free of jobs that run alone, so that a long comparison cannot stop every model.
bool Schedule::MayStartAlone() const {
  return !alone_.empty() && alone_running_ < std::max(1, options_.workers - 1);
}

bool Schedule::HasInstance(const ServedModel& model) const {
  return options_.max_instances == 0 || model.instances_ < options_.max_instances;
}

Schedule::TimePoint Schedule::StartOf(const ServedModel& model) const {
  const bool full = model.waiting_samples_ >= model.model->info().max_batch_size;
  return full || hurry_ ? model.waiting_.front()->enqueued_ : model.start_by_;
}

// Hastens the model's next batch, so that this job does not wait for longer than it should.
void Schedule::HastenFor(const Job& job, ServedModel* model) const {
  const TimePoint::duration half = (job.token->deadline() - job.enqueued_) / 2;
  const TimePoint::duration wait = std::min<TimePoint::duration>(options_.max_delay, half);
  model->start_by_ = std::min(model->start_by_, job.enqueued_ + (job.patient ? wait : wait.zero()));
}

Schedule::Models::iterator Schedule::PickModel(TimePoint now) {
  auto best = ready_.end();
  for (auto it = ready_.begin(); it != ready_.end(); ++it) {
    if (!HasInstance(**it) || StartOf(**it) > now) continue;
    if (best == ready_.end() || (*it)->used_seconds_ < (*best)->used_seconds_) best = it;
  }
  return best;
}

bool Schedule::Take(TimePoint now, Turn* turn) {
  const auto picked = PickModel(now);
  const bool batch = picked != ready_.end();
  const bool alone = MayStartAlone() && !(batch && last_was_alone_);
  if (!batch && !alone) return false;
  last_was_alone_ = alone;
  if (alone) {
    TakeAlone(now, turn);
  } else {
    TakeBatch(picked, now, turn);
  }
  return true;
}

bool Schedule::TakeOnly(const Job& job, TimePoint now, Turn* turn) {
  if (ready_.size() != 1 || job.model->waiting_.size() != 1) return false;
  if (job.model->waiting_.front() != &job || PickModel(now) == ready_.end()) return false;
  TakeBatch(ready_.begin(), now, turn);
  last_was_alone_ = false;
  return true;
}

void Schedule::TakeBatch(Models::iterator picked, TimePoint now, Turn* turn) {
  Begin(/*alone=*/false, turn);
  const std::shared_ptr<ServedModel> model = std::move(*picked);
  ready_.erase(picked);
  const int64_t limit = model->model->info().max_batch_size;
  std::deque<Job*>& waiting = model->waiting_;
  size_t kept = 0;
  model->start_by_ = TimePoint::max();
  for (Job* job : waiting) {
    if (IsDead(*job, now)) {
      turn->dead.push_back(job);
    } else if (turn->jobs.empty() || (job->options == turn->jobs.front()->options &&
                                      turn->samples + job->samples <= limit)) {
      turn->jobs.push_back(job);
      turn->samples += job->samples;
    } else {
      HastenFor(*job, model.get());
      waiting[kept++] = job;
      continue;
    }
    AddWaiting(*job, -job->samples);
  }
  waiting.resize(kept);
  if (kept > 0) ready_.push_back(model);
  if (!turn->jobs.empty()) Charge(turn);
}

// Charges a batch in advance, so that several free workers do not all take the same model. A
// model's first batch is free: nobody knows its time yet.
void Schedule::Charge(Turn* turn) {
  ServedModel& model = *turn->jobs.front()->model;
  level_ = std::max(level_, model.used_seconds_ - model.charged_seconds_);
  turn->charged = model.seconds_per_sample_ * static_cast<double>(turn->samples);
  model.used_seconds_ += turn->charged;
  model.charged_seconds_ += turn->charged;
  ++model.instances_;
}

void Schedule::TakeAlone(TimePoint now, Turn* turn) {
  Begin(/*alone=*/true, turn);
  Job* job = alone_.front();
  alone_.pop_front();
  AddWaiting(*job, -job->samples);
  if (IsDead(*job, now)) {
    turn->dead.push_back(job);
    return;
  }
  turn->jobs.push_back(job);
  turn->samples = job->samples;
  ++alone_running_;
}

void Schedule::Finish(const Turn& turn, double seconds) {
  if (turn.jobs.empty()) return;
  if (turn.alone) {
    --alone_running_;
    return;
  }
  ServedModel& model = *turn.jobs.front()->model;
  model.used_seconds_ += seconds - turn.charged;
  model.charged_seconds_ -= turn.charged;
  model.seconds_per_sample_ = seconds / static_cast<double>(turn.samples);
  --model.instances_;
}

Schedule::TimePoint Schedule::NextStart() const {
  if (MayStartAlone()) return TimePoint::min();
  TimePoint next = TimePoint::max();
  for (const auto& model : ready_) {
    if (HasInstance(*model)) next = std::min(next, StartOf(*model));
  }
  return next;
}

JobList Schedule::Clear() {
  JobList waiting;
  for (const auto& model : ready_) {
    waiting.insert(waiting.end(), model->waiting_.begin(), model->waiting_.end());
    model->waiting_.clear();
  }
  waiting.insert(waiting.end(), alone_.begin(), alone_.end());
  for (const Job* job : waiting) AddWaiting(*job, -job->samples);
  ready_.clear();
  alone_.clear();
  return waiting;
}

}  // namespace deeppcr
