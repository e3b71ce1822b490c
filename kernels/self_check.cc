// SPDX-License-Identifier: Apache-2.0
#include "kernels/self_check.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <random>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "kernels/base/same_bits.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/oracle_pass.h"
#include "kernels/solver/registry.h"

namespace deeppcr {
namespace {

// Limits on differences that rounding explains, relative to the largest element of a state or of
// the outputs, and how often the rounding that probes find may explain them: terms that cancel, or
// a few expansive steps, make more of it. The demo models on the CPU differ from the reference by
// up to 3e-7, four of 2,300 random systems by up to 1.5e-5, near states that cancel.
constexpr double kStepTolerance = 2e-5;
constexpr double kOutputTolerance = 2e-5;
constexpr double kOfProbes = 16;
// Rounding of a final state, of which the output layers may make more.
constexpr double kStateRounding = 1e-6;
// Factor of the plan's rtol within which an answer that is certified has to be.
constexpr double kCertified = 1.5;
// Of a single update: the share of it by which it may differ from the oracle's, as products of
// tangents may be in TF32, and the share by which its reported size may differ from its size.
constexpr double kUpdateTolerance = 0.02;
constexpr double kNormTolerance = 1e-3;
// Factor between estimates of the same error on both backends: their states differ by rounding.
constexpr double kEstimateFactor = 2, kRoundingFactorOfBoth = 8;
// Size of the disturbance that single updates start from, and of its peak, relative to a state:
// beyond the updates that are followed by corrections at once.
constexpr double kDisturbance = 0.2, kPeak = 0.6;
constexpr int64_t kPeaks = 8;
constexpr int64_t kCheckedSamples = 2;
constexpr int kRepetitions = 20;
constexpr int64_t kRepeatedSamples = 4;
// Seconds that the batches, and the repetitions, of one solver may take; fewer are made then.
constexpr double kAffordableSeconds = 5;

struct Answer {
  std::vector<float> outputs, final_states;
  std::vector<float> trajectory;  // empty unless it was asked for
  std::vector<SampleReport> reports;
  double seconds = 0;

  bool converged() const { return std::ranges::all_of(reports, &SampleReport::converged); }
};

template <typename... Args>
absl::Status Wrong(const Args&... args) {
  return absl::DataLossError(StrCat(args...));
}

// Largest difference relative to the largest expected value; NaN where either has one.
double Difference(std::span<const float> got, std::span<const float> expected, double floor) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double off = std::fabs(double{got[i]} - expected[i]);
    if (!(off <= difference)) difference = off;
    size = std::max(size, std::fabs(double{expected[i]}));
  }
  return difference / (size + floor);
}

double SecondsSince(CancelToken::Clock::time_point start) {
  return std::chrono::duration<double>(CancelToken::Clock::now() - start).count();
}

// Steps per interval of the oracle: as few as its workspace allows.
absl::StatusOr<SpaceLimits> OracleLimits(const SelfCheck& check) {
  SpaceLimits limits;
  const int64_t num_steps = check.resolve.shape.num_steps;
  while (check.oracle.SpaceBytes(limits) > check.max_oracle_bytes &&
         limits.min_shooting_interval < num_steps)
    limits.min_shooting_interval = std::min(2 * limits.min_shooting_interval, num_steps);
  if (check.oracle.SpaceBytes(limits) <= check.max_oracle_bytes) return limits;
  return ResourceExhausted("self-check: the workspace of the other backend takes more than ",
                           check.max_oracle_bytes, " bytes; raise max_workspace_bytes");
}

class Checker {
 public:
  explicit Checker(const SelfCheck& check)
      : check_(check),
        shape_(check.resolve.shape),
        floor_(SolveOptions{}.atol / SolveOptions{}.rtol) {}

  absl::Status CheckAll() {
    DEEPPCR_RETURN_IF_ERROR(MakeOracle());
    const int64_t samples = measured() ? std::min(kCheckedSamples, check_.inputs.count) : 1;
    for (int64_t s = 0; s < samples; ++s) DEEPPCR_RETURN_IF_ERROR(CheckSequential(s));
    if (!measured()) return absl::OkStatus();
    for (const SolverRow& row : Solvers()) {
      if (!SolverFits(row.name, check_.resolve)) continue;
      DEEPPCR_RETURN_IF_ERROR(CheckBatches(row.name));
      DEEPPCR_RETURN_IF_ERROR(CheckRepetitions(row.name));
    }
    return absl::OkStatus();
  }

