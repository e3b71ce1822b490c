// SPDX-License-Identifier: Apache-2.0
#include "server/schedule/schedule.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"
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
  batch->samples = batch->work = batch->ticket = 0;
  batch->charged = batch->cost = batch->computed_cost = 0;
}

double SecondsOf(Schedule::TimePoint::duration time) {
  return std::chrono::duration<double>(time).count();
}
double SecondsOf(Schedule::TimePoint time) { return SecondsOf(time.time_since_epoch()); }

Schedule::TimePoint::duration Duration(double seconds) {
  return std::chrono::duration_cast<Schedule::TimePoint::duration>(
      std::chrono::duration<double>(seconds));
}

// A batch that takes so many times what was expected is no part of the spread of times.
constexpr double kMishap = 3;

std::string InSeconds(double seconds) { return absl::StrFormat("%.3g s", seconds); }

// A batch looks no further once so many jobs do not go with it: a long queue of such must not cost
// its length each time.
constexpr size_t kMostPassedOver = 256;

// The first job that may be computed in the pause of another.
std::deque<Job*>::iterator FirstShort(std::deque<Job*>& jobs, Schedule::TimePoint now) {
  return std::ranges::find_if(
      jobs, [&](const Job* job) { return IsShort(*job) && !HasExpired(*job, now); });
}

}  // namespace

absl::Status ExpiredStatus(const CancelToken& token, CancelToken::Clock::time_point now) {
  if (token.stop_reason(now) == StopReason::kDeadline) {
    return absl::DeadlineExceededError("the deadline passed before it was computed");
  }
  return absl::CancelledError("cancelled before it was computed");
}

ScheduleOptions OptionsFor(const ServedModel& model, ScheduleOptions options) {
  const ServingSettings& own = model.serving;
  options.max_queue_samples = own.max_queue.value_or(options.max_queue_samples);
  options.max_queue_seconds = own.max_queue_seconds.value_or(options.max_queue_seconds);
  options.max_delay = own.max_delay.value_or(options.max_delay);
  options.max_instances = own.max_instances.value_or(options.max_instances);
  return options;
}

absl::Status Schedule::Admit(Job* job, TimePoint now, JobList* expired) {
  if (HasExpired(*job, now)) return ExpiredStatus(*job->token, now);
  ModelQueue& queue = job->model->queue;
  DEEPPCR_RETURN_IF_ERROR(CheckDepth(*job, now, expired));
  DEEPPCR_RETURN_IF_ERROR(CheckShare(*job));
  job->predicted_wait_ = PredictWait(*job, now);
  DEEPPCR_RETURN_IF_ERROR(CheckWait(now, job));
  job->enqueued_ = now;
  const auto work = static_cast<double>(job->work());
  if (job->expected_seconds > 0) queue.cost_per_work = job->expected_seconds / work;
  job->cost_ = work * (queue.cost_per_work > 0 ? queue.cost_per_work : 1);
  AddWaiting(*job, 1);
  if (queue.jobs.empty()) {
    queue.used_seconds = std::max(queue.used_seconds, virtual_time_);
    queue.start_by = TimePoint::max();
    ready_.push_back(job->model);
  }
  HastenFor(*job, &queue);
  queue.jobs.push_back(job);
  return absl::OkStatus();
}

// Only a full queue is searched for expired jobs; otherwise they are found when they are taken.
absl::Status Schedule::CheckDepth(const Job& job, TimePoint now, JobList* expired) {
  ModelQueue& queue = job.model->queue;
  const int64_t limit = OptionsFor(*job.model, options_).max_queue_samples;
  const auto too_deep = [&] {
    return queue.waiting.samples > 0 && queue.waiting.samples + job.samples > limit;
  };
  if (too_deep()) {
    RemoveExpiredOf(queue, now, expired);
    ForgetEmptyQueues();
  }
  if (!too_deep()) return absl::OkStatus();
  return absl::ResourceExhaustedError(StrCat("the queue of model '", job.model->name, "' holds ",
                                             queue.waiting.samples, " samples; this request has ",
                                             job.samples, ", the limit is ", limit));
}

