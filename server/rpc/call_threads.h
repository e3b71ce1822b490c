// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_RPC_CALL_THREADS_H_
#define DEEPPCR_SERVER_RPC_CALL_THREADS_H_

#include "server/rpc/call_queue.h"

namespace deeppcr {

// Threads for calls, and how they wait, where the process has so many CPU seconds a second.
// busy_poll_seconds: as the flag, -1 to 1.
CallQueue::Threads CallThreadsFor(double cores, bool tls, double busy_poll_seconds);

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_RPC_CALL_THREADS_H_
