// SPDX-License-Identifier: Apache-2.0
#include "kernels/solver/backward_runner.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "kernels/base/finite.h"
#include "kernels/base/never_fits.h"
#include "kernels/base/shape.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/solver/backward.h"
#include "kernels/solver/runner.h"

namespace deeppcr {
namespace {

// True if rows [first, first + n) of an array, which may be absent, are finite. Else their NaNs get
// the same bits, as those of answers.
bool SettleRows(std::span<float> all, int64_t first, int64_t n, int64_t size) {
  if (all.empty() || AllFinite(all.subspan(first * size, n * size))) return true;
  MakeNansAlike(all.subspan(first * size, n * size));
  return false;
}

// Row i of an array of rows; null if the array is empty.
template <class T>
T* PartOf(std::span<T> all, int64_t i, int64_t size) {
  return all.empty() ? nullptr : all.data() + i * size;
}

}  // namespace

std::string_view ToString(BackwardWay way) {
  return way == BackwardWay::kParallel ? "parallel" : "sequential";
}

absl::Status JudgeReports(std::span<const BackwardReport> reports) {
  for (const BackwardReport& report : reports) {
    if (report.termination == Termination::kCancelled)
      return absl::CancelledError("cancelled on the way back");
    if (report.termination == Termination::kDeadline)
      return absl::DeadlineExceededError("the deadline passed on the way back");
  }
  return absl::OkStatus();
}

absl::StatusOr<BackwardLimits> ChooseBackwardLimits(const System& system, int64_t num_steps,
                                                    int64_t max_bytes) {
  const BackwardGrouping best = system.backward_grouping();
  BackwardLimits limits = {
      .samples = best.samples, .scanned_samples = best.scanned_samples, .columns = best.columns};
  const auto fits = [&] { return system.BackwardSpaceBytes(limits) <= max_bytes; };
  if (!fits()) limits.samples = limits.scanned_samples = 1;
  while (!fits() && limits.min_shooting_interval < num_steps)
    limits.min_shooting_interval = std::min(2 * limits.min_shooting_interval, num_steps);
  if (!fits()) limits.parallel = false;
  while (!fits() && limits.columns > 1) limits.columns /= 2;
  while (fits() && limits.samples < best.samples) {
    limits.samples *= 2;
    if (!fits()) {
      limits.samples /= 2;
      break;
    }
  }
  if (fits()) return limits;
  return NeverFits("backward pass: ", system.BackwardSpaceBytes(limits),
                   " bytes wanted per thread, ", max_bytes, " allowed (raise max_workspace_bytes)");
}

// One call of Run, seen as a loop over groups: samples of one item, with a part of its columns.
class BackwardRunner::Batch {
 public:
  Batch(const BackwardRunner& runner, const BackwardOptions& options, std::span<BackwardItem> items)
      : runner_(runner), options_(options), items_(items) {
    for (BackwardItem& item : items) {
      num_groups_ += GroupsOf(item);
      for (BackwardReport& report : item.reports) report = {};
    }
  }

  int64_t num_groups() const { return num_groups_; }

  void operator()(int64_t index) {
    for (BackwardItem& item : items_) {
      if (index < GroupsOf(item)) return RunGroup(item, index);
      index -= GroupsOf(item);
    }
  }

  absl::Status status() const {
    std::lock_guard lock(mutex_);
    return status_;
  }

 private:
  bool parallel() const { return options_.way == BackwardWay::kParallel; }
  int64_t SamplesTogether() const {
    return parallel() ? runner_.limits_.scanned_samples : runner_.limits_.samples;
  }
  int64_t PartsOf(const BackwardItem& item) const {
    return (item.columns - 1) / runner_.limits_.columns + 1;
  }
  int64_t GroupsOf(const BackwardItem& item) const {
    return ((item.samples.num_samples - 1) / SamplesTogether() + 1) * PartsOf(item);
  }