 private:
  // False for a plan that is that of another number of steps: its kernels have been checked with
  // that one, and nobody has seen its choices converge.
  bool measured() const { return check_.plan.source != PlanSource::kNearest; }

  absl::Status MakeOracle() {
    DEEPPCR_ASSIGN_OR_RETURN(const SpaceLimits limits, OracleLimits(check_));
    DEEPPCR_ASSIGN_OR_RETURN(oracle_, check_.oracle.NewSpace(limits));
    oracle_interval_ = limits.min_shooting_interval;
    const auto iteration = oracle_->iteration({});
    if (!std::holds_alternative<IterationPasses*>(iteration))
      return Internal("self-check: the other backend has its loop on a device");
    passes_ = std::get<IterationPasses*>(iteration);
    return absl::OkStatus();
  }

  absl::StatusOr<ResolvedOptions> Options(std::string_view solver, int64_t n) const {
    return ResolveOptions({.solver = solver, .on_no_convergence = OnNoConvergence::kReturn}, n,
                          check_.plan, check_.resolve);
  }

  // `guess`: states [L + 1, D] for InitialGuess::kPrevious, or empty.
  absl::StatusOr<Answer> Run(const ResolvedOptions& options, int64_t first, int64_t n,
                             bool with_trajectory, std::span<const float> guess = {}) const {
    const double seconds = check_.seconds_per_run * static_cast<double>(n);
    const auto start = CancelToken::Clock::now();
    const auto deadline = start + std::chrono::microseconds(static_cast<int64_t>(1e6 * seconds));
    const CancelToken token(deadline, check_.token);
    const OwnedSampleInputs samples = CalibrationSamples(check_.inputs, shape_, first, n);
    Answer answer{.outputs = std::vector<float>(n * shape_.output_dim),
                  .final_states = std::vector<float>(n * shape_.state_dim),
                  .reports = std::vector<SampleReport>(n)};
    if (with_trajectory) answer.trajectory.resize(n * States());
    SampleInputs inputs = samples.View();
    inputs.initial_states = guess;
    RunItem item{.samples = inputs,
                 .outputs = answer.outputs,
                 .final_states = answer.final_states,
                 .trajectory = answer.trajectory,
                 .reports = answer.reports,
                 .token = &token};
    DEEPPCR_RETURN_IF_ERROR(check_.runner.Run(options, {&item, 1}, nullptr));
    for (const SampleReport& report : answer.reports) {
      if (report.termination == Termination::kCancelled) return Stopped();
    }
    answer.seconds = SecondsSince(start);
    // A run that looked at no clock has answers all the same.
    if (answer.seconds > seconds)
      return Wrong(options.solver, " was not done after ", seconds, " s");
    return answer;
  }

  // What the device computes step by step, and, from there, everything that is said of sample s.
  absl::Status CheckSequential(int64_t s) {
    DEEPPCR_ASSIGN_OR_RETURN(const ResolvedOptions options, Options("sequential", 1));
    DEEPPCR_ASSIGN_OR_RETURN(const Answer answer, Run(options, s, 1, true));
    const OwnedSampleInputs samples = CalibrationSamples(check_.inputs, shape_, s, 1);
    oracle_->Encode(0, InputOf(samples.View(), 0, check_.token));
    oracle_->Restart(1);
    // A model that overflows has to do so on both.
    if (!answer.converged()) return CheckOverflow(s);
    DEEPPCR_RETURN_IF_ERROR(CheckSteps(s, answer));
    DEEPPCR_RETURN_IF_ERROR(CheckOutputs(s, answer));
    for (const SolverRow& row : Solvers()) {
      if (row.iterative && SolverFits(row.name, check_.resolve))
        DEEPPCR_RETURN_IF_ERROR(CheckSolver(row, s, answer));
    }
    return absl::OkStatus();
  }

