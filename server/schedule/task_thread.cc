// SPDX-License-Identifier: Apache-2.0
#include "server/schedule/task_thread.h"

#include <utility>

namespace deeppcr {

TaskThread::TaskThread(size_t max_waiting)
    : max_waiting_(max_waiting), thread_([this] { Run(); }) {}

TaskThread::~TaskThread() { Stop(); }

bool TaskThread::Post(std::function<void()> task, const void* owner) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (stopping_ || tasks_.size() >= max_waiting_) return false;
    tasks_.push_back({std::move(task), owner});
  }
  wake_.notify_one();
  return true;
}

bool TaskThread::Withdraw(const void* owner) {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::erase_if(tasks_, [=](const Task& task) { return task.owner == owner; }) > 0;
}

void TaskThread::Stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void TaskThread::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    const Task task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task.run();
    lock.lock();
  }
}

}  // namespace deeppcr
