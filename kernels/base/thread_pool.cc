// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/thread_pool.h"

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

void ThreadPool::Run(int64_t count, Function function, void* context) {
  if (count <= 1 || helpers_.empty()) {
    for (int64_t i = 0; i < count; ++i) function(context, i);
    return;
  }
  Loop loop{.function = function, .context = context, .count = count};
  {
    std::lock_guard lock(mutex_);
    loop.following = loops_;
    loops_ = &loop;
  }
  work_.notify_all();
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
    if (loop->next.load() < loop->count) return loop;
  }
  return nullptr;
}

void ThreadPool::Remove(Loop* loop) {
  Loop** link = &loops_;
  while (*link != loop) link = &(*link)->following;
  *link = loop->following;
}

}  // namespace deeppcr
