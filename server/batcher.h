// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_BATCHER_H_
#define DEEPPCR_SERVER_BATCHER_H_

// The scheduler: one bounded queue per model version, a fixed set of workers, and no other thread
// between a request's arrival and its reply. A worker takes all that wait and may be computed
// together, never waits for more to come, and holds no lock while it computes. A quick job that
// finds nothing to wait for is computed where it arrives: waking a worker would take longer.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "kernels/engine.h"
#include "server/metrics.h"

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
  friend class Batcher;
  // Guarded by the batcher's mutex.
  std::deque<Job*> waiting_;
  int64_t waiting_samples_ = 0;  // of batchable jobs
  int64_t alone_samples_ = 0;    // of the others
  bool listed_ = false;          // among the batcher's ready_ queues
};

// How a job was served.
struct JobTimings {
  bool queued = false;  // it was in the queue, however it left
  double queue_seconds = 0;
  RunTimings run;             // of the batch, by ScaleToWall; zero for a job that runs alone
  int64_t batch_samples = 0;  // computed together, this job's included; 0: not computed
};

// One request in the queue. The batcher borrows it from Enqueue until it calls Done, exactly once,
// after which the job may be gone.
class Job {
 public:
  virtual ~Job() = default;

  // What costs more than a handler may spend: runs on a worker before the job is computed. On
  // success a batchable job's run_item() is complete. An error goes to Done.
  virtual absl::Status Prepare() { return absl::OkStatus(); }
  // The work of a job that is not batchable.
  virtual absl::Status RunAlone() { return absl::OkStatus(); }
  // OK: computed, see the reports. kCancelled, kDeadlineExceeded: dropped from the queue.
  // kUnavailable: the server stops. Or the error of Prepare, RunAlone or LoadedModel::Run.
  virtual void Done(absl::Status status, const JobTimings& timings) = 0;

  // Set before Enqueue, constant from then on.
  std::shared_ptr<ServedModel> model;
  bool batchable = true;
  bool quick = false;       // batchable, and computed sooner than a thread wakes up
  ResolvedOptions options;  // jobs equal in these run together
  int64_t samples = 1;
  int64_t bytes = 0;             // request and reply; given back by ReturnBytes
  CancelToken* token = nullptr;  // never null

  RunItem run_item;

 private:
  friend class Batcher;
  CancelToken::Clock::time_point enqueued_;
};

struct BatcherOptions {
  int workers = 2;
  int64_t max_queue_samples = 1024;           // per model version, and per kind of job
  int64_t max_bytes = int64_t{512} << 20;     // of all jobs from Enqueue to ReturnBytes
  std::chrono::microseconds quick_pause{50};  // jobs further apart come one by one
};

// Thread-safe.
class Batcher {
 public:
  using IdleTask = std::function<void(const CancelToken&)>;

  explicit Batcher(const BatcherOptions& options);
  // Shutdown, if that was not called.
  ~Batcher();

  // Queues a job; computes it before returning if it is quick, a worker is free, nothing else waits
  // or is computed in this way, and the last jobs came one by one. A job larger than the whole
  // queue is accepted by an empty one. Errors (the job is not taken, Done will not be called):
  // kCancelled, kDeadlineExceeded, kUnavailable after Shutdown, kResourceExhausted with the queue's
  // depth.
  absl::Status Enqueue(Job* job);

  // Offers work that runs only while no job waits and is cancelled through its token as soon as a
  // job finds no other worker. At most one runs at a time; an offer while another waits is dropped
  // and gives false.
  bool OfferIdleTask(IdleTask task);

  // For memory that no job stands for. Errors: kResourceExhausted.
  absl::Status TakeBytes(int64_t bytes);
  // Of an accepted job, once its request and reply are gone from memory: a finished reply that its
  // client does not read still takes room.
  void ReturnBytes(int64_t bytes);

  // Cancels the tokens of running jobs; those that wait get Done(kUnavailable).
  void CancelAll();

  // Refuses new jobs, cancels all and joins the workers; does not wait for calls of Enqueue.
  // Idempotent.
  void Shutdown();

  // Samples that wait for this model.
  int64_t Depth(const ServedModel& model) const;

 private:
  struct Work;
  struct Worker {
    std::thread thread;
    std::vector<Job*> running;  // guarded by mutex_
  };
  using JobList = std::vector<Job*>;

  void RunWorker(Worker* worker);
  void Serve(Worker* worker, Work* work);
  void Finish(Worker* worker, Work* work);
  bool TakeQuick(const Job& job, Work* work);
  bool TakeWork(Worker* worker, Work* work);
  bool HasWork() const;
  bool PickAlone() const;
  void TakeBatch(Work* work);
  void TakeAlone(Work* work);
  void Release(Worker* worker, const Work& work);
  static void AddWaiting(const Job& job, int64_t change);
  static void ForgetWaiting(const Job* job);
  JobList RemoveDead(ServedModel& model);
  static void DropDead(const JobList& dead);
  absl::Status Admit(Job* job, JobList* dead);
  absl::Status CheckBytes(int64_t bytes) const;
  void ComputeBatch(Work* work);
  void ComputeAlone(Work* work);
  void RunIdle(Work* work);

  const BatcherOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  // All below are guarded by mutex_.
  std::deque<std::shared_ptr<ServedModel>> ready_;  // with batchable jobs; round robin
  std::deque<Job*> alone_;
  int alone_running_ = 0;
  bool last_was_alone_ = false;
  IdleTask idle_task_;
  CancelToken* idle_token_ = nullptr;  // of the idle task that runs
  int sleeping_ = 0;
  int64_t bytes_ = 0;
  bool stopping_ = false;
  std::vector<std::unique_ptr<Worker>> workers_;
  CancelToken::Clock::time_point last_arrival_;
  int lone_arrivals_ = 0;  // in a row, a pause before each
  Worker caller_;          // stands for the thread that computes a quick job
};

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_BATCHER_H_
