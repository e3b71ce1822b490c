// SPDX-License-Identifier: Apache-2.0
#include "server/observe/reply_watch.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace deeppcr {
namespace {

using std::chrono::milliseconds;

// Cancelling is work for the transport too: many at once must leave room for other calls.
constexpr int kCancelledAtOnce = 64;
constexpr milliseconds kShortPause(10);
constexpr milliseconds kLongPause(1000);

void Unlink(ReplyWatch::Node* node) {
  node->before->after = node->after;
  node->after->before = node->before;
}

void LinkBefore(ReplyWatch::Node* node, ReplyWatch::Node* next) {
  node->before = next->before;
  node->after = next;
  node->before->after = next->before = node;
}

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
  const auto transfer = static_cast<uint64_t>(bytes * 1000 / kLeastBytesPerSecond);
  const auto list = std::min<size_t>(std::bit_width(transfer), lists_.size() - 1);
  const milliseconds extra(transfer == 0 ? 0 : int64_t{1} << list);
  std::lock_guard lock(mutex_);
  reply->end = Clock::now() + patience_ + extra;
  LinkBefore(reply, &lists_[list]);
  reply->listed = true;
}

void ReplyWatch::Remove(Reply* reply) {
  std::unique_lock lock(mutex_);
  if (std::exchange(reply->listed, false)) Unlink(reply);
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

// The caller holds mutex_. Null if no reply is overdue.
ReplyWatch::Reply* ReplyWatch::FirstOverdue() {
  const Clock::time_point now = Clock::now();
  for (const Node& list : lists_) {
    if (list.after == &list) continue;
    auto* const first = static_cast<Reply*>(list.after);
    if (first->end <= now) return first;
  }
  return nullptr;
}

// Returns true if overdue replies are left. The lock is open while a call is cancelled: every other
// call that is answered or done takes it.
bool ReplyWatch::CancelOverdue(std::unique_lock<std::mutex>& lock) {
  for (int i = 0; i < kCancelledAtOnce; ++i) {
    Reply* const reply = FirstOverdue();
    if (reply == nullptr) return false;
    Unlink(reply);
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