  // The states, or what the output layers make of them.
  absl::Status CheckOverflow(int64_t s) {
    for (int64_t l = 0; l < shape_.num_steps;) {
      const int64_t end = std::min(l + oracle_->StepsPerPoll(1), shape_.num_steps);
      oracle_->Advance(1, l, end, nullptr);
      if (Fired(check_.token)) return Stopped();
      l = end;
    }
    if (!oracle_->FinalStateFinite(0)) return absl::OkStatus();
    std::vector<float> outputs(shape_.output_dim);
    oracle_->Decode(0, outputs.data());
    const auto finite = [](float value) { return std::isfinite(value); };
    if (!std::ranges::all_of(outputs, finite)) return absl::OkStatus();
    return Wrong("sample ", s, " overflows, and does not on the other backend");
  }
  static absl::Status Stopped() { return absl::CancelledError("stopped during the self-check"); }

  absl::Status CheckSteps(int64_t s, const Answer& answer) {
    std::vector<float> initial(shape_.state_dim);
    oracle_->CopyState(0, initial.data());
    const auto first = std::span(answer.trajectory).first(initial.size());
    if (const double off = Difference(first, initial, floor_); !(off <= kStepTolerance))
      return Wrong("z_0 of sample ", s, " is off by ", off);
    if (!SameBits(std::span(answer.trajectory).last(initial.size()), answer.final_states))
      return Wrong("the final state of sample ", s, " is not the end of its trajectory");
    const auto start = CancelToken::Clock::now();
    oracle_->SetShootingInterval(oracle_interval_);
    oracle_->GuessTrajectory(0, answer.trajectory.data());
    passes_->Begin(1);
    // Without transition matrices the update is what the oracle's steps make of the states before,
    // and the probes are what rounding makes of these steps alone.
    const int32_t sample = 0;
    UpdateNorms norms;
    const IterationKind steps{
        .linearization = Linearization::kZero, .refresh = false, .probes = true};
    passes_->Propagate({&sample, 1}, steps);
    if (passes_->interrupted(sample)) return Stopped();
    passes_->Update({&sample, 1}, steps, floor_, {&norms, 1});
    seconds_of_steps_ = SecondsSince(start);
    const double explained = std::max(kStepTolerance, kOfProbes * norms.rounding);
    if (norms.finite != 0 && norms.update <= explained) return absl::OkStatus();
    return Wrong("a step of sample ", s, " is off by ", norms.update);
  }

  // What the oracle makes of the end of a trajectory.
  std::vector<float> Decoded(const Answer& answer) {
    std::vector<float> outputs(shape_.output_dim);
    oracle_->GuessTrajectory(0, answer.trajectory.data());
    passes_->Begin(1);
    passes_->Finish(1, nullptr);
    oracle_->Decode(0, outputs.data());
    return outputs;
  }

  absl::Status CheckOutputs(int64_t s, const Answer& answer) {
    const std::vector<float> expected = Decoded(answer);
    const double off = Difference(answer.outputs, expected, 0);
    const double explained = oracle_->AmplifyError(0, kStateRounding, floor_, expected.data());
    if (off <= std::max(kOutputTolerance, explained)) return absl::OkStatus();
    return Wrong("outputs of sample ", s, " are off by ", off);
  }

  absl::Status CheckSolver(const SolverRow& row, int64_t s, const Answer& sequential) {
    DEEPPCR_ASSIGN_OR_RETURN(const ResolvedOptions options, Options(row.name, 1));
    DEEPPCR_ASSIGN_OR_RETURN(const Answer answer, Run(options, s, 1, true));
    const bool planned = measured() && check_.plan.ChoiceOf(row.name) != nullptr;
    if (planned && !answer.converged())
      return Wrong(row.name, ", which is in the plan, ended as ",
                   ToString(answer.reports.front().termination), " for sample ", s);
    DEEPPCR_RETURN_IF_ERROR(CheckClaim(options, s, answer, sequential));
    DEEPPCR_RETURN_IF_ERROR(CheckCausality(options, s, sequential));
    if (s > 0 || !measured()) return absl::OkStatus();
    DEEPPCR_RETURN_IF_ERROR(CheckUpdates(row, options, s, sequential));
    return CheckShortInterval(row, options, s, sequential);
  }

