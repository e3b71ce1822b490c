// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_BASE_CANCEL_TOKEN_H_
#define DEEPPCR_KERNELS_BASE_CANCEL_TOKEN_H_

#include <atomic>
#include <chrono>
#include <cstdint>

namespace deeppcr {

// Reason to stop computing a request.
enum class StopReason : uint8_t { kNone, kCancelled, kDeadline };

// Deadline and cancel flag of one request, probed every few hundred microseconds of its
// computation. Cancel() may be called from any thread.
class CancelToken {
 public:
  using Clock = std::chrono::steady_clock;

  CancelToken() = default;
  // The token fires when `parent` fires, too; `parent` may be null and must outlive the token.
  explicit CancelToken(Clock::time_point deadline, const CancelToken* parent = nullptr)
      : deadline_(deadline), parent_(parent) {}

  void Cancel() { cancelled_.store(true, std::memory_order_relaxed); }
  bool cancelled() const {
    return cancelled_.load(std::memory_order_relaxed) ||
           (parent_ != nullptr && parent_->stop_reason() != StopReason::kNone);
  }
  Clock::time_point deadline() const { return deadline_; }
  bool expired() const {
    return deadline_ != Clock::time_point::max() && Clock::now() >= deadline_;
  }
  // Deadline and cancellation together count as the deadline: gRPC reports a deadline that passed
  // as a cancellation too.
  StopReason stop_reason() const {
    const bool was_cancelled = cancelled();  // before the clock: a deadline passes, then cancels
    if (expired()) return StopReason::kDeadline;
    return was_cancelled ? StopReason::kCancelled : StopReason::kNone;
  }
  // Stop reason at the time `now`, which the caller has read or made up.
  StopReason stop_reason(Clock::time_point now) const {
    if (deadline_ != Clock::time_point::max() && now >= deadline_) return StopReason::kDeadline;
    return cancelled() ? StopReason::kCancelled : StopReason::kNone;
  }

 private:
  std::atomic<bool> cancelled_{false};
  Clock::time_point deadline_ = Clock::time_point::max();
  const CancelToken* parent_ = nullptr;
};

// True if there is a token and it has fired; a token that has fired stays so.
inline bool Fired(const CancelToken* token) {
  return token != nullptr && token->stop_reason() != StopReason::kNone;
}

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_BASE_CANCEL_TOKEN_H_
