// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_SCHEDULE_SCHEDULE_H_
#define DEEPPCR_SERVER_SCHEDULE_SCHEDULE_H_

// The choice of what is computed next: the decisions of the batcher, without its threads and its
// clock, so that a test can replay them.
//
//  - One bounded queue per model version. A turn takes from one model all jobs that wait, are equal
//    in options to the job that came first, and fit into its batch.
//  - Fair shares: whenever a worker is free, the model that has used the least time has its turn
//    (start-time fair queueing). A batch is charged in advance with the time of the last one, which
//    its own time replaces in the end; a model that was idle starts level with the time that the
//    model served last had really used, so no model saves up time or pays for an estimate.
//  - While fewer samples wait for a model than make a full batch, whatever their options, the model
//    waits until one of its jobs has waited max_delay, or for half of the time to its deadline.
//  - Jobs that cannot be batched (comparisons, which are long) alternate with batches, by arrival,
//    and leave one worker free of them. Their time counts for no model: one such job would be more
//    than the model's batches could make up for.

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "server/schedule/job.h"

namespace deeppcr {

using JobList = std::vector<Job*>;

struct ScheduleOptions {
  int workers = 2;
  int64_t max_queue_samples = 1024;        // per model version, and per kind of job
  int max_instances = 0;                   // batches of one version at a time; 0: one per worker
  std::chrono::microseconds max_delay{0};  // longest wait of a batch that is not full
};

// The status for a job whose token has fired by now: kDeadlineExceeded or kCancelled.
absl::Status WhyDead(const CancelToken& token, CancelToken::Clock::time_point now);

// Not thread-safe. Every `now` is at or after the one before.
class Schedule {
 public:
  using TimePoint = CancelToken::Clock::time_point;

  // A worker's next work. Kept from turn to turn, so that taking a turn allocates nothing.
  struct Turn {
    JobList jobs;         // computed together; empty if every job was dead
    JobList dead;         // cancelled or expired: to be told so
    bool alone = false;   // one job that is not batchable
    int64_t samples = 0;  // sum over jobs
    double charged = 0;   // seconds
  };

  explicit Schedule(const ScheduleOptions& options) : options_(options) {}

  // Queues a job. A job larger than the whole queue is accepted by an empty queue. `dead` receives
  // the dead jobs that gave their places away.
  // Errors: kCancelled, kDeadlineExceeded, kResourceExhausted with the queue's depth.
  absl::Status Admit(Job* job, TimePoint now, JobList* dead);

  // Takes the next turn, which Finish ends; false if none may begin now.
  bool Take(TimePoint now, Turn* turn);

  // Takes this job if it is all that waits and may begin now.
  bool TakeOnly(const Job& job, TimePoint now, Turn* turn);

  // Ends a turn. seconds: the time that computing took.
  void Finish(const Turn& turn, double seconds);

  // The time when Take may give a turn, unless a job is admitted or finished before;
  // TimePoint::max() if never.
  TimePoint NextStart() const;

  // Removes jobs that are cancelled or expired; the caller tells them.
  void RemoveDead(TimePoint now, JobList* dead);

  // Lets no batch wait for more jobs from now on: none will come.
  void Hurry() { hurry_ = true; }

  // Forgets the jobs that wait, and returns them.
  JobList Clear();

  // True if nothing waits.
  bool empty() const { return ready_.empty() && alone_.empty(); }

  // Samples that wait for this model.
  static int64_t Depth(const ServedModel& model) {
    return model.waiting_samples_ + model.alone_samples_;
  }

 private:
  using Models = std::deque<std::shared_ptr<ServedModel>>;

  bool MayStartAlone() const;
  bool HasInstance(const ServedModel& model) const;
  TimePoint StartOf(const ServedModel& model) const;
  void HastenFor(const Job& job, ServedModel* model) const;
  Models::iterator PickModel(TimePoint now);
  void TakeAlone(TimePoint now, Turn* turn);
  void TakeBatch(Models::iterator picked, TimePoint now, Turn* turn);
  void Charge(Turn* turn);
  void RemoveDead(std::deque<Job*>& jobs, const ServedModel* model, TimePoint now, JobList* dead);
  void RemoveDeadOf(ServedModel& model, TimePoint now, JobList* dead);
  void ForgetEmptyQueues();
  static void AddWaiting(const Job& job, int64_t change);

  const ScheduleOptions options_;
  Models ready_;  // models with batchable jobs, in the order in which they got them or had a turn
  std::deque<Job*> alone_;
  int alone_running_ = 0;
  bool hurry_ = false;
  bool last_was_alone_ = false;
  double level_ = 0;  // seconds that the model served last had really used before
};

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_SCHEDULE_SCHEDULE_H_
