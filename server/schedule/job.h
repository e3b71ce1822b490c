// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_SCHEDULE_JOB_H_
#define DEEPPCR_SERVER_SCHEDULE_JOB_H_

// Jobs that wait, and the models that they wait for.

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "kernels/engine.h"
#include "server/observe/metrics.h"

namespace deeppcr {

class Job;

// A loaded model version and its queue. A reload makes a new one; requests in progress keep theirs
// alive.
struct ServedModel {
  ServedModel(std::string model_name, int64_t model_version,
              std::shared_ptr<const LoadedModel> loaded, ModelMetrics* model_metrics)
      : name(std::move(model_name)),
        version(model_version),
        model(std::move(loaded)),
        metrics(model_metrics) {}

  const std::string name;
  const int64_t version;
  const std::shared_ptr<const LoadedModel> model;
  ModelMetrics* const metrics;

 private:
  friend class Schedule;
  std::deque<Job*> waiting_;       // batchable jobs, by arrival
  int64_t waiting_samples_ = 0;    // samples of waiting_
  int64_t alone_samples_ = 0;      // samples of the other jobs that wait
  int instances_ = 0;              // batches that are computed now
  double used_seconds_ = 0;        // the measure of fair shares
  double charged_seconds_ = 0;     // part of used_seconds_: estimates for batches computed now
  double seconds_per_sample_ = 0;  // as the last batch took
  CancelToken::Clock::time_point start_by_;  // latest start of the next batch of waiting_
};

// The times and the batch of one job.
struct JobTimings {
  bool queued = false;  // the job was in the queue, however it left
  double queue_seconds = 0;
  RunTimings run;             // the batch's, by ScaleToWall; zero for a job that runs alone
  int64_t batch_samples = 0;  // computed together, this job's included; 0: not computed
};

// One request in the queue. The batcher borrows it from Enqueue until it calls Done, exactly once,
// after which the job may be gone.
class Job {
 public:
  virtual ~Job() = default;

  // Does the work that costs more than a handler may spend, on a worker, before the job is
  // computed. On success a batchable job's run_item is complete. An error goes to Done.
  virtual absl::Status Prepare() { return absl::OkStatus(); }
  // Computes a job that is not batchable.
  virtual absl::Status RunAlone() { return absl::OkStatus(); }
  // status: OK if computed, see the reports; kCancelled, kDeadlineExceeded if dropped from the
  // queue; kUnavailable if the server stops; or the error of Prepare, RunAlone or LoadedModel::Run.
  virtual void Done(absl::Status status, const JobTimings& timings) = 0;

  // Set before Enqueue, constant from then on.
  std::shared_ptr<ServedModel> model;
  bool batchable = true;
  bool quick = false;       // batchable, and computed sooner than a thread wakes up
  bool patient = true;      // waits for others to share its batch, where the schedule allows that
  ResolvedOptions options;  // jobs equal in these run together
  int64_t samples = 1;
  int64_t bytes = 0;             // request and reply; given back by ReturnBytes
  CancelToken* token = nullptr;  // never null

  RunItem run_item;

  CancelToken::Clock::time_point enqueued() const { return enqueued_; }

 private:
  friend class Schedule;
  CancelToken::Clock::time_point enqueued_;
};

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_SCHEDULE_JOB_H_
