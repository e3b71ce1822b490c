// SPDX-License-Identifier: Apache-2.0
#include "kernels/plan/planner.h"

#include <algorithm>
#include <chrono>
#include <optional>

#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/plan/candidates.h"
#include "kernels/plan/clock.h"
#include "kernels/plan/trial.h"
#include "kernels/solver/registry.h"

namespace deeppcr {
namespace {

using Clock = PlanClock;

double LeastRtol(const std::vector<Trial>& chosen) {
  double rounding = 0;
  for (const Trial& trial : chosen) rounding = std::max(rounding, trial.rounding);
  return kRoundingMargin * rounding;
}

class Planner {
 public:
  Planner(const Runner& runner, const CalibrationInputs& inputs, const PlannerOptions& options)
      : runner_(runner),
        options_(options),
        start_(Clock::now()),
        bench_(runner, inputs, options),
        sequential_(SequentialCost(bench_.shape())) {}

  absl::StatusOr<Plan> Measure() {
    DEEPPCR_ASSIGN_OR_RETURN(const std::string why_not, bench_.RunReference());
    if (!why_not.empty()) plan_.candidates.push_back(StrCat("none tried: ", why_not));
    const std::vector<const SolverRow*> rows = why_not.empty() ? Eligible() : Rows();
    for (const SolverRow* row : rows)
      DEEPPCR_RETURN_IF_ERROR(Search(*row, options_.flops_in_all / std::ssize(rows)));
    best_ = BestOf(chosen_, options_.rates);
    if (best_ != nullptr && !best_->within_steps) best_ = nullptr;
    timing_start_ = Clock::now();
    for (int64_t n = 1; n < options_.max_batch_size; n *= 2) DEEPPCR_RETURN_IF_ERROR(AddEntry(n));
    DEEPPCR_RETURN_IF_ERROR(AddEntry(options_.max_batch_size));
    if (Fired(options_.token)) return absl::CancelledError("stopped while the plan was measured");
    plan_.rtol = options_.rtol;
    plan_.least_rtol = LeastRtol(chosen_);
    plan_.measured_seconds = SecondsSince(start_);
    return std::move(plan_);
  }

  absl::Status Check(Plan* plan) {
    DEEPPCR_ASSIGN_OR_RETURN(const std::string why_not, bench_.RunReference());
    const std::vector<PlanChoice> choices = ChoicesOf(*plan);
    if (Fired(options_.token)) return absl::CancelledError("stopped while a plan was checked");
    if (!why_not.empty() && !choices.empty()) return absl::FailedPreconditionError(why_not);
    for (const PlanChoice& choice : choices) {
      const double left = options_.flops_in_all - bench_.spent_flops();
      DEEPPCR_ASSIGN_OR_RETURN(const Trial trial, Try(choice, left));
      if (Fired(options_.token)) return absl::CancelledError("stopped while a plan was checked");
      if (!trial.met_tolerance || (!trial.within_steps && IsForAuto(*plan, choice)))
        return absl::FailedPreconditionError(Describe(trial));
      for (PlanEntry& entry : plan->entries) {
        if (entry.has_parallel() && entry.parallel == choice) Note(trial, &entry);
      }
      chosen_.push_back(trial);
    }
    plan->least_rtol = LeastRtol(chosen_);
    plan->candidates = std::move(plan_.candidates);
    return absl::OkStatus();
  }

 private:
  using Rows = std::vector<const SolverRow*>;

  // Every choice that a request may run.
  static std::vector<PlanChoice> ChoicesOf(const Plan& plan) {
    std::vector<PlanChoice> choices = plan.choices;
    for (const PlanEntry& entry : plan.entries) {
      const bool none = entry.solver == "sequential" && entry.parallel == PlanChoice{};
      if (!none && std::find(choices.begin(), choices.end(), entry.parallel) == choices.end())
        choices.push_back(entry.parallel);
    }
    return choices;
  }

  static bool IsForAuto(const Plan& plan, const PlanChoice& choice) {
    return std::any_of(plan.entries.begin(), plan.entries.end(), [&](const PlanEntry& entry) {
      return entry.solver != "sequential" && entry.parallel == choice;
    });
  }

