// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_SCHEDULE_JOB_H_
#define DEEPPCR_SERVER_SCHEDULE_JOB_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "kernels/engine.h"
#include "server/schedule/served_model.h"

namespace deeppcr {

// The times and the batch of one job.
struct JobTimings {
  bool queued = false;  // the job was in a queue, however it left
  double queue_seconds = 0;
  RunTimings run;             // the batch's, by ScaleToWall
  int64_t batch_samples = 0;  // computed together, this job's included; 0: not in a batch
  double back_seconds = 0;    // the batch's way back
  double lent_seconds = 0;    // what was computed in its pauses

  // The run with the way back, which is a part of its inference.
  RunTimings Inference() const {
    RunTimings all = run;
    all.solve_seconds += back_seconds;
    all.wall_seconds += back_seconds;
    return all;
  }
};

// One request in the queue. The batcher borrows it from Enqueue until it calls Done, exactly once,
// after which the job may be gone.
class Job {
 public:
  virtual ~Job() = default;

  // Completes run_item, on a worker, before the job is computed: does the work that costs more than
  // a handler may spend. An error goes to Done.
  virtual absl::Status Prepare() { return absl::OkStatus(); }
  // Completes back_item, on a worker, once run_item is computed. An error goes to Done.
  virtual absl::Status PrepareBack() { return absl::OkStatus(); }
  // Does, on a worker, what is left once back_item has gone back; what it takes back itself, it
  // takes by `go_back`, and long work of another kind it interrupts by `pause`, with the seconds
  // since it began or paused. An error goes to Done.
  virtual absl::Status FinishBack(GoBackFunction go_back,
                                  absl::FunctionRef<void(double seconds)> pause) {
    (void)go_back, (void)pause;
    return absl::OkStatus();
  }
  // status: OK if computed, see the reports; kCancelled, kDeadlineExceeded if dropped from the
  // queue; kUnavailable if the server stops; or the error of Prepare, PrepareBack,
  // FinishBack, LoadedSystem::Run or GoBack.
  virtual void Done(absl::Status status, const JobTimings& timings) = 0;

  // Set before Enqueue, constant from then on.
  std::shared_ptr<ServedModel> model;
  std::shared_ptr<const LoadedSystem>
      system;               // of the model; jobs equal in options have equal ones
  bool run_inline = false;  // computed sooner than a thread wakes up
  bool allow_delay = true;  // waits for others to share its batch, where the schedule allows that
  ResolvedOptions options;
  std::optional<BackwardOptions> back;  // set: the job goes back once its states are known
  bool solves = true;                   // false: its states are known before, and it goes back only
  int64_t samples = 1;
  double expected_seconds = 0;            // its part of a full batch, as planned; 0: not known
  bool may_wait_long = false;             // whatever wait is predicted, it is taken
  std::shared_ptr<ClientAccount> client;  // null: of no named client
  int64_t bytes = 0;                      // request and reply; given back by ReturnBytes
  CancelToken* token = nullptr;           // never null

  RunItem run_item;
  BackwardItem back_item;  // columns: constant from Enqueue on

  // What it costs, in samples: every cotangent is another way through all steps.
  int64_t work() const { return samples * (back.has_value() ? back_item.columns : 1); }

  // True if both may be computed in one batch. Cotangents count as work: few do not wait for many.
  bool GoesWith(const Job& other) const {
    return options == other.options && solves == other.solves && back == other.back &&
           (!back.has_value() || back_item.columns == other.back_item.columns);
  }

  CancelToken::Clock::time_point enqueued() const { return enqueued_; }
  // The seconds that it was expected to wait when it came.
  double predicted_wait() const { return predicted_wait_; }

 private:
  friend class Schedule;
  CancelToken::Clock::time_point enqueued_;
  double predicted_wait_ = 0;
  double cost_ = 0;  // in a unit that the jobs of its model share
};

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_SCHEDULE_JOB_H_
