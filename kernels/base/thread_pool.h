// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_BASE_THREAD_POOL_H_
#define DEEPPCR_KERNELS_BASE_THREAD_POOL_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace deeppcr {

// Threads that help callers with loops. The caller works too, so a pool of n threads has n - 1
// helpers, and one task runs on the caller alone without touching a lock. Nothing is allocated
// after construction. Thread-safe: several callers may run loops at a time.
class ThreadPool {
 public:
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(helpers_.size()) + 1; }

  // Calls body(i) for i = 0..count-1, in any order, from up to `most_threads` threads; returns when
  // all calls have returned. Wakes no more threads than may help.
  template <class Body>
  void ParallelFor(int64_t count, Body& body, int64_t most_threads = INT64_MAX) {
    Run(
        count, most_threads, [](void* context, int64_t i) { (*static_cast<Body*>(context))(i); },
        &body);
  }

 private:
  using Function = void (*)(void* context, int64_t index);
  struct Loop {
    Function function;
    void* context;
    int64_t count;
    int64_t most_helpers;
    std::atomic<int64_t> next{0};
    int64_t helpers = 0;  // inside the loop; guarded by mutex_
    Loop* following = nullptr;

    void Work() {
      for (int64_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) function(context, i);
    }
  };

  void Run(int64_t count, int64_t most_threads, Function function, void* context);
  void Help();
  void Stop();
  Loop* OpenLoop();  // a loop that a helper may join, or null; mutex_ held
  void Remove(Loop* loop);

  std::mutex mutex_;
  std::condition_variable work_, idle_;
  Loop* loops_ = nullptr;
  bool stopping_ = false;
  std::vector<std::thread> helpers_;
};

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_BASE_THREAD_POOL_H_
