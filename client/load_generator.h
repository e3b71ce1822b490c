// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_CLIENT_LOAD_GENERATOR_H_
#define DEEPPCR_CLIENT_LOAD_GENERATOR_H_

// Load from many clients at a time, closed loop or at a fixed rate.

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/latency.h"

namespace deeppcr {

// The outcome of a successful request.
struct RequestOutcome {
  std::string solver;
  int64_t samples = 0;
  int64_t fallbacks = 0;
  int64_t unconverged = 0;
  double queue_seconds = 0;  // as the server reports it, like solve_seconds
  double solve_seconds = 0;
};

// Sends request number `index` as client number `client`, and waits for the answer. Called from
// `clients` threads, one call at a time for each client.
using SendRequest = std::function<absl::StatusOr<RequestOutcome>(int client, int64_t index)>;

struct LoadOptions {
  int clients = 1;  // threads, each with at most one request under way; [1, 1024]
  double rate = 0;  // requests per second started in all; 0: closed loop, as fast as answers come
  absl::Duration duration = absl::Seconds(10);   // measured time, unless `requests` is set
  int64_t requests = 0;                          // measured requests, instead of a duration
  absl::Duration warmup = absl::ZeroDuration();  // load before, not measured
};

struct LoadResult {
  double seconds = 0;    // time from the first measured request to the last answer
  int64_t requests = 0;  // measured requests
  int64_t ok = 0;
  int64_t samples = 0;  // samples of successful requests
  int64_t fallbacks = 0;
  int64_t unconverged = 0;
  double mean_queue_seconds = 0;  // as the server reports it, over successful requests
  double mean_solve_seconds = 0;
  std::map<std::string, int64_t> errors;           // requests by status code
  std::map<std::string, std::string> first_error;  // the first message for each code
  std::map<std::string, int64_t> solvers;          // successful requests by solver
  // Latency of successful requests. At a fixed rate it counts from the moment a request was meant
  // to be sent, so that a stall counts against every request it delayed, not only against the one
  // that saw it (no coordinated omission).
  LatencySummary latency;
  // The delay of requests behind the moment they were meant to be sent, at a fixed rate. Large
  // values mean too few clients; `latency` then includes waiting in the generator.
  LatencySummary send_lag;
};

// Runs the load to its end. `done` counts finished requests, warm-up included, for a progress line;
// may be null. Errors: kInvalidArgument for options out of range. Failed requests are counted, not
// errors.
absl::StatusOr<LoadResult> GenerateLoad(const LoadOptions& options, const SendRequest& send,
                                        std::atomic<int64_t>* done);

}  // namespace deeppcr

#endif  // DEEPPCR_CLIENT_LOAD_GENERATOR_H_
