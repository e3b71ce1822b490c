// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/thread_pool.h"

#include <algorithm>

namespace deeppcr {

ThreadPool::ThreadPool(int num_threads) {
  try {
    for (int i = 1; i < num_threads; ++i) helpers_.emplace_back([this] { Help(); });
  } catch (...) {  // the system has no more threads: those that there are must end first
    Stop();
    throw;
  }
}

ThreadPool::~ThreadPool() { Stop(); }

void ThreadPool::Stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

void ThreadPool::Run(int64_t count, int64_t most_threads, Function function, void* context) {
  const int64_t most_helpers =
      std::min({count, most_threads, static_cast<int64_t>(num_threads())}) - 1;
  if (most_helpers <= 0) {
    for (int64_t i = 0; i < count; ++i) function(context, i);
    return;
  }
  Loop loop{.function = function, .context = context, .count = count, .most_helpers = most_helpers};
  {
    std::lock_guard lock(mutex_);
    loop.following = loops_;
    loops_ = &loop;
  }
  // Helpers that are busy look for loops before they sleep.
  if (most_helpers == num_threads() - 1) {
    work_.notify_all();
  } else {
    for (int64_t i = 0; i < most_helpers; ++i) work_.notify_one();
  }
  loop.Work();
  std::unique_lock lock(mutex_);
  Remove(&loop);
  idle_.wait(lock, [&] { return loop.helpers == 0; });
}

void ThreadPool::Help() {
  std::unique_lock lock(mutex_);
  for (;;) {
    Loop* loop = nullptr;
    work_.wait(lock, [&] { return stopping_ || (loop = OpenLoop()) != nullptr; });
    if (loop == nullptr) return;
    ++loop->helpers;
    lock.unlock();
    loop->Work();
    lock.lock();
    if (--loop->helpers == 0) idle_.notify_all();
  }
}

ThreadPool::Loop* ThreadPool::OpenLoop() {
  for (Loop* loop = loops_; loop != nullptr; loop = loop->following) {
    if (loop->helpers < loop->most_helpers && loop->next.load() < loop->count) return loop;
  }
  return nullptr;
}

void ThreadPool::Remove(Loop* loop) {
  Loop** link = &loops_;
  while (*link != loop) link = &(*link)->following;
  *link = loop->following;
}

}  // namespace deeppcr
