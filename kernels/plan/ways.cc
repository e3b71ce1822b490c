// SPDX-License-Identifier: Apache-2.0
#include "kernels/plan/ways.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <vector>

#include "kernels/base/status_macros.h"
#include "kernels/plan/candidates.h"
#include "kernels/plan/clock.h"
#include "kernels/plan/counted_cost.h"

namespace deeppcr {
namespace {

using Clock = PlanClock;

// Trajectories of calibration inputs, and ways back along them.
class WayBench {
 public:
  WayBench(const Runner& runner, const BackwardRunner& backward, const CalibrationInputs& inputs,
           const PlannerOptions& options)
      : backward_(backward), shape_(runner.shape()), options_(options) {
    const int64_t states = (shape_.num_steps + 1) * shape_.state_dim;
    const int64_t fitting = kMostWayBytes / (states * int64_t{sizeof(float)});
    most_ = std::clamp<int64_t>(fitting, 1, options.max_batch_size);
    samples_ = CalibrationSamples(inputs, shape_, 0, most_);
    states_.resize(static_cast<size_t>(most_ * states));
    ones_.assign(static_cast<size_t>(most_ * shape_.state_dim), 1);
    gradients_.resize(ones_.size());
    reports_.resize(static_cast<size_t>(most_));
  }

  int64_t most() const { return most_; }  // samples that have trajectories

  // Solves for the trajectories; false if one overflows or takes too long.
  absl::StatusOr<bool> Solve(const Runner& runner) {
    const CancelToken token(Within(options_.seconds_per_run), options_.token);
    std::vector<float> outputs(static_cast<size_t>(most_ * shape_.output_dim));
    std::vector<SampleReport> reports(static_cast<size_t>(most_));
    RunItem item{.samples = samples_.View(),
                 .outputs = outputs,
                 .trajectory = states_,
                 .reports = reports,
                 .token = &token};
    RunTimings timings;
    DEEPPCR_RETURN_IF_ERROR(runner.Run({.solver = "sequential"}, {&item, 1}, &timings));
    return std::ranges::all_of(reports,
                               [](const SampleReport& report) { return report.converged; });
  }

  // Seconds of n samples; none if that took more than `limit`.
  absl::StatusOr<std::optional<double>> Time(const BackwardOptions& way, int64_t n, double limit) {
    const CancelToken token(Within(limit), options_.token);
    const size_t rows = static_cast<size_t>(n * shape_.state_dim);
    BackwardItem item{
        .samples = SamplesOf(samples_.View(), 0, n),
        .states = std::span(states_).first(rows * static_cast<size_t>(shape_.num_steps + 1)),
        .of_final = std::span(ones_).first(rows),
        .initial = std::span(gradients_).first(static_cast<size_t>(n * shape_.sample_dim())),
        .reports = std::span(reports_).first(static_cast<size_t>(n)),
        .token = &token};
    const Clock::time_point start = Clock::now();
    DEEPPCR_RETURN_IF_ERROR(backward_.Run(way, {&item, 1}));
    const double seconds = SecondsSince(start);
    if (Fired(options_.token)) return absl::CancelledError("stopped while the plan was measured");
    if (absl::IsDeadlineExceeded(JudgeReports(item.reports))) return std::nullopt;
    return seconds;
  }

  // Counted cost of one sample in the run before.
  CountedCost Cost(const BackwardOptions& way) const {
    const bool parallel = way.way == BackwardWay::kParallel;
    const int64_t intervals =
        parallel ? (shape_.num_steps - 1) / way.shooting_interval + 1 : int64_t{0};
    return {.flops = CountedFlops(shape_, intervals, static_cast<double>(reports_[0].column_passes),
                                  parallel ? 1 : 0),
            .stages = static_cast<double>(reports_[0].dependent_stages)};
  }

 private:
  static Clock::time_point Within(double seconds) {
    return Clock::now() + std::chrono::microseconds(static_cast<int64_t>(1e6 * seconds));
  }

