// SPDX-License-Identifier: Apache-2.0
#include "kernels/solver/runner.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <thread>
#include <utility>

#include "kernels/base/finite.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/solver/registry.h"

namespace deeppcr {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsBetween(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// Copies the findings of a failed attempt into the answer's report, and adds its costs to the
// answer's costs.
void AddAttempt(const SampleReport& failed, SampleReport* report) {
  report->fallback = true;
  report->attempt = {.solver = failed.solver,
                     .termination = failed.termination,
                     .iterations = failed.iterations,
                     .chord_corrections = failed.chord_corrections,
                     .confirmations = failed.confirmations,
                     .warm_sweeps = failed.warm_sweeps,
                     .update = failed.update,
                     .error_estimate = failed.error_estimate,
                     .rounding_estimate = failed.rounding_estimate};
  report->iterations += failed.iterations;
  report->chord_corrections += failed.chord_corrections;
  report->confirmations += failed.confirmations;
  report->warm_sweeps += failed.warm_sweeps;
  report->dependent_stages += failed.dependent_stages;
  report->column_passes += failed.column_passes;
}

// Null if there is none.
template <class T>
T* RowOf(std::span<T> rows, int64_t i, int64_t size) {
  return rows.empty() ? nullptr : rows.data() + i * size;
}

}  // namespace

// One call of Run, seen as a loop over groups of samples.
class Runner::Batch {
 public:
  Batch(const Runner& runner, const ResolvedOptions& options, std::span<RunItem> items)
      : runner_(runner), options_(options), row_(*FindSolver(options.solver)), items_(items) {
    for (const RunItem& item : items) total_ += item.samples.num_samples;
    const Grouping& grouping = runner.grouping_;
    const int64_t largest = row_.iterative ? grouping.iterative : grouping.sequential;
    const int64_t worthwhile = row_.iterative ? largest : grouping.worthwhile;
    threads_ = std::min<int64_t>((total_ - 1) / worthwhile + 1, runner.pool_->num_threads());
    group_ = std::min((total_ - 1) / threads_ + 1, largest);
    // As many groups for each thread, where one is not enough, and as equal as can be.
    const int64_t rounds = (num_groups() - 1) / threads_ + 1;
    group_ = (total_ - 1) / (rounds > 1 ? rounds * threads_ : num_groups()) + 1;
    // But full groups and what they leave, where a size in between takes as long as a full one.
    const int64_t multiple = row_.iterative ? 1 : grouping.multiple;
    if (group_ > multiple)
      group_ = std::min((group_ - 1) / multiple * multiple + multiple, largest);
  }

  int64_t num_groups() const { return (total_ - 1) / group_ + 1; }
  // Threads that the groups are worth.
  int64_t threads() const { return threads_; }

  // True if there is a single group, whose solve has pieces for other threads.
  bool MayShare() const {
    const Grouping& grouping = runner_.grouping_;
    return num_groups() == 1 && runner_.pool_->num_threads() > 1 &&
           (row_.iterative ? grouping.shares_passes : grouping.shares_steps);
  }

  // Group `index`, on whichever thread.
  void operator()(int64_t index) { RunGroup(index, nullptr); }

  // The team, which may be null, shares the pieces of the solve.
  void RunGroup(int64_t index, Team* team) {
    const LanePool<Lane>::Lease lease(runner_.lanes_);
    Lane& lane = *lease;
    lane.space->SetTeam(team);
    const Clock::time_point start = Clock::now();
    const int32_t n = Collect(index, lane);
    EncodeAll(lane, n);
    const Clock::time_point encoded = Clock::now();
    Solve(lane, n);
    const Clock::time_point solved = Clock::now();
    DecodeAll(lane, n);
    const Clock::time_point decoded = Clock::now();
    if (row_.iterative && options_.on_no_convergence == OnNoConvergence::kFallback) {
      FallBack(lane, n);
    } else {
      DropEstimates(lane, n);
    }
    lane.space->SetTeam(nullptr);
    Note(lane.space->status());
    Add(encode_seconds_, SecondsBetween(start, encoded));
    Add(solve_seconds_, SecondsBetween(encoded, solved) + SecondsBetween(decoded, Clock::now()));
    Add(decode_seconds_, SecondsBetween(solved, decoded));
  }

  // Status of the device: not OK if it has failed.
  absl::Status status() const {
    std::lock_guard lock(mutex_);
    return status_;
  }

  void Report(RunTimings* timings) const {
    timings->encode_seconds = encode_seconds_.load();
    timings->solve_seconds = solve_seconds_.load();
    timings->decode_seconds = decode_seconds_.load();
  }

 private:
  static void Add(std::atomic<double>& sum, double value) { sum.fetch_add(value); }

  void Note(const absl::Status& status) {
    if (status.ok()) return;
    std::lock_guard lock(mutex_);
    status_ = status;
  }

