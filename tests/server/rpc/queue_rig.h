// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_SERVER_RPC_QUEUE_RIG_H_
#define DEEPPCR_TESTS_SERVER_RPC_QUEUE_RIG_H_

// What tests of calls and of streams through a queue share.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <ctime>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "grpcpp/grpcpp.h"

namespace deeppcr {

inline grpc::ByteBuffer BytesOf(const std::string& text) {
  const grpc::Slice slice(text);
  return grpc::ByteBuffer(&slice, 1);
}
inline std::string TextOf(const grpc::ByteBuffer& bytes) {
  grpc::Slice slice;
  if (!bytes.Valid() || !bytes.DumpToSingleSlice(&slice).ok()) return "invalid";
  return {reinterpret_cast<const char*>(slice.begin()), slice.size()};
}

// Seconds of all processors that this process takes within so long.
inline double BusyWithin(std::chrono::milliseconds time) {
  const auto busy = [] {
    timespec now = {};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  };
  const double before = busy();
  std::this_thread::sleep_for(time);
  return busy() - before;
}

// A thread that looks takes all of its core, or what others leave it. Asks until one does: a
// request that comes while the thread before has yet to note the end of its own is not a lone one.
inline constexpr double kLooking = 0.02;
inline bool ComesToLook(const std::function<void()>& ask) {
  for (int i = 0; i < 300; ++i) {
    ask();
    if (BusyWithin(std::chrono::milliseconds(100)) > kLooking) return true;
  }
  return false;
}
// What was under way has had its time.
inline bool ComesToSleep() {
  for (int i = 0; i < 300; ++i) {
    if (BusyWithin(std::chrono::milliseconds(100)) < kLooking)
      return BusyWithin(std::chrono::milliseconds(200)) < kLooking;
  }
  return false;
}

// The events of all calls of a test.
struct EventCounts {
  std::mutex mutex;
  std::condition_variable changed;
  std::atomic<int64_t>* unanswered = nullptr;
  int arrived = 0, cancelled = 0, done = 0;

  void Count(int* what) {
    const std::lock_guard lock(mutex);
    ++*what;
    changed.notify_all();
  }
  bool Wait(const int* what, int count) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, std::chrono::seconds(30), [&] { return *what >= count; });
  }
};

}  // namespace deeppcr

#endif  // DEEPPCR_TESTS_SERVER_RPC_QUEUE_RIG_H_
