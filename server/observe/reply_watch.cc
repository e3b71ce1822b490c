// SPDX-License-Identifier: Apache-2.0
#include "server/observe/reply_watch.h"

#include <algorithm>
#include <utility>

namespace deeppcr {
namespace {

using std::chrono::milliseconds;

// Cancelling is work for the transport too: many at once must leave room for other calls.
constexpr int kCancelledAtOnce = 64;
constexpr milliseconds kShortPause(10);
constexpr milliseconds kLongPause(1000);

}  // namespace

ReplyWatch::ReplyWatch(milliseconds patience) : patience_(patience), thread_([this] { Run(); }) {}

ReplyWatch::~ReplyWatch() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stop_.notify_all();
  thread_.join();
}

void ReplyWatch::Add(Reply* reply, int64_t bytes) {
  const milliseconds transfer(bytes * 1000 / kLeastBytesPerSecond);
  const Clock::time_point end = Clock::now() + patience_ + transfer;
  std::lock_guard lock(mutex_);
  reply->place = replies_.emplace(end, reply);
  reply->listed = true;
}

void ReplyWatch::Remove(Reply* reply) {
  std::unique_lock lock(mutex_);
  if (std::exchange(reply->listed, false)) replies_.erase(reply->place);
  // Cancelling a call may end it, and so remove it, on the watch's own thread.
  if (std::this_thread::get_id() == thread_.get_id()) return;
  cancelled_.wait(lock, [&] { return cancelling_ != reply; });
}

void ReplyWatch::Run() {
  const milliseconds pause = std::clamp(patience_ / 4, kShortPause, kLongPause);
  std::unique_lock lock(mutex_);
  bool more = false;
  while (!stopping_) {
    stop_.wait_for(lock, more ? kShortPause : pause);
    more = CancelOverdue(lock);
  }
}

// Returns true if overdue replies are left. The lock is open while a call is cancelled: every other
// call that is answered or done takes it.
bool ReplyWatch::CancelOverdue(std::unique_lock<std::mutex>& lock) {
  for (int i = 0; i < kCancelledAtOnce; ++i) {
    if (replies_.empty() || replies_.begin()->first > Clock::now()) return false;
    Reply* reply = replies_.begin()->second;
    replies_.erase(replies_.begin());
    reply->listed = false;
    cancelling_ = reply;
    const std::function<void()> cancel = std::move(reply->cancel);  // cancel may end the call
    lock.unlock();
    cancel();
    lock.lock();
    cancelling_ = nullptr;
    cancelled_.notify_all();
  }
  return true;
}

}  // namespace deeppcr
