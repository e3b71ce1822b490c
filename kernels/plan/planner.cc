// SPDX-License-Identifier: Apache-2.0
#include "kernels/plan/planner.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <optional>

#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/solver/registry.h"

namespace deeppcr {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRepetitions = 5;
constexpr double kRepeatedSeconds = 0.25;  // no more repetitions after that

// A candidate that takes so many sequential solves is of no use to `auto`. A request that names the
// solver still gets the best choice for it, judged by fewer samples.
constexpr double kHopeless = 10;
constexpr int kJudgedIfHopeless = 2;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<int64_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// What a candidate achieved with one sample at a time.
struct Evaluation {
  PlanChoice choice;
  bool met_tolerance = false;
  double seconds = 0;
  double iterations = 0;  // mean
  double error = 0;       // worst
  int64_t stages = 0;     // worst
};

std::string Describe(const Evaluation& e) {
  char text[256];
  std::snprintf(text, sizeof(text),
                "%-12s C=%-5d guess=%-10s sweeps=%d refresh=%-17s  %s  %.1f us  K=%.1f  "
                "stages=%lld  error=%.1e",
                e.choice.solver.c_str(), e.choice.shooting_interval,
                std::string(ToString(e.choice.initial_guess)).c_str(), e.choice.warm_sweeps,
                std::string(ToString(e.choice.jacobian_refresh)).c_str(),
                e.met_tolerance ? "ok    " : "missed", e.seconds * 1e6, e.iterations,
                static_cast<long long>(e.stages), e.error);
  return text;
}

class Planner {
 public:
  Planner(const Runner& runner, const CalibrationInputs& inputs, const PlannerOptions& options)
      : runner_(runner),
        shape_(runner.shape()),
        inputs_(inputs),
        options_(options),
        start_(Clock::now()),
        states_((shape_.num_steps + 1) * shape_.state_dim),
        trajectory_(states_),
        reference_(states_ * kJudgedSamples),
        outputs_(shape_.output_dim * options.max_batch_size),
        reports_(options.max_batch_size) {}

  absl::StatusOr<Plan> Measure() {
    DEEPPCR_ASSIGN_OR_RETURN(const bool judgeable, RunReference());
    for (const SolverRow& row : Solvers()) {
      if (judgeable && runner_.limits().iterative && row.iterative && row.automatic &&
          Suits(row, shape_.diffusion))
        DEEPPCR_RETURN_IF_ERROR(Search(row));
    }
    for (int64_t n = 1; n < options_.max_batch_size && (n == 1 || TimeLeft()); n *= 2)
      DEEPPCR_RETURN_IF_ERROR(AddEntry(n));
    DEEPPCR_RETURN_IF_ERROR(AddLastEntry());
    if (Fired(options_.token)) return absl::CancelledError("stopped while the plan was measured");
    plan_.rtol = options_.rtol;
    plan_.measured_seconds = SecondsSince(start_);
    return std::move(plan_);
  }

 private:
  ResolvedOptions Resolve(const PlanChoice& choice) const {
    const SolverRow* row = FindSolver(choice.solver);
    const int64_t intervals = (shape_.num_steps - 1) / choice.shooting_interval + 1;
    return {.solver = row->name,
            .rtol = options_.rtol,
            .atol = options_.atol,
            .max_iterations = static_cast<int32_t>(std::min<int64_t>(intervals, 32)),
            .shooting_interval = choice.shooting_interval,
            .warm_sweeps = choice.warm_sweeps,
            .initial_guess = choice.initial_guess,
            .jacobian_refresh = choice.jacobian_refresh,
            .on_no_convergence = OnNoConvergence::kReturn};
  }

  // One run of samples [first, first + n); seconds of it.
  absl::StatusOr<double> Run(const ResolvedOptions& options, int64_t first, int64_t n,
                             float* trajectory) {
    const CancelToken token(
        Clock::now() + std::chrono::microseconds(static_cast<int64_t>(
                           1e6 * options_.seconds_per_run * static_cast<double>(n))),
        options_.token);
    const CalibrationBatch batch(inputs_, shape_, first, n);
    RunItem item = batch.Item();
    item.outputs = std::span(outputs_).first(n * shape_.output_dim);
    if (trajectory != nullptr) item.trajectory = {trajectory, static_cast<size_t>(states_)};
    item.reports = std::span(reports_).first(n);
    item.token = &token;
    RunTimings timings;
    DEEPPCR_RETURN_IF_ERROR(runner_.Run(options, {&item, 1}, &timings));
    return timings.wall_seconds;
  }