  // What an answer says of itself.
  absl::Status CheckClaim(const ResolvedOptions& options, int64_t s, const Answer& answer,
                          const Answer& sequential) {
    if (!answer.converged()) return absl::OkStatus();
    const int64_t interval = options.shooting_interval;
    const double off = LargestError(answer.trajectory, sequential.trajectory, interval);
    if (!(off <= kCertified * options.rtol))
      return Wrong(options.solver, " certified states of sample ", s, " that are off by ", off);
    const SampleReport& report = answer.reports.front();
    if (!report.error_estimate.has_value() || !report.output_error_estimate.has_value())
      return absl::OkStatus();
    const std::vector<float> outputs = Decoded(answer);
    const double estimate =
        oracle_->AmplifyError(0, *report.error_estimate, floor_, outputs.data());
    if (kEstimateFactor * *report.output_error_estimate >= estimate) return absl::OkStatus();
    return Wrong(options.solver, " estimates the error of the outputs of sample ", s, " to be ",
                 *report.output_error_estimate, " in place of ", estimate);
  }

  absl::Status CheckCausality(ResolvedOptions options, int64_t s, const Answer& sequential) const {
    for (int32_t iterations = 1; iterations <= 2; ++iterations) {
      options.max_iterations = iterations;
      DEEPPCR_ASSIGN_OR_RETURN(const Answer early, Run(options, s, 1, true));
      // The matrices of states that are far off may overflow, and end the loop before its time.
      if (Overflowed(early.reports.front())) continue;
      const int64_t steps =
          std::min<int64_t>(int64_t{iterations} * options.shooting_interval, shape_.num_steps);
      const auto known = static_cast<size_t>((steps + 1) * shape_.state_dim);
      if (!SameBits(std::span(early.trajectory).first(known),
                    std::span(sequential.trajectory).first(known)))
        return Wrong(options.solver, " has other bits than sequential after ", iterations,
                     " iterations, in the first ", steps, " steps of sample ", s);
    }
    return absl::OkStatus();
  }

  // A request may ask for another interval than the plan's, and its last one is shorter where the
  // number of steps is no multiple of it.
  absl::Status CheckShortInterval(const SolverRow& row, ResolvedOptions options, int64_t s,
                                  const Answer& sequential) {
    const int64_t steps = shape_.num_steps;
    if (row.max_shooting_interval > 0 || steps % options.shooting_interval != 0)
      return absl::OkStatus();
    while (options.shooting_interval < steps && steps % options.shooting_interval == 0)
      ++options.shooting_interval;
    if (options.shooting_interval == steps) return absl::OkStatus();
    DEEPPCR_ASSIGN_OR_RETURN(const Answer answer, Run(options, s, 1, true));
    return CheckClaim(options, s, answer, sequential);
  }

  // Single updates, from states that are far from the answer in another interval and element each:
  // the certificate rests on the sizes of updates, and so do matrices, tree and probes. What a
  // wrong matrix costs is passes, and what a wrong norm costs is shown by no answer that happens to
  // be right.
  absl::Status CheckUpdates(const SolverRow& row, ResolvedOptions options, int64_t s,
                            const Answer& sequential) {
    const int64_t interval = options.shooting_interval;
    options.max_iterations = 1;
    options.warm_sweeps = 0;
    options.initial_guess = InitialGuess::kPrevious;
    for (int64_t peak = 0; peak < kPeaks; ++peak) {
      const std::vector<float> guess = Disturbed(sequential.trajectory, interval, peak);
      DEEPPCR_ASSIGN_OR_RETURN(const Answer answer, Run(options, s, 1, true, guess));
      const SampleReport& report = answer.reports.front();
      // What a second pass has changed is no single update.
      if (report.iterations != 1 || report.chord_corrections > 0 || !report.update.has_value())
        continue;
      const double size = LargestError(guess, answer.trajectory, interval);
      if (!(*report.update >= (1 - kNormTolerance) * size))
        return Wrong(row.name, " takes an update of size ", size, " for one of ", *report.update);
      if (peak == 0) DEEPPCR_RETURN_IF_ERROR(CompareUpdate(row, interval, guess, answer));
    }
    return row.name == "newton" ? CheckRounding(options, s, sequential) : absl::OkStatus();
  }