  Rows Eligible() const {
    Rows rows;
    for (const SolverRow& row : Solvers()) {
      if (runner_.limits().iterative && row.iterative && row.automatic &&
          Suits(row, bench_.shape()))
        rows.push_back(&row);
    }
    return rows;
  }

  absl::StatusOr<Trial> Try(const PlanChoice& choice, double max_flops) {
    if (options_.progress) options_.progress(StrCat("measuring ", Describe(choice)));
    DEEPPCR_ASSIGN_OR_RETURN(Trial trial, bench_.Run(choice, max_flops));
    plan_.candidates.push_back(Describe(trial));
    return trial;
  }

  // Tries a choice that has not been tried, within the rest of the solver's share of the work.
  absl::Status Consider(const PlanChoice& choice, double until, std::vector<Trial>* trials) {
    const auto same = [&](const Trial& trial) { return trial.choice == choice; };
    if (Fired(options_.token) || std::any_of(trials->begin(), trials->end(), same))
      return absl::OkStatus();
    const Trial* best = BestOf(*trials, options_.rates);
    double max_flops = until - bench_.spent_flops();
    if (best != nullptr) max_flops = std::min(max_flops, kGiveUp * best->cost.flops);
    DEEPPCR_ASSIGN_OR_RETURN(Trial trial, Try(choice, max_flops));
    trials->push_back(std::move(trial));
    return absl::OkStatus();
  }

  std::vector<int32_t> Intervals(const SolverRow& row) const {
    std::vector<int32_t> intervals;
    int64_t largest = row.max_shooting_interval > 0 ? row.max_shooting_interval
                                                    : std::ranges::max(kIntervalCandidates);
    if (bench_.shape().short_intervals) largest = std::min(largest, kMostOfShortIntervals);
    for (const int32_t c : kIntervalCandidates) {
      if (c <= largest && c >= runner_.limits().min_shooting_interval &&
          (c == 1 || 2 * int64_t{c} <= bench_.shape().num_steps))
        intervals.push_back(c);
    }
    AddAtOnce(row, static_cast<int32_t>(largest), &intervals);
    return intervals;
  }

  // Adds the least C with which the backend solves at once, where no other does; it goes first.
  void AddAtOnce(const SolverRow& row, int32_t largest, std::vector<int32_t>* intervals) const {
    const auto at_once = [&](int32_t c) {
      return AtOnce(options_, {.solver = std::string(row.name), .shooting_interval = c});
    };
    if (std::any_of(intervals->begin(), intervals->end(), at_once)) return;
    const auto first = static_cast<int32_t>(runner_.limits().min_shooting_interval);
    for (int32_t c = first; c <= largest && 2 * int64_t{c} <= bench_.shape().num_steps; ++c) {
      if (!at_once(c)) continue;
      intervals->insert(intervals->begin(), c);
      return;
    }
  }

  absl::Status Search(const SolverRow& row, double flops) {
    const double until = bench_.spent_flops() + flops;
    std::vector<Trial> trials;
    for (const int32_t c : Intervals(row))
      DEEPPCR_RETURN_IF_ERROR(Consider(
          {.solver = std::string(row.name), .shooting_interval = c, .initial_guess = BestGuess()},
          until, &trials));
    DEEPPCR_RETURN_IF_ERROR(Refine(row, until, &trials));
    const Trial* best = BestOf(trials, options_.rates);
    if (best == nullptr) return absl::OkStatus();
    plan_.choices.push_back(best->choice);
    chosen_.push_back(*best);
    return absl::OkStatus();
  }

  // The guess that usually needs the fewest iterations.
  InitialGuess BestGuess() const {
    if (bench_.shape().coarse_guess) return InitialGuess::kCoarse;
    return options_.calibrated_guess ? InitialGuess::kCalibrated : InitialGuess::kConstant;
  }

  // Tries the options that the solver takes, each as a change of the best choice so far. The
  // constant guess, which warm sweeps improve, goes with them.
  absl::Status Refine(const SolverRow& row, double until, std::vector<Trial>* trials) {
    const auto consider = [&](auto change) -> absl::Status {
      const Trial* best = BestOf(*trials, options_.rates);
      if (best == nullptr) return absl::OkStatus();
      PlanChoice choice = best->choice;
      change(choice);
      return Consider(choice, until, trials);
    };
    if (row.takes_warm_sweeps) {
      DEEPPCR_RETURN_IF_ERROR(
          consider([](PlanChoice& c) { c.initial_guess = InitialGuess::kConstant; }));
      for (const int32_t sweeps : kSweepCandidates)
        DEEPPCR_RETURN_IF_ERROR(consider([=](PlanChoice& c) { c.warm_sweeps = sweeps; }));
    }
    if (!row.takes_refresh) return absl::OkStatus();
    return consider([](PlanChoice& c) { c.jacobian_refresh = JacobianRefresh::kWhileContracting; });
  }

