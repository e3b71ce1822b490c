// SPDX-License-Identifier: Apache-2.0
#include "server/observe/log_queue.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

namespace deeppcr {

struct LogQueue::State {
  Writer writer;
  Notice notice;
  size_t max_bytes = 0;

  std::mutex mutex;
  std::condition_variable changed;
  // The members below are guarded by mutex.
  std::deque<std::string> lines;
  size_t bytes = 0;
  int64_t dropped = 0;
  bool writing = false;
  bool closed = false;
};

LogQueue::LogQueue(Writer writer, Notice notice, size_t max_bytes)
    : state_(std::make_shared<State>()) {
  state_->writer = std::move(writer);
  state_->notice = std::move(notice);
  state_->max_bytes = max_bytes;
  // Detached: a thread that is stuck in a write cannot be joined. It keeps the state alive.
  std::thread([state = state_] { Run(state); }).detach();
}

LogQueue::~LogQueue() {
  Flush();
  {
    std::lock_guard<std::mutex> lock(state_->mutex);
    state_->closed = true;
  }
  state_->changed.notify_all();
}

void LogQueue::Push(std::string line) {
  {
    std::lock_guard<std::mutex> lock(state_->mutex);
    if (state_->bytes + line.size() > state_->max_bytes) {
      ++state_->dropped;
      return;
    }
    state_->bytes += line.size();
    state_->lines.push_back(std::move(line));
  }
  state_->changed.notify_all();
}

bool LogQueue::Flush() {
  std::unique_lock<std::mutex> lock(state_->mutex);
  return state_->changed.wait_for(lock, kPatience,
                                  [this] { return state_->lines.empty() && !state_->writing; });
}

void LogQueue::Run(const std::shared_ptr<State>& state) {
  std::unique_lock<std::mutex> lock(state->mutex);
  while (true) {
    state->changed.wait(lock, [&] { return state->closed || !state->lines.empty(); });
    if (state->lines.empty()) return;
    std::string line = std::move(state->lines.front());
    state->lines.pop_front();
    state->writing = true;
    lock.unlock();
    state->writer(line);
    lock.lock();
    state->bytes -= line.size();
    if (state->lines.empty() && state->dropped > 0) {
      state->lines.push_back(state->notice(std::exchange(state->dropped, 0)));
      state->bytes += state->lines.back().size();
    }
    state->writing = false;
    state->changed.notify_all();
  }
}

}  // namespace deeppcr