  // Collects samples [index * group, ...) of the batch, across items.
  int32_t Collect(int64_t index, Lane& lane) const {
    int64_t skip = index * group_;
    int32_t n = 0;
    for (const RunItem& item : items_) {
      const int64_t samples = item.samples.num_samples;
      for (int64_t i = std::min(skip, samples); i < samples && n < group_; ++i)
        lane.requests[n++] = RequestOf(item, i);
      skip = std::max<int64_t>(0, skip - samples);
    }
    return n;
  }

  SampleRequest RequestOf(const RunItem& item, int64_t i) const {
    const SystemShape& shape = runner_.shape_;
    const int64_t states = (shape.num_steps + 1) * shape.state_dim;
    return {.input = InputOf(item.samples, i, item.token),
            .outputs = RowOf(item.outputs, i, shape.output_dim),
            .final_state = RowOf(item.final_states, i, shape.state_dim),
            .sample = {.token = item.token,
                       .listener = item.listener,
                       .index = i,
                       .initial_states = RowOf(item.samples.initial_states, i, states),
                       .trajectory = RowOf(item.trajectory, i, states),
                       .report = &item.reports[i]}};
  }

  void EncodeAll(Lane& lane, int32_t n) const {
    for (int32_t b = 0; b < n; ++b) {
      lane.space->Encode(b, lane.requests[b].input);
      lane.samples[b] = lane.requests[b].sample;
    }
  }

  void Solve(Lane& lane, int32_t n) const {
    const std::span<const GroupSample> samples = std::span(lane.samples).first(n);
    row_.solve(row_, *lane.space, runner_.shape_, options_, samples, lane.scratch);
    for (const GroupSample& sample : samples) sample.report->solver = row_.name;
  }

  // Floor of the relative norms of an iterative solver, see StoppingPolicy.
  double Floor() const {
    return row_.iterative ? StoppingPolicy{.rtol = options_.rtol, .atol = options_.atol}.floor()
                          : 0;
  }

  // Decodes the answer of a sample, unless the sample was stopped from outside. Output layers may
  // overflow where the states did not.
  void Decode(Lane& lane, int32_t b, const SampleRequest& request) const {
    SampleReport& report = *request.sample.report;
    if (StoppedFromOutside(report.termination)) return;
    lane.space->Decode(b, request.outputs);
    if (request.final_state != nullptr) lane.space->CopyState(b, request.final_state);
    const std::span<float> outputs(request.outputs, runner_.shape_.output_dim);
    if (report.converged && AllFinite(outputs)) return;
    if (report.converged) report.termination = Termination::kNonFinite;
    report.converged = false;
    MakeNansAlike(outputs);
    MakeNansAlike(StatesOf(request.final_state, 1));
    MakeNansAlike(StatesOf(request.sample.trajectory, runner_.shape_.num_steps + 1));
  }
  // States that a request wants, or none.
  std::span<float> StatesOf(float* states, int64_t count) const {
    if (states == nullptr) return {};
    return {states, static_cast<size_t>(count * runner_.shape_.state_dim)};
  }

  void DecodeAll(Lane& lane, int32_t n) const {
    for (int32_t b = 0; b < n; ++b) {
      SampleReport& report = *lane.samples[b].report;
      Decode(lane, b, lane.requests[b]);
      if (!report.converged || !report.error_estimate.has_value()) continue;
      const double error =
          lane.space->AmplifyError(b, *report.error_estimate, Floor(), lane.requests[b].outputs);
      if (std::isfinite(error)) report.output_error_estimate = error;
    }
  }

  // Drops estimates where the outputs have overflowed: estimates of certified states do not hold
  // for the answer then.
  static void DropEstimates(Lane& lane, int32_t n) {
    for (int32_t b = 0; b < n; ++b) {
      SampleReport& report = *lane.samples[b].report;
      if (report.termination != Termination::kNonFinite) continue;
      report.error_estimate.reset();
      report.rounding_estimate.reset();
    }
  }

  // Runs the sequential solver from step 0 for the samples that did not converge: the answers have
  // the bits of solver = sequential.
  void FallBack(Lane& lane, int32_t n) const {
    int32_t failed = 0;
    for (int32_t b = 0; b < n; ++b) {
      const SampleReport& report = *lane.requests[b].sample.report;
      if (report.converged || StoppedFromOutside(report.termination)) continue;
      lane.failed[failed] = report;
      lane.requests[failed++] = lane.requests[b];
    }
    const int32_t group = runner_.grouping_.sequential;
    for (int32_t first = 0; first < failed; first += group)
      FallBack(lane, first, std::min(failed - first, group));
  }
  // Falls back for requests [first, first + n) of the lane.
  void FallBack(Lane& lane, int32_t first, int32_t n) const {
    SampleRequest* const requests = lane.requests.data() + first;
    for (int32_t b = 0; b < n; ++b) {
      lane.space->Encode(b, requests[b].input);
      lane.samples[b] = requests[b].sample;
    }
    SolveSequentially(*lane.space, runner_.shape_, std::span(lane.samples).first(n), lane.scratch);
    for (int32_t b = 0; b < n; ++b) {
      Decode(lane, b, requests[b]);
      AddAttempt(lane.failed[first + b], lane.samples[b].report);
    }
  }

