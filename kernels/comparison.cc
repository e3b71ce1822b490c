// SPDX-License-Identifier: Apache-2.0
#include "kernels/comparison.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"

namespace deeppcr {
namespace {

class Comparison {
 public:
  Comparison(const Runner& runner, const RunItem& request)
      : runner_(runner),
        shape_(runner.shape()),
        request_(request),
        num_samples_(request.num_samples) {}

  // Resolved options, or none for a row that cannot run.
  std::vector<std::optional<ResolvedOptions>> resolved;
  std::vector<ComparisonRow> rows;

  // Times one run of every row, one after the other, so that a slow moment of the machine hits all
  // rows.
  absl::Status TimeOnce() {
    for (size_t r = 0; r < rows.size(); ++r) {
      if (!resolved[r].has_value()) continue;
      ComparisonRow& row = rows[r];
      row.outputs.resize(num_samples_ * shape_.output_dim);
      row.reports.resize(num_samples_);
      RunTimings timings;
      DEEPPCR_RETURN_IF_ERROR(
          Run(*resolved[r], 0, num_samples_, row.outputs, {}, row.reports, &timings));
      row.seconds.push_back(timings.wall_seconds);
      row.solver = std::string(row.reports[0].solver);
    }
    return absl::OkStatus();
  }

  // Errors of every row against the sequential trajectory, sample by sample.
  absl::Status Judge() {
    const int64_t states = (shape_.num_steps + 1) * shape_.state_dim;
    std::vector<float> expected(states), got(states), answer(shape_.output_dim),
        outputs(shape_.output_dim);
    SampleReport report;
    for (int64_t s = 0; s < num_samples_; ++s) {
      DEEPPCR_RETURN_IF_ERROR(
          Run({.solver = "sequential"}, s, 1, answer, expected, {&report, 1}, nullptr));
      for (size_t r = 0; r < rows.size(); ++r) {
        if (!resolved[r].has_value()) continue;
        DEEPPCR_RETURN_IF_ERROR(Run(*resolved[r], s, 1, outputs, got, {&report, 1}, nullptr));
        RaiseTo(StateError(got, expected), &rows[r].max_state_error);
        RaiseTo(LargestDifference(outputs, answer), &rows[r].max_output_difference);
      }
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Run(const ResolvedOptions& options, int64_t first, int64_t n,
                   std::span<float> outputs, std::span<float> trajectory,
                   std::span<SampleReport> reports, RunTimings* timings) const {
    RunItem item = InputsOf(request_, first, n);
    item.initial_states = {};
    item.outputs = outputs;
    item.trajectory = trajectory;
    item.reports = reports;
    DEEPPCR_RETURN_IF_ERROR(runner_.Run(options, {&item, 1}, timings));
    return Stopped();
  }

  absl::Status Stopped() const {
    const StopReason reason =
        request_.token == nullptr ? StopReason::kNone : request_.token->stop_reason();
    if (reason == StopReason::kDeadline)
      return absl::DeadlineExceededError("deadline passed during the comparison");
    if (reason == StopReason::kCancelled)
      return absl::CancelledError("cancelled during the comparison");
    return absl::OkStatus();
  }

  // The larger of the two; a NaN counts as largest and is not hidden.
  static void RaiseTo(double value, double* largest) {
    if (!(value <= *largest)) *largest = value;
  }

  static double LargestDifference(std::span<const float> a, std::span<const float> b) {
    double largest = 0;
    for (size_t i = 0; i < a.size(); ++i) RaiseTo(std::fabs(double{a[i]} - b[i]), &largest);
    return largest;
  }

  double StateError(std::span<const float> got, std::span<const float> expected) const {
    double worst = 0;
    for (int64_t l = 1; l <= shape_.num_steps; ++l) {
      const std::span<const float> z = expected.subspan(l * shape_.state_dim, shape_.state_dim);
      const double error =
          LargestDifference(got.subspan(l * shape_.state_dim, shape_.state_dim), z);
      double size = 0;
      for (const float x : z) size = std::max(size, double{std::fabs(x)});
      if (error != 0) RaiseTo(error / size, &worst);
    }
    return worst;
  }

  const Runner& runner_;
  const SystemShape shape_;
  const RunItem& request_;
  const int64_t num_samples_;
};

}  // namespace

absl::StatusOr<std::vector<ComparisonRow>> CompareSolvers(const LoadedModel& model,
                                                          const Runner& runner,
                                                          const RunItem& request,
                                                          std::span<const SolveOptions> options,
                                                          int repetitions) {
  Comparison comparison(runner, request);
  for (const SolveOptions& o : options) {
    absl::StatusOr<ResolvedOptions> resolved = model.Resolve(o, request.num_samples);
    ComparisonRow row;
    if (resolved.ok() && resolved->initial_guess == InitialGuess::kPrevious)
      resolved =
          absl::InvalidArgumentError("initial_guess: previous has no meaning in a comparison");
    if (!resolved.ok()) row.error = std::string(ToStd(resolved.status().message()));
    if (resolved.ok()) row.shooting_interval = resolved->shooting_interval;
    comparison.rows.push_back(std::move(row));
    comparison.resolved.push_back(resolved.ok() ? std::optional(*resolved) : std::nullopt);
  }
  // The first round warms caches and is not counted.
  for (int i = 0; i <= repetitions; ++i) {
    DEEPPCR_RETURN_IF_ERROR(comparison.TimeOnce());
    if (i == 0) {
      for (ComparisonRow& row : comparison.rows) row.seconds.clear();
    }
  }
  DEEPPCR_RETURN_IF_ERROR(comparison.Judge());
  for (ComparisonRow& row : comparison.rows) std::sort(row.seconds.begin(), row.seconds.end());
  return std::move(comparison.rows);
}

}  // namespace deeppcr