  void RunGroup(BackwardItem& item, int64_t index) {
    const int64_t parts = PartsOf(item), first = index / parts * SamplesTogether();
    const int64_t column = index % parts * runner_.limits_.columns;
    const int64_t columns = std::min(runner_.limits_.columns, item.columns - column);
    const auto n =
        static_cast<int32_t>(std::min(SamplesTogether(), item.samples.num_samples - first));
    // What nobody waits for any more is not begun.
    if (Fired(item.token)) {
      for (int32_t b = 0; b < n; ++b) Report(item, first + b, column, columns, {});
      return;
    }
    const LanePool<Lane>::Lease lease(runner_.lanes_);
    Lane& lane = *lease;
    for (int32_t b = 0; b < n; ++b) {
      lane.inputs[b] = InputOf(item.samples, first + b, item.token);
      lane.tokens[b] = item.token;
      lane.space->Begin(b, SampleOf(item, lane.inputs[b], first + b, column, columns));
    }
    const PassCount count = parallel() ? GoBackByScan(*lane.space, n, options_.shooting_interval)
                                       : GoBackSequentially(*lane.space, runner_.shape_.num_steps,
                                                            std::span(lane.tokens).first(n));
    for (int32_t b = 0; b < n; ++b) {
      lane.space->Finish(b);
      Report(item, first + b, column, columns, count);
    }
    Note(lane.space->status());
  }

  // Columns [column, column + columns) of sample b.
  BackwardSample SampleOf(const BackwardItem& item, const SampleInput& input, int64_t b,
                          int64_t column, int64_t columns) const {
    const SystemShape& shape = runner_.shape_;
    const int64_t dim = shape.state_dim, noise = shape.sample_dim();
    const int64_t row = b * item.columns + column;
    return {.input = &input,
            .states = PartOf(item.states, b, (shape.num_steps + 1) * dim),
            .columns = columns,
            .of_outputs = PartOf(item.of_outputs, row, shape.output_dim),
            .of_final = PartOf(item.of_final, row, dim),
            .inputs = PartOf(item.inputs, row, shape.input_dim),
            .initial = PartOf(item.initial, row, noise),
            .step_noise = PartOf(item.step_noise, row, shape.num_steps * noise),
            .deltas = PartOf(item.deltas, b, shape.num_steps * dim),
            .encode_delta = PartOf(item.encode_deltas, b, dim),
            .state_cotangents = PartOf(item.state_cotangents, b, shape.num_steps * dim)};
  }

  // A sample's columns may be those of several groups, on several threads.
  void Report(BackwardItem& item, int64_t b, int64_t column, int64_t columns,
              const PassCount& count) {
    const SystemShape& shape = runner_.shape_;
    const int64_t row = b * item.columns + column;
    const int64_t dim = shape.state_dim, noise = shape.sample_dim();
    bool finite = true;
    for (const bool settled : {SettleRows(item.inputs, row, columns, shape.input_dim),
                               SettleRows(item.initial, row, columns, noise),
                               SettleRows(item.step_noise, row, columns, shape.num_steps * noise),
                               SettleRows(item.deltas, b, 1, shape.num_steps * dim),
                               SettleRows(item.encode_deltas, b, 1, dim),
                               SettleRows(item.state_cotangents, b, 1, shape.num_steps * dim)})
      finite = finite && settled;
    Termination termination = finite ? Termination::kDirect : Termination::kNonFinite;
    if (item.token != nullptr) {
      const StopReason reason = item.token->stop_reason();
      if (reason == StopReason::kDeadline) termination = Termination::kDeadline;
      if (reason == StopReason::kCancelled) termination = Termination::kCancelled;
    }
    std::lock_guard lock(mutex_);
    BackwardReport& report = item.reports[b];
    report.termination = std::max(report.termination, termination);
    report.dependent_stages = std::max(report.dependent_stages, count.stages);
    report.column_passes += parallel() ? count.columns + columns - 1 : columns;
  }

  void Note(const absl::Status& status) {
    if (status.ok()) return;
    std::lock_guard lock(mutex_);
    status_ = status;
  }

