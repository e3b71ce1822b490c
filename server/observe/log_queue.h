// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_OBSERVE_LOG_QUEUE_H_
#define DEEPPCR_SERVER_OBSERVE_LOG_QUEUE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace deeppcr {

// Lines on their way to a writer that may stall, such as a full pipe: a thread of its own writes,
// and whoever logs never waits for it. Thread-safe.
class LogQueue {
 public:
  using Writer = std::function<void(std::string_view line)>;
  using Notice = std::function<std::string(int64_t dropped)>;

  // At most max_bytes wait. Lines beyond that are dropped, and once the writer has caught up it
  // gets notice(number of dropped lines). Neither function may refer to objects that die with the
  // queue: a stalled writer is left behind.
  LogQueue(Writer writer, Notice notice, size_t max_bytes = size_t{1} << 20);
  // Flushes for at most kPatience.
  ~LogQueue();
  LogQueue(const LogQueue&) = delete;
  LogQueue& operator=(const LogQueue&) = delete;

  void Push(std::string line);

  // Waits until all is written; false if that takes more than kPatience.
  bool Flush();

  static constexpr std::chrono::milliseconds kPatience{1000};

 private:
  struct State;
  static void Run(const std::shared_ptr<State>& state);

  const std::shared_ptr<State> state_;
};

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_OBSERVE_LOG_QUEUE_H_
