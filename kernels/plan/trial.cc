// SPDX-License-Identifier: Apache-2.0
#include "kernels/plan/trial.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <tuple>

#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/plan/candidates.h"
#include "kernels/solver/registry.h"

namespace deeppcr {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

std::string Describe(const Trial& trial) {
  char text[320];
  std::snprintf(text, sizeof(text),
                "%-12s C=%-5d guess=%-10s sweeps=%d refresh=%-17s  %s  %.3g Mflop  K=%.1f  "
                "stages=%.0f  error=%.1e",
                trial.choice.solver.c_str(), trial.choice.shooting_interval,
                std::string(ToString(trial.choice.initial_guess)).c_str(), trial.choice.warm_sweeps,
                std::string(ToString(trial.choice.jacobian_refresh)).c_str(),
                trial.met_tolerance ? "ok    " : "missed", trial.cost.flops / 1e6, trial.iterations,
                trial.cost.stages, trial.error);
  if (!trial.met_tolerance) return StrCat(text, " (", trial.why_not, ")");
  return trial.within_steps ? text : StrCat(text, " (more stages than steps: not for auto)");
}

bool AtOnce(const PlannerOptions& options, const PlanChoice& choice) {
  const SolverRow* const row = FindSolver(choice.solver);
  return options.solves_at_once != nullptr && row != nullptr && row->iterative &&
         row->linearization == Linearization::kFull && choice.warm_sweeps == 0 &&
         options.solves_at_once(choice.shooting_interval);
}

const Trial* BestOf(const std::vector<Trial>& trials, const CostRates& rates) {
  const bool within = std::any_of(trials.begin(), trials.end(),
                                  [](const Trial& t) { return t.met_tolerance && t.within_steps; });
  const auto eligible = [&](const Trial& t) { return t.met_tolerance && t.within_steps >= within; };
  const Trial* best = nullptr;
  double least = 0;
  for (const Trial& trial : trials) {
    const double seconds = trial.cost.Seconds(rates, 1);
    if (eligible(trial) && (least == 0 || seconds < least)) least = seconds;
  }
  const auto order = [](const Trial& t) {
    return std::tuple(!t.at_once, t.cost.stages, t.cost.flops, t.choice.shooting_interval);
  };
  for (const Trial& trial : trials) {
    if (!eligible(trial) || trial.cost.Seconds(rates, 1) > kEqualWork * least) continue;
    if (best == nullptr || order(trial) < order(*best)) best = &trial;
  }
  return best;
}

TrialBench::TrialBench(const Runner& runner, const CalibrationInputs& inputs,
                       const PlannerOptions& options)
    : runner_(runner),
      shape_(runner.shape()),
      inputs_(inputs),
      options_(options),
      states_((shape_.num_steps + 1) * shape_.state_dim),
      trajectory_(states_),
      outputs_(shape_.output_dim * options.max_batch_size),
      reports_(options.max_batch_size) {
  const double affordable = kReferenceShare * options.flops_in_all / SequentialCost(shape_).flops;
  judged_ = static_cast<int>(std::clamp<double>(affordable, kJudgedIfHopeless, kJudgedSamples));
  reference_.resize(states_ * judged_);
}

ResolvedOptions TrialBench::Resolve(const PlanChoice& choice) const {
  return {.solver = FindSolver(choice.solver)->name,
          .rtol = options_.rtol,
          .atol = options_.atol,
          .max_iterations =
              static_cast<int32_t>(std::min<int64_t>(Intervals(choice), kDefaultMostIterations)),
          .shooting_interval = choice.shooting_interval,
          .warm_sweeps = choice.warm_sweeps,
          .initial_guess = choice.initial_guess,
          .jacobian_refresh = choice.jacobian_refresh,
          .on_no_convergence = OnNoConvergence::kReturn};
}

absl::StatusOr<double> TrialBench::RunSamples(const ResolvedOptions& options, int64_t first,
                                              int64_t n, float* trajectory) {
  const double limit = options_.seconds_per_run * static_cast<double>(n);
  const CancelToken token(
      Clock::now() + std::chrono::microseconds(static_cast<int64_t>(1e6 * limit)), options_.token);
  const OwnedSampleInputs samples = CalibrationSamples(inputs_, shape_, first, n);
  RunItem item{.samples = samples.View(),
               .outputs = std::span(outputs_).first(n * shape_.output_dim),
               .reports = std::span(reports_).first(n),
               .token = &token};
  if (trajectory != nullptr) item.trajectory = {trajectory, static_cast<size_t>(states_)};
  RunTimings timings;
  DEEPPCR_RETURN_IF_ERROR(runner_.Run(options, {&item, 1}, &timings));
  return timings.wall_seconds;
}

absl::StatusOr<double> TrialBench::Time(const ResolvedOptions& options, int64_t first, int64_t n) {
  DEEPPCR_ASSIGN_OR_RETURN(const double seconds, RunSamples(options, first, n, nullptr));
  in_time_ = std::none_of(reports_.begin(), reports_.begin() + n, [](const SampleReport& report) {
    return report.termination == Termination::kDeadline;
  });
  return seconds;
}

absl::StatusOr<std::string> TrialBench::RunReference() {
  for (int s = 0; s < judged_; ++s) {
    DEEPPCR_RETURN_IF_ERROR(
        RunSamples({.solver = "sequential"}, s, 1, reference_.data() + s * states_).status());
    if (!reports_[0].converged)
      return StrCat("sample ", s, " of the calibration is ", ToString(reports_[0].termination),
                    " with the sequential solver");
  }
  return std::string();
}

// Largest relative error of the trajectory at interval ends, max norm.
double TrialBench::TrueError(int s, int64_t interval) const {
  double worst = 0;
  for (int64_t l = interval; l < shape_.num_steps + interval; l += interval) {
    const int64_t at = std::min(l, shape_.num_steps) * shape_.state_dim;
    double error = 0, size = 0;
    for (int64_t i = 0; i < shape_.state_dim; ++i) {
      const double expected = reference_[s * states_ + at + i];
      error = std::max(error, std::fabs(trajectory_[at + i] - expected));
      size = std::max(size, std::fabs(expected));
    }
    worst = std::max(worst, error / (size + options_.atol / options_.rtol));
  }
  return worst;
}

absl::Status TrialBench::JudgeSample(int s, const ResolvedOptions& options, Trial* trial) {
  DEEPPCR_RETURN_IF_ERROR(RunSamples(options, s, 1, trajectory_.data()).status());
  const SampleReport& report = reports_[0];
  const double flops =
      CountedFlops(shape_, Intervals(trial->choice), static_cast<double>(report.column_passes),
                   static_cast<double>(report.iterations));
  spent_flops_ += flops;
  trial->cost.flops += flops;
  trial->cost.stages = std::max(trial->cost.stages, static_cast<double>(report.dependent_stages));
  trial->iterations += report.iterations;
  trial->error = std::max(trial->error, TrueError(s, trial->choice.shooting_interval));
  trial->rounding = std::max(trial->rounding, report.rounding_estimate.value_or(0));
  if (!report.converged) {
    trial->why_not = std::string(ToString(report.termination));
  } else if (trial->error > options_.rtol) {
    trial->why_not = "wrong";
  }
  if (report.dependent_stages > shape_.num_steps) trial->within_steps = false;
  trial->met_tolerance = trial->why_not.empty();
  return absl::OkStatus();
}

// Number of iterations that fit into this counted work, at most as many as the solver would make.
int32_t TrialBench::IterationsWithin(const PlanChoice& choice, double max_flops) const {
  const bool newton = FindSolver(choice.solver)->linearization == Linearization::kFull;
  const double columns = static_cast<double>(newton ? shape_.state_dim + 1 : 1);
  const double each = CountedFlops(shape_, Intervals(choice), columns, 1);
  const double most = Resolve(choice).max_iterations;
  return static_cast<int32_t>(std::clamp(max_flops / each, 0.0, most));
}

absl::StatusOr<Trial> TrialBench::Run(const PlanChoice& choice, double max_flops) {
  Trial trial{.choice = choice, .met_tolerance = true, .at_once = AtOnce(options_, choice)};
  ResolvedOptions resolved = Resolve(choice);
  resolved.max_iterations = IterationsWithin(choice, max_flops);
  if (resolved.max_iterations < 1)
    return Trial{.choice = choice, .why_not = "not run: too much work"};
  int judged = judged_, done = 0;
  for (; done < judged && trial.met_tolerance; ++done) {
    DEEPPCR_RETURN_IF_ERROR(JudgeSample(done, resolved, &trial));
    if (trial.cost.Seconds(options_.rates, 1) >
        kHopeless * SequentialCost(shape_).Seconds(options_.rates, 1))
      judged = std::min(judged, kJudgedIfHopeless);
  }
  trial.cost.flops /= done;
  trial.iterations /= done;
  return trial;
}

}  // namespace deeppcr
