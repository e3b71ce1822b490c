// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_SCHEDULE_BATCHER_H_
#define DEEPPCR_SERVER_SCHEDULE_BATCHER_H_

// The schedule's threads: a fixed set of workers, and no other thread between a request's arrival
// and its reply (one more looks for jobs that expire in the queue). The schedule decides what the
// workers compute next; they hold no lock while they compute. A short job that finds nothing to
// wait for is computed inline, where it arrives: waking a worker would take longer. A worker that
// takes thousands of cotangents back serves short batches in between, for as long as its own work
// took, so that no number of long requests keeps short ones waiting.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "kernels/engine.h"
#include "server/schedule/job.h"
#include "server/schedule/schedule.h"

namespace deeppcr {

struct BatcherOptions {
  ScheduleOptions schedule;
  int64_t max_bytes = int64_t{512} << 20;      // held by all jobs from Enqueue to ReturnBytes
  std::chrono::microseconds inline_pause{50};  // jobs further apart come one by one
  // Jobs that wait behind long ones are told this soon that they are cancelled or past deadline.
  std::chrono::milliseconds sweep_interval{10};
};

// Thread-safe.
class Batcher {
 public:
  using Clock = CancelToken::Clock;
  // insists: it is not cancelled for jobs. True: it was cancelled, and insists when its time comes.
  using IdleTask = std::function<bool(const CancelToken&, bool insists)>;

  explicit Batcher(const BatcherOptions& options);
  // Shuts down, unless Shutdown was called.
  ~Batcher();

  // Queues a job; computes it before returning if it may run inline, a worker is free, nothing else
  // waits or is computed inline, and the last jobs came one by one. Errors (the job is not taken,
  // Done will not be called): those of Schedule::Admit, kUnavailable after Shutdown,
  // kResourceExhausted where all jobs hold too many bytes.
  absl::Status Enqueue(Job* job);

  // Offers work that runs only while no job waits and is cancelled through its token as soon as a
  // job finds no other worker; a worker that becomes free after insists_at takes it before jobs,
  // and to its end. At most one runs at a time; an offer while another waits or runs, or after
  // Shutdown, is dropped and gives false.
  bool OfferIdleTask(IdleTask task, Clock::time_point insists_at = Clock::time_point::max());

  // Takes bytes for memory that no job stands for, of this client if it has a name. Errors:
  // kResourceExhausted.
  absl::Status TakeBytes(int64_t bytes, ClientAccount* client = nullptr);
  // Returns the bytes of TakeBytes, or of an accepted job once its request and reply are gone from
  // memory: a finished reply that its client does not read still takes room.
  void ReturnBytes(int64_t bytes, ClientAccount* client = nullptr);

  // Lets no batch wait for more requests to come from now on; for draining.
  void Flush();

  // Cancels the tokens of running jobs; jobs that wait get Done(kUnavailable).
  void CancelAll();

  // Refuses new jobs, cancels all and joins the workers; does not wait for calls of Enqueue.
  // Idempotent.
  void Shutdown();

  // The budget of bytes; a request that is alone may take more.
  int64_t max_bytes() const { return options_.max_bytes; }

  // Seconds that the workers have computed, together.
  double BusySeconds() const;
  // Bytes that jobs hold.
  int64_t held_bytes() const { return bytes_.load(); }
  int workers() const { return static_cast<int>(workers_.size()); }

  // For how many seconds the batch that has been computed for longest has been.
  double LongestRunSeconds() const;

  // Samples that wait for this model.
  int64_t Depth(const ServedModel& model) const;

 private:
  struct Work;
  struct Worker {
    std::thread thread;
    std::vector<Job*> running;     // guarded by mutex_
    Clock::time_point since = {};  // the beginning of what is running
    // Stands for this one while it serves others in between; null where it does not.
    std::unique_ptr<Worker> in_between;

    void Begin(const Work& work);
  };

  void RunWorker(Worker* worker);
  void Serve(Worker* worker, Work* work);
  void Finish(Worker* worker, Work* work);
  std::unique_ptr<Work> TakeInline(const Job& job);
  bool TakeWork(Worker* worker, Work* work);
  bool TakeNow(Worker* worker, Work* work);
  bool WakesOne();
  void Sleep(std::unique_lock<std::mutex>& lock);
  bool Release(Worker* worker, Work* work, double seconds);
  static void DropExpired(const JobList& expired);
  absl::Status Admit(Job* job, JobList* expired);
  absl::Status CheckBytes(int64_t bytes, const ClientAccount* client) const;
  void AddBytes(int64_t bytes, ClientAccount* client);
  void Compute(Worker* worker, Work* work);
  static absl::Status Solve(Work* work);
  void GoBack(Worker* worker, Work* work);
  double ServeInBetween(const ServedModel& lender, Worker* worker, Work* work, double seconds);
  bool TakeInBetween(const ServedModel& lender, Worker* worker, Work* work);
  void RunIdle(Work* work);
  void Sweep();

  const BatcherOptions options_;
  std::atomic<int64_t> bytes_{0};  // grows with mutex_ held only
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  // The members below are guarded by mutex_.
  Schedule schedule_;
  double busy_seconds_ = 0;  // of batches that have ended
  IdleTask idle_task_;
  Clock::time_point idle_insists_at_;
  bool idle_was_cancelled_ = false;
  CancelToken* idle_token_ = nullptr;  // the token of the idle task that runs
  bool idle_insists_ = false;          // of that task
  int sleeping_ = 0;
  int waking_ = 0;  // of the sleeping workers, those that somebody wakes
  bool stopping_ = false;
  std::vector<std::unique_ptr<Worker>> workers_;
  Clock::time_point last_arrival_;
  int lone_arrivals_ = 0;        // arrivals in a row with a pause before each
  Worker caller_;                // stands for the thread that computes a job inline
  std::unique_ptr<Work> spare_;  // work that such a thread has done with, for the next one
  JobList left_to_sweeper_;      // expired, to be told so by that thread
  std::condition_variable stop_;
  std::thread sweeper_;
};

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_SCHEDULE_BATCHER_H_
