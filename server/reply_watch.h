// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_REPLY_WATCH_H_
#define DEEPPCR_SERVER_REPLY_WATCH_H_

// A client that stops reading would keep its reply, and its share of the byte budget, for ever:
// gRPC puts no limit on the time a reply takes. Here a call that was answered long ago is
// cancelled.

#include <chrono>
#include <condition_variable>
#include <functional>
#include <list>
#include <mutex>
#include <thread>

namespace deeppcr {

// Thread-safe.
class ReplyWatch {
 public:
  using Clock = std::chrono::steady_clock;

  // One answered call. Not moved or destroyed between Add and Remove.
  struct Reply {
    std::function<void()> cancel;  // may call Remove, on this thread or another
    Clock::time_point answered;
    std::list<Reply*>::iterator place;
    bool listed = false;
  };

  explicit ReplyWatch(std::chrono::milliseconds patience);
  ~ReplyWatch();

  // Calls reply->cancel once if the reply is still listed when patience ends.
  void Add(Reply* reply);
  // After it cancel is not called and not running on another thread. For any reply, listed or not.
  void Remove(Reply* reply);

 private:
  void Run();
  void CancelOverdue();

  const std::chrono::milliseconds patience_;
  // Recursive, because cancelling a call may end it, and so remove it, on the same thread.
  std::recursive_mutex mutex_;
  std::condition_variable_any wake_;
  // Guarded by mutex_.
  std::list<Reply*> replies_;  // oldest first
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_REPLY_WATCH_H_