  // The states at the ends of intervals, with random signs of errors of their own size, the largest
  // of them at a place of its own for each `peak`.
  std::vector<float> Disturbed(const std::vector<float>& trajectory, int64_t interval,
                               int64_t peak) const {
    std::vector<float> states = trajectory;
    std::minstd_rand random(static_cast<uint32_t>(peak + 1));
    std::uniform_real_distribution<double> share(-kDisturbance, kDisturbance);
    const int64_t intervals = (shape_.num_steps - 1) / interval + 1, dim = shape_.state_dim;
    // Peaks are an odd number of intervals apart, so that warps of any number meet them.
    const int64_t peak_at = intervals - 1 - peak * (intervals / kPeaks | 1) % intervals;
    const int64_t peak_element = dim - 1 - peak * (dim / kPeaks | 1) % dim;
    for (int64_t p = 0; p < intervals; ++p) {
      const int64_t end = std::min((p + 1) * interval, shape_.num_steps);
      const auto state = std::span(states).subspan(end * dim, dim);
      double size = floor_;
      for (const float z : state) size = std::max(size, std::fabs(double{z}));
      for (float& z : state) z += static_cast<float>(share(random) * size);
      if (p == peak_at)
        state[peak_element] += static_cast<float>(std::copysign(kPeak * size, state[peak_element]));
    }
    return states;
  }

  // The same update by the oracle.
  absl::Status CompareUpdate(const SolverRow& row, int64_t interval,
                             const std::vector<float>& guess, const Answer& answer) {
    if (!CanPass(interval, row.linearization)) return absl::OkStatus();
    DEEPPCR_ASSIGN_OR_RETURN(
        const OraclePass pass,
        RunOraclePass(*oracle_, *passes_, guess, interval, row.linearization, floor_));
    if (!pass.norms.finite) return absl::OkStatus();
    const double off = LargestError(answer.trajectory, pass.trajectory, interval);
    const double explained =
        std::max(kUpdateTolerance * pass.norms.update, kOfProbes * pass.norms.rounding);
    if (off <= explained) return absl::OkStatus();
    return Wrong("an update of ", row.name, " is off by ", off, " of ", pass.norms.update);
  }

  // The rounding that a certificate counts with: none that is far below what the oracle's probes
  // find.
  absl::Status CheckRounding(const ResolvedOptions& update, int64_t s, const Answer& sequential) {
    if (!CanPass(update.shooting_interval, Linearization::kFull)) return absl::OkStatus();
    DEEPPCR_ASSIGN_OR_RETURN(const ResolvedOptions options, Options("newton", 1));
    DEEPPCR_ASSIGN_OR_RETURN(const Answer answer, Run(options, s, 1, true));
    const SampleReport& report = answer.reports.front();
    if (!report.converged || !report.rounding_estimate.has_value()) return absl::OkStatus();
    DEEPPCR_ASSIGN_OR_RETURN(
        const OraclePass pass,
        RunOraclePass(*oracle_, *passes_, sequential.trajectory, options.shooting_interval,
                      Linearization::kFull, floor_));
    if (!pass.norms.finite ||
        kRoundingFactorOfBoth * *report.rounding_estimate >= pass.norms.rounding)
      return absl::OkStatus();
    return Wrong("newton finds a rounding of ", *report.rounding_estimate, " for sample ", s,
                 " in place of ", pass.norms.rounding);
  }

  // True if the oracle has memory for a pass with these intervals, and makes it in the time that is
  // affordable.
  bool CanPass(int64_t interval, Linearization linearization) const {
    const int64_t columns = linearization == Linearization::kFull ? shape_.state_dim : 0;
    const double times = 1 + static_cast<double>(columns) / kNumColumns;
    return interval >= oracle_interval_ && seconds_of_steps_ * times <= kAffordableSeconds;
  }

  // At the ends of intervals, which the certificate speaks of.
  double LargestError(const std::vector<float>& got, const std::vector<float>& expected,
                      int64_t interval) const {
    double largest = 0;
    for (int64_t l = interval; l < shape_.num_steps + interval; l += interval) {
      const auto row = [&](const std::vector<float>& of) {
        const int64_t at = std::min(l, shape_.num_steps) * shape_.state_dim;
        return std::span(of).subspan(at, shape_.state_dim);
      };
      const double off = Difference(row(got), row(expected), floor_);
      if (!(off <= largest)) largest = off;
    }
    return largest;
  }