  // Sequential seconds over parallel ones, as counted.
  double CountedRatio(int64_t n) const {
    const auto samples = static_cast<double>(n);
    return sequential_.Seconds(options_.rates, samples) /
           best_->cost.Seconds(options_.rates, samples);
  }

  // Times runs in turns, until the time for repetitions is up. A run that a deadline cut off leaves
  // no figure.
  absl::StatusOr<Timing> TimeInTurns(int64_t n) {
    const bool parallel = best_ != nullptr && (n == 1 || CountedRatio(n) > 1 / kNotTimed);
    Timing timing;
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < kRepetitions && (i == 0 || SecondsSince(start) < kRepeatedSeconds); ++i) {
      DEEPPCR_RETURN_IF_ERROR(TimeOne({.solver = "sequential"}, n, &timing.sequential));
      if (parallel)
        DEEPPCR_RETURN_IF_ERROR(TimeOne(bench_.Resolve(best_->choice), n, &timing.parallel));
    }
    return timing;
  }
  absl::Status TimeOne(const ResolvedOptions& options, int64_t n, std::vector<double>* seconds) {
    DEEPPCR_ASSIGN_OR_RETURN(const double taken, bench_.Time(options, 0, n));
    if (bench_.in_time()) seconds->push_back(taken);
    return absl::OkStatus();
  }

  static void Note(const Trial& trial, PlanEntry* entry) {
    entry->parallel_iterations = trial.iterations;
    entry->parallel_error = trial.error;
    entry->parallel_stages = static_cast<int64_t>(trial.cost.stages);
  }

  // Adds the entry for requests of up to n samples.
  absl::Status AddEntry(int64_t n) {
    PlanEntry entry{.max_samples = static_cast<int32_t>(n)};
    Timing timing;
    const bool in_time = SecondsSince(timing_start_) < options_.seconds_of_timing;
    if ((n == 1 || in_time) && !Fired(options_.token)) {
      DEEPPCR_ASSIGN_OR_RETURN(timing, TimeInTurns(n));
    }
    entry.sequential_seconds = MedianOf(timing.sequential);
    entry.parallel_seconds = MedianOf(timing.parallel);
    if (best_ != nullptr) {
      entry.parallel = best_->choice;
      Note(*best_, &entry);
      if (ParallelIsFaster(CountedRatio(n), timing)) entry.solver = best_->choice.solver;
    }
    plan_.entries.push_back(std::move(entry));
    return absl::OkStatus();
  }

  const Runner& runner_;
  const PlannerOptions& options_;
  const Clock::time_point start_;
  TrialBench bench_;
  const CountedCost sequential_;
  Clock::time_point timing_start_;
  std::vector<Trial> chosen_;    // one per entry of plan_.choices
  const Trial* best_ = nullptr;  // points into chosen_
  Plan plan_;
};

}  // namespace

bool ParallelIsFaster(double counted_ratio, const Timing& timing) {
  if (std::min(timing.sequential.size(), timing.parallel.size()) < kFewestTimes)
    return counted_ratio > 1;
  const double measured = *std::min_element(timing.sequential.begin(), timing.sequential.end()) /
                          *std::min_element(timing.parallel.begin(), timing.parallel.end());
  return counted_ratio > 1 ? measured > 1 / kClearlyFaster : measured > kClearlyFaster;
}

absl::StatusOr<Plan> MeasurePlan(const Runner& runner, const CalibrationInputs& inputs,
                                 const PlannerOptions& options) {
  return Planner(runner, inputs, options).Measure();
}

absl::Status CheckPlan(const Runner& runner, const CalibrationInputs& inputs,
                       const PlannerOptions& options, Plan* plan) {
  return Planner(runner, inputs, options).Check(plan);
}

}  // namespace deeppcr