  const BackwardRunner& runner_;
  const BackwardOptions& options_;
  const std::span<BackwardItem> items_;
  int64_t num_groups_ = 0;
  mutable std::mutex mutex_;
  absl::Status status_;  // guarded by mutex_, as the reports are
};

absl::StatusOr<std::unique_ptr<BackwardRunner>> BackwardRunner::Create(
    const System& system, const SystemShape& shape, const BackwardLimits& limits, ThreadPool* pool,
    int max_concurrent_runs, int max_lanes) {
  BackwardLimits of_runner = limits;
  of_runner.busy_rows = std::max<int64_t>(32, limits.columns) * pool->num_threads();
  std::unique_ptr<BackwardRunner> runner(
      new BackwardRunner(shape, of_runner, system.gives_state_cotangents(), pool));
  const int num_lanes =
      std::min(Runner::NumLanes(system.grouping(), *pool, max_concurrent_runs), max_lanes);
  for (int i = 0; i < num_lanes; ++i) {
    DEEPPCR_ASSIGN_OR_RETURN(std::unique_ptr<BackwardSpace> space, system.NewBackwardSpace(limits));
    runner->lanes_.Add(
        std::make_unique<Lane>(std::move(space), std::max(limits.samples, limits.scanned_samples)));
  }
  runner->memory_bytes_ = num_lanes * system.BackwardSpaceBytes(limits);
  return runner;
}

absl::Status BackwardRunner::Check(const BackwardOptions& options, const BackwardItem& item) const {
  DEEPPCR_RETURN_IF_ERROR(CheckSamples(item.samples, shape_));
  const int64_t n = item.samples.num_samples, dim = shape_.state_dim, m = item.columns;
  if (m < 1 || m > kMostCotangents)
    return InvalidArgument("run item: columns: expected 1 .. ", kMostCotangents, ", got ", m);
  if (item.of_outputs.empty() && item.of_final.empty())
    return InvalidArgument("run item: expected cotangents of the outputs or of the final states");
  const auto check = [&](std::string_view what, auto span, int64_t expected) {
    return span.empty() ? absl::OkStatus() : CheckItemSize(what, span.size(), expected);
  };
  DEEPPCR_RETURN_IF_ERROR(
      CheckItemSize("states", item.states.size(), n * (shape_.num_steps + 1) * dim));
  DEEPPCR_RETURN_IF_ERROR(CheckItemSize("reports", item.reports.size(), n));
  DEEPPCR_RETURN_IF_ERROR(check("of_outputs", item.of_outputs, n * m * shape_.output_dim));
  DEEPPCR_RETURN_IF_ERROR(check("of_final", item.of_final, n * m * dim));
  DEEPPCR_RETURN_IF_ERROR(check("inputs", item.inputs, n * m * shape_.input_dim));
  DEEPPCR_RETURN_IF_ERROR(check("initial", item.initial, n * m * shape_.sample_dim()));
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t noise,
                           CheckedProduct({n, m, shape_.num_steps, shape_.sample_dim()}));
  DEEPPCR_RETURN_IF_ERROR(check("step_noise", item.step_noise, shape_.draws_noise ? noise : 0));
  const bool parameters = shape_.has_parameter_gradients && m == 1;
  DEEPPCR_RETURN_IF_ERROR(
      check("deltas", item.deltas, parameters ? n * shape_.num_steps * dim : 0));
  DEEPPCR_RETURN_IF_ERROR(
      check("encode_deltas", item.encode_deltas, m == 1 && shape_.has_input_layer ? n * dim : 0));
  DEEPPCR_RETURN_IF_ERROR(
      check("state_cotangents", item.state_cotangents,
            m == 1 && gives_state_cotangents_ ? n * shape_.num_steps * dim : 0));
  if (options.way == BackwardWay::kSequential) return absl::OkStatus();
  if (!limits_.parallel || options.shooting_interval < limits_.min_shooting_interval ||
      options.shooting_interval > shape_.num_steps)
    return InvalidArgument("run item: shooting_interval: expected ", limits_.min_shooting_interval,
                           " .. ", shape_.num_steps, ", got ", options.shooting_interval);
  return absl::OkStatus();
}

absl::Status BackwardRunner::Run(const BackwardOptions& options,
                                 std::span<BackwardItem> items) const {
  if (items.empty()) return absl::InvalidArgumentError("run: expected at least one item");
  for (const BackwardItem& item : items) DEEPPCR_RETURN_IF_ERROR(Check(options, item));
  Batch batch(*this, options, items);
  pool_->ParallelFor(batch.num_groups(), batch);
  return batch.status();
}

}  // namespace deeppcr