// Bounds what one client has in the queue. A client of which nothing waits may ask for anything.
absl::Status Schedule::CheckShare(const Job& job) const {
  if (job.client == nullptr) return absl::OkStatus();
  const ModelQueue& queue = job.model->queue;
  const auto found = queue.clients.find(job.client.get());
  if (found == queue.clients.end()) return absl::OkStatus();
  const ModelQueue::Waiting& own = found->second;
  const ScheduleOptions options = OptionsFor(*job.model, options_);
  const double share = job.client->share.load();
  const double samples = share * static_cast<double>(options.max_queue_samples);
  if (static_cast<double>(own.samples + job.samples) > samples)
    return absl::ResourceExhaustedError(StrCat("client '", job.client->name, "' has ", own.samples,
                                               " samples in the queue of model '", job.model->name,
                                               "'; this request has ", job.samples,
                                               ", its share is ", static_cast<int64_t>(samples)));
  const double seconds =
      own.cost * queue.seconds_per_cost.value() / static_cast<double>(options_.workers);
  const double limit = share * options.max_queue_seconds;
  if (limit == 0 || seconds <= limit) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      StrCat("client '", job.client->name, "' has work for about ", InSeconds(seconds),
             " in the queue of model '", job.model->name, "'; its share is ", InSeconds(limit)));
}

// Deadlines are held against the predicted wait. Of those that the limit lets in, 99 of 100 shall
// wait no longer, so that it is held against what the prediction may miss, too; a refusal says
// that.
absl::Status Schedule::CheckWait(TimePoint now, Job* job) const {
  const double wait = job->predicted_wait_;
  if (wait == 0 || job->may_wait_long) return absl::OkStatus();
  const auto refuse = [&](std::string_view what, double seconds) {
    return absl::ResourceExhaustedError(
        StrCat("a request for model '", job->model->name, "' would wait about ",
               InSeconds(job->predicted_wait_), " now; ", what, " ", InSeconds(seconds)));
  };
  const double limit = OptionsFor(*job->model, options_).max_queue_seconds;
  if (limit > 0) {
    const double longest = wait * job->model->queue.wait_caution.value(SecondsOf(now), limit);
    if (longest > limit) {
      job->predicted_wait_ = longest;
      return refuse("the limit is", limit);
    }
  }
  const TimePoint deadline = job->token->deadline();
  if (deadline == TimePoint::max() || wait < SecondsOf(deadline - now)) return absl::OkStatus();
  return refuse("its deadline is in", SecondsOf(deadline - now));
}

// The seconds from now until a batch with this job would begin.
double Schedule::PredictWait(const Job& job, TimePoint now) const {
  const ServedModel& model = *job.model;
  const bool worker_is_free = static_cast<int>(running_.size()) < options_.workers;
  const bool may_start = worker_is_free && HasInstance(model);
  const double own = WorkAhead(job);
  const double others = OthersAhead(model, own, now);
  if (may_start && own + others == 0) return 0;
  double wait = UntilFree(job, now, nullptr, options_.workers, own + others);
  const int instances = OptionsFor(model, options_).max_instances;
  if (instances > 0 && instances < options_.workers)
    wait = std::max(wait, UntilFree(job, now, &model, instances, own));
  return wait;
}

// The seconds of work in the batches of the job's own model that begin before its own.
double Schedule::WorkAhead(const Job& job) const {
  const ModelQueue& queue = job.model->queue;
  if (queue.jobs.empty()) return 0;
  const double seconds = queue.waiting.cost * queue.seconds_per_cost.value();
  // The job shares a batch with those that came last.
  const int64_t full = job.model->model->info().max_batch_size;
  const int64_t all = queue.waiting.samples;
  if (!job.GoesWith(*queue.jobs.back()) || job.work() > full) return seconds;
  const int64_t before = (all + job.samples - 1) / full * full;
  return seconds * std::min(1.0, static_cast<double>(before) / static_cast<double>(all));
}

// The seconds that other models are served until this one has had so many. Those that may not start
// now, for want of an instance or of company, leave a free worker to it.
double Schedule::OthersAhead(const ServedModel& model, double own_seconds, TimePoint now) const {
  const ModelQueue& queue = model.queue;
  const double used =
      queue.jobs.empty() ? std::max(queue.used_seconds, virtual_time_) : queue.used_seconds;
  const double until = used + own_seconds / model.serving.weight;
  double seconds = 0;
  for (const auto& other : ready_) {
    if (other.get() == &model || !HasInstance(*other) || StartOf(*other) > now) continue;
    const ModelQueue& its = other->queue;
    seconds += std::clamp((until - its.used_seconds) * other->serving.weight, 0.0,
                          its.waiting.cost * its.seconds_per_cost.value());
  }
  return seconds;
}

