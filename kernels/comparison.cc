// SPDX-License-Identifier: Apache-2.0
#include "kernels/comparison.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"

namespace deeppcr {
namespace {

class Comparison {
 public:
  Comparison(const Runner& runner, const SampleInputs& samples, const CancelToken* token)
      : runner_(runner), shape_(runner.shape()), samples_(samples), token_(token) {
    samples_.initial_states = {};
  }

  // Null for a row that cannot run.
  std::vector<const ResolvedOptions*> resolved;
  std::vector<ComparisonRow> rows;

  void Add(const absl::StatusOr<ResolvedOptions>& options) {
    ComparisonRow& row = rows.emplace_back();
    resolved.push_back(nullptr);
    if (!options.ok()) {
      row.error = std::string(ToStd(options.status().message()));
    } else if (options->initial_guess == InitialGuess::kPrevious) {
      row.error = "initial_guess: previous has no meaning in a comparison";
    } else {
      row.shooting_interval = options->shooting_interval;
      resolved.back() = &*options;
    }
  }

  // True if there is a row that can run.
  bool Runs() const {
    return std::any_of(resolved.begin(), resolved.end(),
                       [](const auto* o) { return o != nullptr; });
  }

  // One timed run of every row, one after the other, so that a slow moment of the machine hits all
  // of them.
  absl::Status TimeOnce() {
    for (size_t r = 0; r < rows.size(); ++r) {
      if (resolved[r] == nullptr) continue;
      ComparisonRow& row = rows[r];
      row.outputs.resize(samples_.num_samples * shape_.output_dim);
      row.reports.resize(samples_.num_samples);
      RunTimings timings;
      DEEPPCR_RETURN_IF_ERROR(Run(*resolved[r], samples_, row.outputs, {}, row.reports, &timings));
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
    for (int64_t s = 0; s < samples_.num_samples; ++s) {
      const SampleInputs sample = SamplesOf(samples_, s, 1);
      DEEPPCR_RETURN_IF_ERROR(
          Run({.solver = "sequential"}, sample, answer, expected, {&report, 1}, nullptr));
      for (size_t r = 0; r < rows.size(); ++r) {
        if (resolved[r] == nullptr) continue;
        DEEPPCR_RETURN_IF_ERROR(Run(*resolved[r], sample, outputs, got, {&report, 1}, nullptr));
        RaiseTo(StateError(got, expected, 1, 0), &rows[r].max_state_error);
        RaiseTo(StateError(got, expected, resolved[r]->rtol, resolved[r]->atol),
                &rows[r].max_error_over_tolerance);
        RaiseTo(LargestDifference(outputs, answer), &rows[r].max_output_difference);
      }
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Run(const ResolvedOptions& options, const SampleInputs& samples,
                   std::span<float> outputs, std::span<float> trajectory,
                   std::span<SampleReport> reports, RunTimings* timings) const {
    RunItem item{.samples = samples,
                 .outputs = outputs,
                 .trajectory = trajectory,
                 .reports = reports,
                 .token = token_};
    DEEPPCR_RETURN_IF_ERROR(runner_.Run(options, {&item, 1}, timings));
    return Stopped();
  }

  absl::Status Stopped() const {
    const StopReason reason = token_ == nullptr ? StopReason::kNone : token_->stop_reason();
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

  // Largest difference of a step's state over relative * |z| + absolute.
  double StateError(std::span<const float> got, std::span<const float> expected, double relative,
                    double absolute) const {
    double worst = 0;
    for (int64_t l = 1; l <= shape_.num_steps; ++l) {
      const std::span<const float> z = expected.subspan(l * shape_.state_dim, shape_.state_dim);
      const double error =
          LargestDifference(got.subspan(l * shape_.state_dim, shape_.state_dim), z);
      double size = 0;
      for (const float x : z) size = std::max(size, double{std::fabs(x)});
      if (error != 0) RaiseTo(error / (relative * size + absolute), &worst);
    }
    return worst;
  }

  const Runner& runner_;
  const SystemShape shape_;
  SampleInputs samples_;
  const CancelToken* const token_;
};

}  // namespace

absl::StatusOr<std::vector<ComparisonRow>> CompareSolvers(
    const Runner& runner, const SampleInputs& samples,
    std::span<const absl::StatusOr<ResolvedOptions>> options, const ComparisonLimits& limits,
    const CancelToken* token) {
  Comparison comparison(runner, samples, token);
  for (const absl::StatusOr<ResolvedOptions>& row : options) comparison.Add(row);
  // Rows of which none can run do not say which system the samples are for.
  if (!comparison.Runs()) return std::move(comparison.rows);
  // The first round warms caches and is not counted.
  const CancelToken::Clock::time_point start = CancelToken::Clock::now();
  for (int i = 0; i <= limits.repetitions; ++i) {
    const std::chrono::duration<double> spent = CancelToken::Clock::now() - start;
    // Judging takes about two rounds.
    if (i > 1 && spent.count() * (1 + 3.0 / i) > limits.seconds) break;
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