  // The sequential answers that candidates are judged by; false where there is none, because a
  // sample overflowed or took too long.
  absl::StatusOr<bool> RunReference() {
    std::vector<double> seconds;
    for (int s = 0; s < kJudgedSamples; ++s) {
      DEEPPCR_ASSIGN_OR_RETURN(
          const double t, Run({.solver = "sequential"}, s, 1, reference_.data() + s * states_));
      if (!reports_[0].converged) {
        plan_.candidates.push_back(StrCat("none measured: sample ", s, " of the calibration is ",
                                          ToString(reports_[0].termination),
                                          " with the sequential solver"));
        return false;
      }
      seconds.push_back(t);
    }
    sequential_seconds_ = Median(seconds);
    return true;
  }

  // Largest relative error of the trajectory at interval ends, max norm.
  double TrueError(int s, int64_t interval) const {
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

  // Checks a choice on the judged samples and times it; one that is hopelessly slower than the best
  // (in seconds; 0: none yet) is given up after a sample.
  absl::StatusOr<Evaluation> Evaluate(const PlanChoice& choice, double best) {
    Evaluation result{.choice = choice, .met_tolerance = true};
    const ResolvedOptions resolved = Resolve(choice);
    std::vector<double> seconds;
    int judged = kJudgedSamples;
    for (int s = 0; s < judged && result.met_tolerance; ++s) {
      if (!TimeLeft()) return Unfinished(choice);
      DEEPPCR_ASSIGN_OR_RETURN(double t, Run(resolved, s, 1, trajectory_.data()));
      const SampleReport report = reports_[0];
      result.error = std::max(result.error, TrueError(s, choice.shooting_interval));
      result.iterations += report.iterations;
      result.stages = std::max(result.stages, report.dependent_stages);
      // `auto` gives up beyond the stages of the sequential solver, so a choice that needs more is
      // none.
      result.met_tolerance = report.converged && result.error <= options_.rtol &&
                             report.dependent_stages <= shape_.num_steps;
      if (t < 0.1 * options_.seconds_per_run) {
        DEEPPCR_ASSIGN_OR_RETURN(t, Run(resolved, s, 1, nullptr));
      }
      seconds.push_back(t);
      if (t > kHopeless * sequential_seconds_) judged = kJudgedIfHopeless;
      if (best > 0 && t > 3 * best) {
        plan_.candidates.push_back(Describe(result) + " (given up: too slow)");
        return Evaluation{.choice = choice};
      }
    }
    result.iterations /= static_cast<double>(seconds.size());
    result.seconds = Median(seconds);
    plan_.candidates.push_back(Describe(result));
    return result;
  }

  Evaluation Unfinished(const PlanChoice& choice) {
    plan_.candidates.push_back(
        StrCat(choice.solver, " C=", choice.shooting_interval, " not measured: out of time"));
    return {.choice = choice};
  }

  bool TimeLeft() const {
    return SecondsSince(start_) < options_.seconds_in_all && !Fired(options_.token);
  }

  // Evaluates a choice and keeps it if it beats the best.
  absl::Status Try(const PlanChoice& choice, std::optional<Evaluation>* best) {
    if (!TimeLeft()) return absl::OkStatus();
    if (options_.progress)
      options_.progress(StrCat("measuring ", choice.solver, ", C = ", choice.shooting_interval,
                               ", ", ToString(choice.initial_guess), " guess, ", choice.warm_sweeps,
                               " warm sweeps, Jacobians ", ToString(choice.jacobian_refresh)));
    DEEPPCR_ASSIGN_OR_RETURN(const Evaluation e,
                             Evaluate(choice, best->has_value() ? (*best)->seconds : 0));
    if (e.met_tolerance && (!best->has_value() || e.seconds < (*best)->seconds)) *best = e;
    return absl::OkStatus();
  }

  std::vector<int32_t> Intervals(const SolverRow& row) const {
    std::vector<int32_t> intervals;
    int64_t largest = row.max_shooting_interval > 0 ? row.max_shooting_interval : 256;
    if (shape_.diffusion) largest = std::min<int64_t>(largest, 16);  // K hardly depends on C
    for (int64_t c : {16, 8, 32, 4, 64, 128, 1, 256}) {
      if (c <= largest && c >= runner_.limits().min_shooting_interval &&
          (c == 1 || 2 * c <= shape_.num_steps))
        intervals.push_back(static_cast<int32_t>(c));
    }
    return intervals;
  }

  absl::Status Search(const SolverRow& row) {
    const InitialGuess guess = BestGuess();
    const bool newton = row.linearization == Linearization::kFull;
    std::optional<Evaluation> best;
    for (const int32_t c : Intervals(row))
      DEEPPCR_RETURN_IF_ERROR(
          Try({.solver = std::string(row.name), .shooting_interval = c, .initial_guess = guess},
              &best));
    if (best.has_value() && newton) DEEPPCR_RETURN_IF_ERROR(Refine(&best));
    if (best.has_value()) {
      plan_.choices.push_back(best->choice);
      evaluations_.push_back(*best);
    }
    return absl::OkStatus();
  }

  // The guess that usually needs the fewest iterations.
  InitialGuess BestGuess() const {
    if (shape_.diffusion) return InitialGuess::kCoarse;
    return options_.calibrated_guess ? InitialGuess::kCalibrated : InitialGuess::kConstant;
  }

  // Guess, warm sweeps and refresh at the best C.
  absl::Status Refine(std::optional<Evaluation>* best) {
    PlanChoice choice = (*best)->choice;
    if (choice.initial_guess != InitialGuess::kConstant) {
      choice.initial_guess = InitialGuess::kConstant;
      DEEPPCR_RETURN_IF_ERROR(Try(choice, best));
    }
    for (const int32_t sweeps : {2, 4, 6}) {
      choice = (*best)->choice;
      choice.warm_sweeps = sweeps;
      DEEPPCR_RETURN_IF_ERROR(Try(choice, best));
    }
    choice = (*best)->choice;
    choice.jacobian_refresh = JacobianRefresh::kWhileContracting;
    return Try(choice, best);
  }

  // Whether the last run of n samples got to its end.
  bool InTime(int64_t n) const {
    const auto late = [](const SampleReport& r) { return r.termination == Termination::kDeadline; };
    return std::none_of(reports_.begin(), reports_.begin() + n, late);
  }

  // Requests of up to max_batch_size samples. Out of time, they get the choice of the entry before,
  // and no figures.
  absl::Status AddLastEntry() {
    if (plan_.entries.empty() || TimeLeft()) return AddEntry(options_.max_batch_size);
    PlanEntry entry = plan_.entries.back();
    entry.max_samples = options_.max_batch_size;
    entry.sequential_seconds = entry.parallel_seconds = 0;
    plan_.entries.push_back(entry);
    return absl::OkStatus();
  }

  // Times the sequential solver and the best parallel one for n samples.
  absl::Status AddEntry(int64_t n) {
    PlanEntry entry{.max_samples = static_cast<int32_t>(n)};
    const Evaluation* best = nullptr;
    for (const Evaluation& e : evaluations_) {
      if (best == nullptr || e.seconds < best->seconds) best = &e;
    }
    // A parallel solver that is hopeless is not timed again for every sample count.
    const bool timed =
        best != nullptr &&
        (n == 1 || (TimeLeft() && best->seconds < kHopeless * sequential_seconds_)) &&
        static_cast<double>(n) * best->seconds < options_.seconds_per_run;
    bool in_time = true;
    std::vector<double> sequential, parallel;
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < kRepetitions && (i == 0 || SecondsSince(start) < kRepeatedSeconds); ++i) {
      DEEPPCR_ASSIGN_OR_RETURN(const double s, Run({.solver = "sequential"}, 0, n, nullptr));
      sequential.push_back(s);
      in_time = in_time && InTime(n);
      if (!timed) continue;
      DEEPPCR_ASSIGN_OR_RETURN(const double p, Run(Resolve(best->choice), 0, n, nullptr));
      parallel.push_back(p);
    }
    entry.sequential_seconds = Median(sequential);
    if (best != nullptr) {
      entry.parallel = best->choice;
      entry.parallel_seconds = timed ? Median(parallel) : 0;
      entry.parallel_iterations = best->iterations;
      entry.parallel_error = best->error;
      entry.parallel_stages = best->stages;
    }
    if (timed && entry.parallel_seconds < entry.sequential_seconds)
      entry.solver = best->choice.solver;
    if (!in_time) entry.sequential_seconds = 0;  // no figure rather than that of a part
    plan_.entries.push_back(entry);
    return absl::OkStatus();
  }

  const Runner& runner_;
  const SystemShape shape_;
  const CalibrationInputs& inputs_;
  const PlannerOptions& options_;
  const Clock::time_point start_;
  const int64_t states_;
  double sequential_seconds_ = 0;
  std::vector<float> trajectory_, reference_, outputs_;
  std::vector<SampleReport> reports_;
  std::vector<Evaluation> evaluations_;
  Plan plan_;
};

}  // namespace

absl::StatusOr<Plan> MeasurePlan(const Runner& runner, const CalibrationInputs& inputs,
                                 const PlannerOptions& options) {
  return Planner(runner, inputs, options).Measure();
}

}  // namespace deeppcr
