// SPDX-License-Identifier: Apache-2.0
#include "server/models/loader_thread.h"

#include <utility>

namespace deeppcr {

LoaderThread::LoaderThread(size_t max_waiting)
    : max_waiting_(max_waiting), thread_([this] { Run(); }) {}

LoaderThread::~LoaderThread() { Stop(); }

bool LoaderThread::Post(std::function<void()> task) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (stopping_ || tasks_.size() >= max_waiting_) return false;
    tasks_.push_back(std::move(task));
  }
  wake_.notify_one();
  return true;
}

void LoaderThread::Stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void LoaderThread::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    const std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    lock.lock();
  }
}

}  // namespace deeppcr
