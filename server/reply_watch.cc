// SPDX-License-Identifier: Apache-2.0
#include "server/reply_watch.h"

#include <algorithm>

namespace deeppcr {

ReplyWatch::ReplyWatch(std::chrono::milliseconds patience)
    : patience_(patience), thread_([this] { Run(); }) {}

ReplyWatch::~ReplyWatch() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void ReplyWatch::Add(Reply* reply) {
  std::lock_guard lock(mutex_);
  reply->answered = Clock::now();
  reply->place = replies_.insert(replies_.end(), reply);
  reply->listed = true;
}

void ReplyWatch::Remove(Reply* reply) {
  std::lock_guard lock(mutex_);
  if (!reply->listed) return;
  replies_.erase(reply->place);
  reply->listed = false;
}

void ReplyWatch::Run() {
  // Often enough to be about on time, and never busy.
  const auto pause =
      std::clamp(patience_ / 4, std::chrono::milliseconds(10), std::chrono::milliseconds(1000));
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    wake_.wait_for(lock, pause);
    CancelOverdue();
  }
}

void ReplyWatch::CancelOverdue() {
  while (!replies_.empty() && Clock::now() - replies_.front()->answered >= patience_) {
    Reply* reply = replies_.front();
    Remove(reply);
    reply->cancel();
  }
}

}  // namespace deeppcr
