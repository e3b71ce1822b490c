// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_OBSERVE_REPLY_WATCH_H_
#define DEEPPCR_SERVER_OBSERVE_REPLY_WATCH_H_

// A client that stops reading would keep its reply, and its share of the byte budget, for ever:
// gRPC puts no limit on the time a reply takes. The watch cancels calls answered long ago.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

namespace deeppcr {

// Thread-safe.
class ReplyWatch {
 public:
  using Clock = std::chrono::steady_clock;

  // A slow connection is not a stalled one: beyond the patience a reply gets the time that its
  // bytes take at this rate.
  static constexpr int64_t kLeastBytesPerSecond = int64_t{128} << 10;

  struct Reply;
  using Overdue = std::multimap<Clock::time_point, Reply*>;

  // One answered call. Not moved or destroyed between Add and Remove.
  struct Reply {
    std::function<void()> cancel;  // may call Remove, on this thread or another
    Overdue::iterator place;
    bool listed = false;
  };

  explicit ReplyWatch(std::chrono::milliseconds patience);
  ~ReplyWatch();

  // Calls reply->cancel once if the reply is still listed when its time ends.
  void Add(Reply* reply, int64_t bytes);
  // Removes any reply, listed or not; then cancel is neither called nor running on another thread.
  void Remove(Reply* reply);

 private:
  void Run();
  bool CancelOverdue(std::unique_lock<std::mutex>& lock);

  const std::chrono::milliseconds patience_;
  std::mutex mutex_;
  std::condition_variable stop_, cancelled_;
  // Guarded by mutex_.
  Overdue replies_;                    // by the time they are given up
  const Reply* cancelling_ = nullptr;  // only compared: it may be gone
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_OBSERVE_REPLY_WATCH_H_