double Schedule::Running::SecondsLeft(TimePoint now) const {
  // The latest time at which somebody wants it.
  TimePoint wanted = TimePoint::min();
  for (const CancelToken* token : tokens) {
    if (token->stop_reason(now) == StopReason::kNone) wanted = std::max(wanted, token->deadline());
    if (wanted >= end) break;
  }
  return std::max(0.0, SecondsOf(std::min(end, std::max(wanted, now)) - now));
}

// The seconds until one of `slots` is free after `ahead` seconds of work: workers, or instances of
// this model.
double Schedule::UntilFree(const Job& job, TimePoint now, const ServedModel* of, int slots,
                           double ahead) const {
  absl::InlinedVector<double, 32> busy;
  for (const Running& batch : running_) {
    if (of != nullptr && batch.model != of) continue;
    const bool waits_for_it = !batch.lends || !IsShort(job);
    busy.push_back(waits_for_it ? batch.SecondsLeft(now) : 0.0);
  }
  // What is computed where it arrived takes no worker.
  std::ranges::sort(busy, std::greater());
  busy.resize(static_cast<size_t>(slots));
  return SecondsUntilFree({busy.data(), busy.size()}, ahead);
}

void Schedule::RemoveExpiredOf(ModelQueue& queue, TimePoint now, JobList* expired) {
  std::deque<Job*>& jobs = queue.jobs;
  const auto first_expired = std::stable_partition(
      jobs.begin(), jobs.end(), [&](const Job* job) { return !HasExpired(*job, now); });
  if (first_expired == jobs.end()) return;
  for (auto it = first_expired; it != jobs.end(); ++it) AddWaiting(**it, -1);
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
void Schedule::AddWaiting(const Job& job, int sign) {
  ModelQueue& queue = job.model->queue;
  const int64_t samples = sign * job.samples;
  const auto add = [&](ModelQueue::Waiting& to) {
    to.samples += samples;
    // Sums of what comes and goes would drift.
    to.cost = to.samples == 0 ? 0 : to.cost + sign * CostOf(job);
  };
  add(queue.waiting);
  if (job.client != nullptr) {
    ModelQueue::Waiting& own = queue.clients[job.client.get()];
    add(own);
    if (own.samples == 0) queue.clients.erase(job.client.get());
  }
  if (job.model->metrics == nullptr) return;
  job.model->metrics->queue_samples->Increment(static_cast<double>(samples));
}

bool Schedule::HasInstance(const ServedModel& model, int pausing) const {
  const int limit = OptionsFor(model, options_).max_instances;
  return limit == 0 || model.queue.instances - pausing < limit;
}

Schedule::TimePoint Schedule::StartOf(const ServedModel& model) const {
  const bool full = model.queue.waiting.samples >= model.model->info().max_batch_size;
  return full || flushing_ ? model.queue.jobs.front()->enqueued_ : model.queue.start_by;
}

// Hastens the next batch of the queue, so that this job does not wait for longer than it should.
void Schedule::HastenFor(const Job& job, ModelQueue* queue) const {
  const TimePoint::duration half = (job.token->deadline() - job.enqueued_) / 2;
  const TimePoint::duration wait =
      std::min<TimePoint::duration>(OptionsFor(*job.model, options_).max_delay, half);
  queue->start_by =
      std::min(queue->start_by, job.enqueued_ + (job.allow_delay ? wait : wait.zero()));
}

// `lender`: null, or the model whose batch makes a pause for short jobs only.
Schedule::Models::iterator Schedule::PickModel(TimePoint now, const ServedModel* lender) {
  auto best = ready_.end();
  for (auto it = ready_.begin(); it != ready_.end(); ++it) {
    ModelQueue& queue = (*it)->queue;
    if (!HasInstance(**it, it->get() == lender ? 1 : 0) || StartOf(**it) > now) continue;
    if (lender != nullptr && FirstShort(queue.jobs, now) == queue.jobs.end()) continue;
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
  // What stays moves up to what was not looked at.
  std::array<Job*, kMostPassedOver> kept;
  size_t num_kept = 0;
  const auto first = only_short ? FirstShort(jobs, now) : jobs.begin();
  const TimePoint start_by = std::exchange(model->queue.start_by, TimePoint::max());
  auto next = first;
  while (next != jobs.end() && num_kept < kept.size()) {
    Job* const job = *next++;
    if (HasExpired(*job, now)) {
      batch->expired.push_back(job);
    } else if (batch->jobs.empty() ||
               (job->GoesWith(*batch->jobs.front()) && batch->work + job->work() <= limit)) {
      batch->jobs.push_back(job);
      NoteWait(*job, now);
      batch->samples += job->samples;
      batch->work += job->work();
      batch->cost += CostOf(*job);
    } else {
      HastenFor(*job, &model->queue);
      kept[num_kept++] = job;
      continue;
    }
    AddWaiting(*job, -1);
  }
  // Those that were not looked at may be what made the queue due.
  if (first != jobs.begin() || next != jobs.end())
    model->queue.start_by = std::min(model->queue.start_by, start_by);
  const auto end_of_taken = next - static_cast<std::ptrdiff_t>(num_kept);
  std::copy_n(kept.begin(), num_kept, end_of_taken);
  jobs.erase(first, end_of_taken);
  if (!jobs.empty()) ready_.push_back(model);
  if (batch->jobs.empty()) return;
  batch->computed_cost = batch->cost;
  Charge(batch);
  // A batch in a pause of another has no worker of its own.
  if (!only_short) NoteRunning(now, batch);
}

// Learns from a wait that is over, of those who were held against the limit. Waits that were
// predicted to be short tell nothing of it; whatever the caution is, some that are let in are above
// a quarter. One mishap makes a whole queue late: waits behind it tell nothing either.
void Schedule::NoteWait(const Job& job, TimePoint now) const {
  const double limit = OptionsFor(*job.model, options_).max_queue_seconds;
  if (limit == 0 || job.predicted_wait_ < limit / 4 || job.may_wait_long) return;
  if (job.enqueued_ < last_mishap_) return;
  job.model->queue.wait_caution.Add(SecondsOf(now), limit, SecondsOf(now - job.enqueued_) > limit);
}

void Schedule::NoteRunning(TimePoint now, Batch* batch) {
  const Job& first = *batch->jobs.front();
  const double expected = batch->cost * first.model->queue.seconds_per_cost.value();
  batch->ticket = ++last_ticket_;
  running_.push_back({.ticket = batch->ticket,
                      .model = first.model.get(),
                      .start = now,
                      .end = now + Duration(expected),
                      .lends = first.back.has_value()});
  auto& tokens = running_.back().tokens;
  tokens.reserve(batch->jobs.size());
  for (const Job* job : batch->jobs) tokens.push_back(job->token);
}

// Charges a batch in advance, so that several free workers do not all take the same model. A
// model's first batch is free: nobody knows its time yet.
void Schedule::Charge(Batch* batch) {
  ModelQueue& queue = batch->jobs.front()->model->queue;
  virtual_time_ = std::max(virtual_time_, queue.used_seconds - queue.charged_seconds);
  batch->charged = queue.seconds_per_work * static_cast<double>(batch->work) /
                   batch->jobs.front()->model->serving.weight;
  queue.used_seconds += batch->charged;
  queue.charged_seconds += batch->charged;
  ++queue.instances;
}

void Schedule::Finish(const Batch& batch, double seconds) {
  if (batch.jobs.empty()) return;
  const ServedModel& model = *batch.jobs.front()->model;
  ModelQueue& queue = batch.jobs.front()->model->queue;
  queue.used_seconds += seconds / model.serving.weight - batch.charged;
  queue.charged_seconds -= batch.charged;
  if (batch.computed_cost >= 0.75 * batch.cost) {
    queue.seconds_per_work = seconds / static_cast<double>(batch.work);
    queue.seconds_per_cost.Add(seconds, batch.computed_cost);
  } else {
    queue.seconds_per_cost.AddAtLeast(seconds, batch.cost);
  }
  const auto running = std::ranges::find(running_, batch.ticket, &Running::ticket);
  if (running != running_.end()) {
    const TimePoint::duration expected = running->end - running->start;
    if (seconds > kMishap * SecondsOf(expected))
      last_mishap_ = std::max(last_mishap_, running->start + Duration(seconds));
    running_.erase(running);
  }
  --queue.instances;
}

Schedule::TimePoint Schedule::NextStart() const {
  TimePoint next = TimePoint::max();
  for (const auto& model : ready_) {
    if (HasInstance(*model)) next = std::min(next, StartOf(*model));
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
  for (const Job* job : waiting) AddWaiting(*job, -1);
  ready_.clear();
  return waiting;
}

}  // namespace deeppcr
