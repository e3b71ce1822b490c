// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_RPC_POLL_POLICY_H_
#define DEEPPCR_SERVER_RPC_POLL_POLICY_H_

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace deeppcr {

// When a thread that waits for calls looks for the next one before it sleeps: while calls come one
// by one, and where that brings them sooner. Whether it does is tried, since it depends on what
// nobody tells: a client that waits for its answer calls sooner, one with a clock of its own does
// not, and one that has to share the core with the looking thread calls later. Not thread-safe.
class PollPolicy {
 public:
  using Duration = std::chrono::nanoseconds;
  static constexpr int kLoneCalls = 8;  // one by one, until looking is thought of
  static constexpr int kTrial = 128;    // calls with, and as many without
  static constexpr int kKept = 4096;    // lone calls for which the better way is kept
  static constexpr double kGain = 0.9;  // of the time between calls: what pays
  // What a pause counts for at most: one alone is not to decide a trial.
  static constexpr Duration kLongest = std::chrono::milliseconds(1);

  // always: looks while calls come one by one, without a trial.
  explicit PollPolicy(bool always) : always_(always) {}

  // Notes a call that came so long after the one before. alone: none was unanswered.
  void Came(bool alone, Duration after) {
    if (!alone) {
      lone_calls_ = 0;
    } else if (lone_calls_ < kLoneCalls) {
      ++lone_calls_;
    } else if (!always_) {
      Try(std::min(after, kLongest));
    }
  }

  // Tells whether to look now, when every call has its answer.
  bool Looks() const { return lone_calls_ == kLoneCalls && (always_ || looks_); }

 private:
  enum class Phase { kWithout, kWith, kKeeps };

  void Try(Duration after) {
    sum_ += after;
    if (++calls_ < (phase_ == Phase::kKeeps ? kKept : kTrial)) return;
    if (phase_ == Phase::kWithout) {
      without_ = sum_;
      looks_ = true;
      phase_ = Phase::kWith;
    } else if (phase_ == Phase::kWith) {
      looks_ = sum_ < kGain * without_;
      phase_ = Phase::kKeeps;
    } else {
      looks_ = false;
      phase_ = Phase::kWithout;
    }
    sum_ = Duration(0);
    calls_ = 0;
  }

  const bool always_;
  int lone_calls_ = 0;  // in a row
  bool looks_ = false;
  Phase phase_ = Phase::kWithout;
  int calls_ = 0;                 // of this phase
  Duration sum_{0}, without_{0};  // between calls: of this phase, of the last trial without
};

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_RPC_POLL_POLICY_H_
