// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/call_threads.h"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace deeppcr {
namespace {

constexpr double kTrialSeconds = 100e-6;  // of --busy_poll_seconds=-1

}  // namespace

// Threads that wait in gRPC at a time wake one another for every event: on few cores one alone
// does. But what comes through TLS is decrypted by whoever waits, and others' calls would wait for
// it. One alone may also look for calls before it sleeps, if that does not take the only core from
// those who make them, or use up a quota.
CallQueue::Threads CallThreadsFor(double cores, bool tls, double busy_poll_seconds) {
  const int half = std::clamp(static_cast<int>(std::ceil(cores)) / 2, 2, 16);
  CallQueue::Threads threads{.all = tls ? 2 * half : half, .leaders = tls ? 2 * half : half / 2};
  double seconds = busy_poll_seconds;
  if (seconds < 0) seconds = threads.leaders == 1 && cores >= 2 ? kTrialSeconds : 0;
  if (seconds > 0) threads.leaders = 1;
  threads.busy_poll =
      std::chrono::ceil<std::chrono::microseconds>(std::chrono::duration<double>(seconds));
  threads.always_poll = busy_poll_seconds > 0;
  return threads;
}

}  // namespace deeppcr
