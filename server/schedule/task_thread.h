// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_SCHEDULE_TASK_THREAD_H_
#define DEEPPCR_SERVER_SCHEDULE_TASK_THREAD_H_

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace deeppcr {

// One thread for tasks that take seconds and run one after the other, in the order in which they
// came: loads and unloads of models on one, comparisons on another. Thread-safe.
class TaskThread {
 public:
  explicit TaskThread(size_t max_waiting = 16);
  ~TaskThread();

  // Queues a task; returns false, and does not run it, if too many wait or Stop was called. A task
  // with an owner may be withdrawn.
  [[nodiscard]] bool Post(std::function<void()> task, const void* owner = nullptr);

  // Forgets the task of this owner, if it waits: returns true if so, false if it runs, has run or
  // was never queued.
  [[nodiscard]] bool Withdraw(const void* owner);

  // Runs the tasks that wait, then joins the thread. Idempotent.
  void Stop();

 private:
  struct Task {
    std::function<void()> run;
    const void* owner = nullptr;
  };

  void Run();

  const size_t max_waiting_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Task> tasks_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_SCHEDULE_TASK_THREAD_H_