  const Runner& runner_;
  const ResolvedOptions& options_;
  const SolverRow& row_;
  const std::span<RunItem> items_;
  int64_t total_ = 0;
  int64_t threads_ = 1;
  int64_t group_ = 1;
  std::atomic<double> encode_seconds_{0}, solve_seconds_{0}, decode_seconds_{0};
  mutable std::mutex mutex_;
  absl::Status status_;  // guarded by mutex_
};

// A batch of one group: the caller leads, other threads help. There are as many calls as threads,
// and a helper stays in its call, so that one is left for the caller.
class Runner::SharedBatch {
 public:
  explicit SharedBatch(Batch& batch) : batch_(batch) {}
  void operator()(int64_t) {
    if (std::this_thread::get_id() != caller_ || std::exchange(led_, true)) return team_.Help();
    batch_.RunGroup(0, &team_);
    team_.Disband();
  }

 private:
  Batch& batch_;
  const std::thread::id caller_ = std::this_thread::get_id();
  bool led_ = false;  // the caller's alone
  Team team_;
};

int Runner::NumLanes(const Grouping& grouping, const ThreadPool& pool, int max_concurrent_runs) {
  return max_concurrent_runs + std::min(pool.num_threads(), grouping.spaces) - 1;
}

absl::StatusOr<std::unique_ptr<Runner>> Runner::Create(const System& system,
                                                       const SystemShape& shape,
                                                       const SpaceLimits& limits, ThreadPool* pool,
                                                       int max_concurrent_runs, int max_lanes) {
  const Grouping grouping = system.grouping();
  std::unique_ptr<Runner> runner(new Runner(shape, limits, grouping, pool));
  const int num_lanes = std::min(NumLanes(grouping, *pool, max_concurrent_runs), max_lanes);
  const int32_t capacity = std::max(grouping.sequential, grouping.iterative);
  for (int i = 0; i < num_lanes; ++i) {
    DEEPPCR_ASSIGN_OR_RETURN(std::unique_ptr<SolveSpace> space, system.NewSpace(limits));
    runner->lanes_.Add(std::make_unique<Lane>(std::move(space), capacity));
  }
  runner->memory_bytes_ = num_lanes * system.SpaceBytes(limits);
  return runner;
}

absl::Status Runner::Check(const ResolvedOptions& options, const RunItem& item) const {
  const int64_t n = item.samples.num_samples;
  const int64_t states = n * (shape_.num_steps + 1) * shape_.state_dim;
  DEEPPCR_RETURN_IF_ERROR(CheckSamples(item.samples, shape_));
  DEEPPCR_RETURN_IF_ERROR(CheckItemSize("outputs", item.outputs.size(), n * shape_.output_dim));
  DEEPPCR_RETURN_IF_ERROR(CheckItemSize("reports", item.reports.size(), n));
  if (!item.final_states.empty())
    DEEPPCR_RETURN_IF_ERROR(
        CheckItemSize("final_states", item.final_states.size(), n * shape_.state_dim));
  if (!item.trajectory.empty())
    DEEPPCR_RETURN_IF_ERROR(CheckItemSize("trajectory", item.trajectory.size(), states));
  if (options.initial_guess == InitialGuess::kPrevious)
    DEEPPCR_RETURN_IF_ERROR(
        CheckItemSize("initial_states", item.samples.initial_states.size(), states));
  if (options.num_steps > 0)
    DEEPPCR_RETURN_IF_ERROR(CheckItemSize("steps", options.num_steps, shape_.num_steps));
  return absl::OkStatus();
}

absl::Status Runner::Run(const ResolvedOptions& options, std::span<RunItem> items,
                         RunTimings* timings) const {
  const Clock::time_point start = Clock::now();
  if (items.empty() || FindSolver(options.solver) == nullptr)
    return absl::InvalidArgumentError("run: expected at least one item and a known solver");
  for (const RunItem& item : items) DEEPPCR_RETURN_IF_ERROR(Check(options, item));
  Batch batch(*this, options, items);
  if (batch.MayShare()) {
    SharedBatch shared(batch);
    pool_->ParallelFor(pool_->num_threads(), shared);
  } else {
    pool_->ParallelFor(batch.num_groups(), batch, batch.threads());
  }
  DEEPPCR_RETURN_IF_ERROR(batch.status());
  if (timings != nullptr) {
    batch.Report(timings);
    timings->wall_seconds = SecondsBetween(start, Clock::now());
  }
  return absl::OkStatus();
}

}  // namespace deeppcr
