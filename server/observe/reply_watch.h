// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_OBSERVE_REPLY_WATCH_H_
#define DEEPPCR_SERVER_OBSERVE_REPLY_WATCH_H_

// A client that stops reading would keep its reply, and its share of the byte budget, for ever:
// gRPC puts no limit on the time a reply takes. The watch cancels calls answered long ago.

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>

namespace deeppcr {

// Thread-safe.
class ReplyWatch {
 public:
  using Clock = std::chrono::steady_clock;

  // A slow connection is not a stalled one: beyond the patience a reply gets the time that its
  // bytes take at this rate, rounded up to a power of two of milliseconds.
  static constexpr int64_t kLeastBytesPerSecond = int64_t{128} << 10;

  // Neighbours in a list; a list is a ring that begins and ends with a node of its own.
  struct Node {
    Node *before = this, *after = this;
  };
  // One answered call. Not moved or destroyed between Add and Remove.
  struct Reply : Node {
    std::function<void()> cancel;  // may call Remove, on this thread or another
    Clock::time_point end{};       // the time when it is given up
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
  Reply* FirstOverdue();
  bool CancelOverdue(std::unique_lock<std::mutex>& lock);

  const std::chrono::milliseconds patience_;
  std::mutex mutex_;
  std::condition_variable stop_, cancelled_;
  // Guarded by mutex_.
  // Replies by the logarithm of the time that they get beyond the patience: all of a list get the
  // same, so each list is in the order of their ends, and neither end of a reply costs a search.
  std::array<Node, 48> lists_;
  const Reply* cancelling_ = nullptr;  // only compared: it may be gone
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_OBSERVE_REPLY_WATCH_H_