  // Batches that begin one sample later give every sample another place.
  absl::Status CheckBatches(std::string_view solver) {
    for (const int64_t n : std::set<int64_t>{2, 3, check_.max_batch_size}) {
      if (n < 2 || n > check_.max_batch_size) continue;
      DEEPPCR_ASSIGN_OR_RETURN(const ResolvedOptions options, Options(solver, n));
      DEEPPCR_ASSIGN_OR_RETURN(const Answer alone, Run(options, 0, 1, false));
      if (alone.seconds * static_cast<double>(n) > kAffordableSeconds) continue;
      DEEPPCR_ASSIGN_OR_RETURN(const Answer batch, Run(options, 0, n, false));
      DEEPPCR_ASSIGN_OR_RETURN(const Answer later, Run(options, 1, n, false));
      DEEPPCR_ASSIGN_OR_RETURN(const Answer last, Run(options, n - 1, 1, false));
      for (int64_t i = 0; i < n; ++i) {
        const bool same = (i > 0 || SameSample(batch, 0, alone, 0)) &&
                          (i == 0 || SameSample(batch, i, later, i - 1)) &&
                          (i < n - 1 || SameSample(batch, i, last, 0));
        if (!same)
          return Wrong(solver, " has other bits for sample ", i, " of ", n, " than elsewhere");
      }
    }
    return absl::OkStatus();
  }

  static bool Overflowed(const SampleReport& report) {
    return report.termination == Termination::kNonFinite;
  }

  // Sample i of one run, and sample k of another: their answers, and what they say of them.
  bool SameSample(const Answer& a, int64_t i, const Answer& b, int64_t k) const {
    const auto row = [](const std::vector<float>& rows, int64_t at, int64_t size) {
      return std::span(rows).subspan(at * size, size);
    };
    const int64_t outputs = shape_.output_dim, states = shape_.state_dim;
    const SampleReport &of_a = a.reports[i], &of_b = b.reports[k];
    if (Overflowed(of_a) && Overflowed(of_b)) return true;  // a NaN has many bits
    return SameBits(row(a.outputs, i, outputs), row(b.outputs, k, outputs)) &&
           SameBits(row(a.final_states, i, states), row(b.final_states, k, states)) &&
           of_a.iterations == of_b.iterations && of_a.chord_corrections == of_b.chord_corrections &&
           of_a.confirmations == of_b.confirmations && of_a.error_estimate == of_b.error_estimate;
  }

  absl::Status CheckRepetitions(std::string_view solver) {
    const int64_t n = std::min(kRepeatedSamples, check_.max_batch_size);
    DEEPPCR_ASSIGN_OR_RETURN(const ResolvedOptions options, Options(solver, n));
    DEEPPCR_ASSIGN_OR_RETURN(const Answer first, Run(options, 0, n, false));
    double left = kAffordableSeconds;
    for (int i = 1; i < kRepetitions && left > 0; ++i) {
      DEEPPCR_ASSIGN_OR_RETURN(const Answer again, Run(options, 0, n, false));
      left -= again.seconds;
      if (!SameBits(again.outputs, first.outputs) ||
          !SameBits(again.final_states, first.final_states))
        return Wrong(solver, " has other bits in run ", i + 1, " of the same ", n, " samples");
    }
    return absl::OkStatus();
  }

  int64_t States() const { return (shape_.num_steps + 1) * shape_.state_dim; }

  const SelfCheck& check_;
  const SystemShape shape_;
  const double floor_;
  std::unique_ptr<SolveSpace> oracle_;
  int64_t oracle_interval_ = 1;  // least steps per interval of the oracle
  double seconds_of_steps_ = 0;  // that the oracle took for a pass of plain steps with probes
  IterationPasses* passes_ = nullptr;
};

}  // namespace

absl::Status RunSelfCheck(const SelfCheck& check) { return Checker(check).CheckAll(); }

}  // namespace deeppcr
