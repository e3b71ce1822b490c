// SPDX-License-Identifier: Apache-2.0
#include "client/load_generator.h"

#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>
#include <vector>

#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"

namespace deeppcr {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

absl::Status CheckOptions(const LoadOptions& options) {
  if (options.clients < 1 || options.clients > 1024) {
    return InvalidArgument("clients: expected 1 to 1024, got ", options.clients);
  }
  if (!(options.rate >= 0 && options.rate <= 1e6)) {
    return InvalidArgument("rate: expected 0 to 1000000 requests per second, got ", options.rate);
  }
  if (options.requests < 0 || options.requests > 1'000'000'000) {
    return InvalidArgument("requests: expected 0 to 1000000000, got ", options.requests);
  }
  const absl::Duration longest = absl::Hours(1);
  const bool timed = options.duration > absl::ZeroDuration() && options.duration <= longest;
  if (options.requests == 0 && !timed) {
    return InvalidArgument("seconds: expected over 0 and at most 3600, got ",
                           absl::ToDoubleSeconds(options.duration));
  }
  if (options.warmup < absl::ZeroDuration() || options.warmup > longest) {
    return InvalidArgument("warmup: expected 0 to 3600 seconds, got ",
                           absl::ToDoubleSeconds(options.warmup));
  }
  return absl::OkStatus();
}

// The results of one client; merged at the end, so that clients share no lock.
struct ClientRecord {
  LoadResult counts;
  std::vector<double> latencies;
  std::vector<double> lags;
  double queue_seconds = 0;
  double solve_seconds = 0;
  Clock::time_point last_answer;

  void Add(const absl::StatusOr<RequestOutcome>& outcome, double latency) {
    ++counts.requests;
    if (!outcome.ok()) {
      const std::string code = absl::StatusCodeToString(outcome.status().code());
      if (++counts.errors[code] == 1) {
        counts.first_error[code] = std::string(outcome.status().message());
      }
      return;
    }
    ++counts.ok;
    counts.samples += outcome->samples;
    counts.fallbacks += outcome->fallbacks;
    counts.unconverged += outcome->unconverged;
    queue_seconds += outcome->queue_seconds;
    solve_seconds += outcome->solve_seconds;
    ++counts.solvers[outcome->solver];
    latencies.push_back(latency);
  }
};

// One phase of load: the warm-up or the measurement.
class Phase {
 public:
  Phase(const LoadOptions& options, double seconds, int64_t requests)
      : options_(options), seconds_(seconds), limit_(requests) {
    if (limit_ == 0 && options.rate > 0)
      limit_ = std::max<int64_t>(1, std::llround(seconds * options.rate));
    if (limit_ == 0) limit_ = INT64_MAX;
  }

  void Run(const SendRequest& send, std::atomic<int64_t>* done) {
    records_.resize(static_cast<size_t>(options_.clients));
    start_ = Clock::now();
    std::vector<std::thread> threads;
    for (int client = 0; client < options_.clients; ++client) {
      threads.emplace_back([this, client, &send, done] { RunClient(client, send, done); });
    }
    for (std::thread& thread : threads) thread.join();
  }

  LoadResult Merge() const;

 private:
  void RunClient(int client, const SendRequest& send, std::atomic<int64_t>* done) {
    // Makes sleeps end on time: the default slack of 50 us would count as latency.
    prctl(PR_SET_TIMERSLACK, 1);
    ClientRecord& record = records_[static_cast<size_t>(client)];
    const bool paced = options_.rate > 0;
    const bool timed = !paced && limit_ == INT64_MAX;
    while (true) {
      const int64_t index = next_.fetch_add(1, std::memory_order_relaxed);
      if (index >= limit_) return;
      Clock::time_point intended = Clock::now();
      if (timed && Seconds(intended - start_).count() >= seconds_) return;
      if (paced) {
        intended = start_ + std::chrono::duration_cast<Clock::duration>(
                                Seconds(static_cast<double>(index) / options_.rate));
        std::this_thread::sleep_until(intended);
        record.lags.push_back(Seconds(Clock::now() - intended).count());
      }
      const absl::StatusOr<RequestOutcome> outcome = send(client, index);
      record.last_answer = Clock::now();
      record.Add(outcome, Seconds(record.last_answer - intended).count());
      if (done != nullptr) done->fetch_add(1, std::memory_order_relaxed);
    }
  }

  const LoadOptions& options_;
  const double seconds_;
  int64_t limit_;
  Clock::time_point start_;
  std::atomic<int64_t> next_{0};
  std::vector<ClientRecord> records_;
};

LoadResult Phase::Merge() const {
  LoadResult result;
  std::vector<double> latencies;
  std::vector<double> lags;
  Clock::time_point end = start_;
  for (const ClientRecord& record : records_) {
    const LoadResult& counts = record.counts;
    result.requests += counts.requests;
    result.ok += counts.ok;
    result.samples += counts.samples;
    result.fallbacks += counts.fallbacks;
    result.unconverged += counts.unconverged;
    result.mean_queue_seconds += record.queue_seconds;
    result.mean_solve_seconds += record.solve_seconds;
    for (const auto& [code, count] : counts.errors) result.errors[code] += count;
    for (const auto& [solver, count] : counts.solvers) result.solvers[solver] += count;
    result.first_error.insert(counts.first_error.begin(), counts.first_error.end());
    latencies.insert(latencies.end(), record.latencies.begin(), record.latencies.end());
    lags.insert(lags.end(), record.lags.begin(), record.lags.end());
    if (counts.requests > 0) end = std::max(end, record.last_answer);
  }
  result.mean_queue_seconds /= static_cast<double>(std::max<int64_t>(result.ok, 1));
  result.mean_solve_seconds /= static_cast<double>(std::max<int64_t>(result.ok, 1));
  result.seconds = Seconds(end - start_).count();
  result.latency = Summarize(std::move(latencies));
  result.send_lag = Summarize(std::move(lags));
  return result;
}

}  // namespace

absl::StatusOr<LoadResult> GenerateLoad(const LoadOptions& options, const SendRequest& send,
                                        std::atomic<int64_t>* done) {
  DEEPPCR_RETURN_IF_ERROR(CheckOptions(options));
  if (options.warmup > absl::ZeroDuration()) {
    Phase(options, absl::ToDoubleSeconds(options.warmup), 0).Run(send, done);
  }
  Phase phase(options, absl::ToDoubleSeconds(options.duration), options.requests);
  phase.Run(send, done);
  return phase.Merge();
}

}  // namespace deeppcr