  const BackwardRunner& backward_;
  const SystemShape shape_;
  const PlannerOptions& options_;
  int64_t most_ = 1;
  OwnedSampleInputs samples_;
  std::vector<float> states_, ones_, gradients_;
  std::vector<BackwardReport> reports_;
};

// The parallel way with its default interval; sequential where there is none.
BackwardOptions ParallelWay(const BackwardLimits& limits, int64_t num_steps) {
  if (!limits.parallel) return {};
  const auto root = static_cast<int64_t>(std::ceil(std::sqrt(static_cast<double>(num_steps))));
  return {.way = BackwardWay::kParallel,
          .shooting_interval = std::min(std::max(root, limits.min_shooting_interval), num_steps)};
}

// Factor of the sequential way's counted seconds, and the least seconds, after which a run of the
// parallel way is cut off: it has lost.
constexpr double kLost = 10;
constexpr double kLeastPatience = 0.05;

struct TimedWays : Timing {
  bool lost = false;  // the parallel way was cut off
};

absl::StatusOr<TimedWays> TimeInTurns(WayBench& bench, const BackwardOptions& parallel, int64_t n,
                                      double seconds_per_run) {
  TimedWays timing;
  const Clock::time_point start = Clock::now();
  for (int i = 0; i < kRepetitions && (i == 0 || SecondsSince(start) < kRepeatedWaySeconds); ++i) {
    DEEPPCR_ASSIGN_OR_RETURN(const auto sequential, bench.Time({}, n, seconds_per_run));
    if (!sequential.has_value()) return timing;
    timing.sequential.push_back(*sequential);
    const double patience = std::max(kLost * *sequential, kLeastPatience);
    DEEPPCR_ASSIGN_OR_RETURN(const auto other, bench.Time(parallel, n, patience));
    timing.lost = !other.has_value();
    if (timing.lost) return timing;
    timing.parallel.push_back(*other);
  }
  return timing;
}

}  // namespace

bool HasWays(const Plan& plan) {
  return std::ranges::all_of(plan.entries,
                             [](const PlanEntry& entry) { return entry.ways.has_value(); });
}

absl::Status MeasureWays(const Runner& runner, const BackwardRunner& backward,
                         const CalibrationInputs& inputs, const PlannerOptions& options,
                         Plan* plan) {
  const Clock::time_point start = Clock::now();
  const BackwardOptions parallel = ParallelWay(backward.limits(), runner.shape().num_steps);
  WayBench bench(runner, backward, inputs, options);
  DEEPPCR_ASSIGN_OR_RETURN(const bool solved, bench.Solve(runner));
  if (Fired(options.token)) return absl::CancelledError("stopped while the plan was measured");
  if (!solved) return absl::OkStatus();
  const double patience = options.seconds_per_run;
  DEEPPCR_ASSIGN_OR_RETURN(const auto first, bench.Time({}, 1, patience));
  const CountedCost of_sequential = bench.Cost({});
  CountedCost of_parallel = of_sequential;
  bool compared = first.has_value() && parallel.way == BackwardWay::kParallel;
  if (compared) {
    DEEPPCR_ASSIGN_OR_RETURN(const auto second, bench.Time(parallel, 1, patience));
    compared = second.has_value();
    of_parallel = bench.Cost(parallel);
  }
  for (PlanEntry& entry : plan->entries) {
    PlanWays ways;
    const int64_t n = entry.max_samples;
    const bool in_time =
        n == 1 || SecondsSince(start) < std::min(kWaySeconds, options.seconds_of_timing);
    TimedWays timing;
    if (compared && in_time && n <= bench.most()) {
      DEEPPCR_ASSIGN_OR_RETURN(timing, TimeInTurns(bench, parallel, n, patience));
    }
    const auto samples = static_cast<double>(n);
    const double ratio =
        of_sequential.Seconds(options.rates, samples) / of_parallel.Seconds(options.rates, samples);
    if (compared && !timing.lost && ParallelIsFaster(ratio, timing))
      ways.way = BackwardWay::kParallel;
    ways.sequential_seconds = MedianOf(timing.sequential);
    ways.parallel_seconds = MedianOf(timing.parallel);
    entry.ways = ways;
  }
  return absl::OkStatus();
}

}  // namespace deeppcr
