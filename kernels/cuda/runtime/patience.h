// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_RUNTIME_PATIENCE_H_
#define DEEPPCR_KERNELS_CUDA_RUNTIME_PATIENCE_H_

// How the host waits for a device: it looks at full speed, then leaves its core to others between
// two looks, then sleeps between them, and gives up at a limit. No watchdog ends a kernel of a
// server's GPU, so a kernel that hangs would be waited for for ever.

#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "kernels/cuda/tuning.h"

namespace deeppcr::cuda {

// Limit of a wait: `factor` times the longest one so far that came to its end, and no less than
// `least`.
struct WaitLimits {
  std::chrono::steady_clock::duration least = std::chrono::seconds(kLeastWaitSeconds);
  int factor = kWaitLimitFactor;
};

// The waits for one stream, one after another.
class Patience {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Patience(const WaitLimits& limits) : limits_(limits) {}

  Clock::duration limit() const { return std::max(limits_.least, longest_ * limits_.factor); }

  // Waits until done() and returns true, or returns false at the limit. Calls idle() every now and
  // then.
  template <class Done, class Idle>
  bool Await(const Done& done, const Idle& idle) {
    const Clock::time_point start = Clock::now();
    for (int round = 1; !done(); ++round) {
      const Clock::duration waited = Clock::now() - start;
      // A process that was stopped meanwhile has not looked for long.
      if (waited > limit()) return done();
      if (round % 64 == 0) idle();
      if (waited > std::chrono::microseconds(kYieldMicroseconds)) {
        Nap();
      } else if (waited > std::chrono::microseconds(kSpinMicroseconds)) {
        std::this_thread::yield();
      }
    }
    longest_ = std::max(longest_, Clock::now() - start);
    return true;
  }

 private:
  // Sleeps for a nap. Linux wakes a thread up to 50 us late unless the thread asks for less.
  static void Nap() {
    thread_local const int asked =
        prctl(PR_SET_TIMERSLACK, 1);  // ns; what is refused costs time only
    static_cast<void>(asked);
    std::this_thread::sleep_for(std::chrono::microseconds(kNapMicroseconds));
  }

  const WaitLimits limits_;
  Clock::duration longest_{};
};

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_RUNTIME_PATIENCE_H_
