// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_SCHEDULE_SCHEDULE_H_
#define DEEPPCR_SERVER_SCHEDULE_SCHEDULE_H_

// The choice of what is computed next: the decisions of the batcher, without its threads and its
// clock, so that a test can replay them.
//
//  - One bounded queue per model version: bounded in samples, and in time. A job whose wait, as
//    predicted from what has been measured, would be too long or last beyond its deadline is
//    refused at once, when its client can still go elsewhere. A named client has a share of the
//    queue and of its time. A batch takes from one model all jobs that wait, go with
//    the job that came first (Job::GoesWith), and fit into it: their work is at most that of
//    max_batch_size samples.
//  - Fair shares (start-time fair queueing): whenever a worker is free, the model that has used the
//    least virtual time, which is its time over its weight, is served. When a batch starts, its
//    model is charged an estimate (seconds per work of its last batch); when it ends, the measured
//    time replaces the estimate. A model that becomes busy starts at the current virtual time: idle
//    time is not saved up.
//  - While fewer samples wait for a model than make a full batch, whatever their options, the model
//    waits until one of its jobs has waited max_delay, or for half of the time to its deadline.

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "server/schedule/job.h"

namespace deeppcr {

using JobList = std::vector<Job*>;

struct ScheduleOptions {
  int workers = 2;
  int64_t max_queue_samples = 1024;        // per model version
  int max_instances = 0;                   // batches of one version at a time; 0: one per worker
  std::chrono::microseconds max_delay{0};  // longest wait of a batch that is not full
  double max_queue_seconds = 0;            // longest predicted wait; 0: any
};

// The options for this model, which may have some of its own.
ScheduleOptions OptionsFor(const ServedModel& model, ScheduleOptions options);

// The status of a request whose token has fired before it was computed: kDeadlineExceeded or
// kCancelled.
absl::Status ExpiredStatus(const CancelToken& token, CancelToken::Clock::time_point now);

// Not thread-safe. Every `now` is at or after the one before.
class Schedule {
 public:
  using TimePoint = CancelToken::Clock::time_point;

  // A worker's next work. Kept by the worker, so that taking a batch allocates next to nothing.
  struct Batch {
    JobList jobs;         // computed together; empty if every job had expired
    JobList expired;      // cancelled, or past their deadlines: to be told so
    int64_t samples = 0;  // sum over jobs
    int64_t work = 0;     // the same of Job::work
    double cost = 0;      // the same of CostOf
    // What of that the measured time is for: less where jobs ended before they were computed.
    double computed_cost = 0;
    double charged = 0;  // seconds of virtual time
    int64_t ticket = 0;  // of what is known of it while it is computed
  };

  explicit Schedule(const ScheduleOptions& options) : options_(options) {}

  // Queues a job. A job larger than the whole queue is accepted by an empty queue. `expired`
  // receives the expired jobs that gave their places away. The job gets its predicted_wait.
  // Errors: kCancelled, kDeadlineExceeded, kResourceExhausted with the queue's depth, the client's
  // part of it, or the predicted wait.
  absl::Status Admit(Job* job, TimePoint now, JobList* expired);

  // Takes the next batch, which Finish ends; false if none may start now.
  bool Take(TimePoint now, Batch* batch);

  // The same, of jobs that are no longer than a full batch of samples, while a batch of `lender`
  // makes a pause, which counts as no instance then.
  bool TakeShort(const ServedModel& lender, TimePoint now, Batch* batch);

  // Takes this job if nothing else waits and it may start now.
  bool TakeOnly(const Job& job, TimePoint now, Batch* batch);

  // What a job that was admitted costs, in units of its own model: the seconds that its plan
  // expects; without one as much as the work of the last job that had one, or its work where none
  // has.
  static double CostOf(const Job& job) { return job.cost_; }

  // Ends a batch. seconds: the time that computing took, from which it learns unless more than a
  // quarter of the batch was not computed.
  void Finish(const Batch& batch, double seconds);

  // The time when Take may give a batch, unless a job is admitted or finished before;
  // TimePoint::max() if never.
  TimePoint NextStart() const;

  // Removes the jobs that have expired; the caller tells them.
  void RemoveExpired(TimePoint now, JobList* expired);

  // Lets no batch wait for more jobs from now on: none will come.
  void Flush() { flushing_ = true; }

  // Forgets the jobs that wait, and returns them.
  JobList Clear();

  // True if nothing waits.
  bool empty() const { return ready_.empty(); }

  // Samples that wait for this model.
  static int64_t Depth(const ServedModel& model) { return model.queue.waiting.samples; }

  // True if no more than so many batches of this model are computed at a time.
  bool LimitsInstances(const ServedModel& model) const {
    return OptionsFor(model, options_).max_instances > 0;
  }

 private:
  using Models = std::deque<std::shared_ptr<ServedModel>>;

  // A batch that is computed.
  struct Running {
    int64_t ticket = 0;
    const ServedModel* model = nullptr;
    TimePoint start;
    TimePoint end;       // as expected
    bool lends = false;  // makes pauses, in which short jobs are served
    // Of its jobs, which are there until it is finished.
    absl::InlinedVector<const CancelToken*, 8> tokens;

    // Seconds from now on; none once nobody wants it any more.
    double SecondsLeft(TimePoint now) const;
  };

  absl::Status CheckDepth(const Job& job, TimePoint now, JobList* expired);
  absl::Status CheckShare(const Job& job) const;
  absl::Status CheckWait(TimePoint now, Job* job) const;
  double PredictWait(const Job& job, TimePoint now) const;
  double WorkAhead(const Job& job) const;
  double OthersAhead(const ServedModel& model, double own_seconds, TimePoint now) const;
  double UntilFree(const Job& job, TimePoint now, const ServedModel* of, int slots,
                   double ahead) const;
  bool HasInstance(const ServedModel& model, int pausing = 0) const;
  TimePoint StartOf(const ServedModel& model) const;
  void HastenFor(const Job& job, ModelQueue* queue) const;
  Models::iterator PickModel(TimePoint now, const ServedModel* lender);
  void TakeBatch(Models::iterator picked, TimePoint now, bool only_short, Batch* batch);
  void Charge(Batch* batch);
  void NoteWait(const Job& job, TimePoint now) const;
  void NoteRunning(TimePoint now, Batch* batch);
  void RemoveExpiredOf(ModelQueue& queue, TimePoint now, JobList* expired);
  void ForgetEmptyQueues();
  static void AddWaiting(const Job& job, int sign);

  const ScheduleOptions options_;
  std::vector<Running> running_;
  int64_t last_ticket_ = 0;
  TimePoint last_mishap_;  // the end of the last batch that took far longer than expected
  Models ready_;           // models with jobs, in the order in which they got them or were served
  bool flushing_ = false;
  double virtual_time_ = 0;  // seconds that the model served last had really used before
};

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_SCHEDULE_SCHEDULE_H_
