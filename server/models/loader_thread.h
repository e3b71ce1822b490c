// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_MODELS_LOADER_THREAD_H_
#define DEEPPCR_SERVER_MODELS_LOADER_THREAD_H_

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace deeppcr {

// One thread for tasks that take seconds and must run one after the other: loading and unloading
// models. Thread-safe.
class LoaderThread {
 public:
  explicit LoaderThread(size_t max_waiting = 16);
  ~LoaderThread();

  // Queues a task; returns false, and does not run it, if too many wait or Stop was called.
  [[nodiscard]] bool Post(std::function<void()> task);

  // Runs the tasks that wait, then joins the thread. Idempotent.
  void Stop();

 private:
  void Run();

  const size_t max_waiting_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> tasks_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_MODELS_LOADER_THREAD_H_
