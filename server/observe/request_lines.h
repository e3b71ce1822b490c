// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_OBSERVE_REQUEST_LINES_H_
#define DEEPPCR_SERVER_OBSERVE_REQUEST_LINES_H_

#include <atomic>
#include <cstdint>

namespace deeppcr {

enum class RequestLine : uint8_t { kNone, kAccess, kSlow };

// The choice of requests that the log has a line of: a share of all, and each that was slow.
// Thread-safe.
struct RequestLines {
  const double access_rate = 0;   // [0, 1]: evenly spaced, without randomness
  const double slow_seconds = 0;  // from here on a request is slow; 0: none is

  // The line of a request that took so long, which is counted by this.
  RequestLine Next(double seconds) {
    const auto before = static_cast<double>(count.fetch_add(1, std::memory_order_relaxed));
    if (slow_seconds > 0 && seconds >= slow_seconds) return RequestLine::kSlow;
    const bool taken = static_cast<int64_t>((before + 1) * access_rate) !=
                       static_cast<int64_t>(before * access_rate);
    return taken ? RequestLine::kAccess : RequestLine::kNone;
  }

  std::atomic<int64_t> count{0};
};

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_OBSERVE_REQUEST_LINES_H_
