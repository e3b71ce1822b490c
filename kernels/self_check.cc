// SPDX-License-Identifier: Apache-2.0
#include "kernels/self_check.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/solver/registry.h"

namespace deeppcr {
namespace {

// Limits on differences that rounding explains, relative to the largest element of a state or of
// the outputs, and how often the rounding that probes find may explain them: terms that cancel, or
// a few expansive steps, make more of it. The demo models on the CPU differ from the reference by
// up to 3e-7.
constexpr double kStepTolerance = 5e-6;
constexpr double kOutputTolerance = 2e-5;
constexpr double kOfProbes = 16;
// Rounding of a final state, of which the output layers may make more.
constexpr double kStateRounding = 1e-6;
// Factor of the plan's rtol within which an answer that is certified has to be.
constexpr double kCertified = 1.5;
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

bool SameBits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
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
    oracle_->SetShootingInterval(limits.min_shooting_interval);
    const auto iteration = oracle_->iteration();
    if (!std::holds_alternative<IterationPasses*>(iteration))
      return Internal("self-check: the other backend has its loop on a device");
    passes_ = std::get<IterationPasses*>(iteration);
    return absl::OkStatus();
  }

  absl::StatusOr<ResolvedOptions> Options(std::string_view solver, int64_t n) const {
    return ResolveOptions({.solver = solver, .on_no_convergence = OnNoConvergence::kReturn}, n,
                          check_.plan, check_.resolve);
  }

  absl::StatusOr<Answer> Run(const ResolvedOptions& options, int64_t first, int64_t n,
                             bool with_trajectory) const {
    const double seconds = check_.seconds_per_run * static_cast<double>(n);
    const auto start = CancelToken::Clock::now();
    const auto deadline = start + std::chrono::microseconds(static_cast<int64_t>(1e6 * seconds));
    const CancelToken token(deadline, check_.token);
    const OwnedSampleInputs samples = CalibrationSamples(check_.inputs, shape_, first, n);
    Answer answer{.outputs = std::vector<float>(n * shape_.output_dim),
                  .final_states = std::vector<float>(n * shape_.state_dim),
                  .reports = std::vector<SampleReport>(n)};
    if (with_trajectory) answer.trajectory.resize(n * States());
    RunItem item{.samples = samples.View(),
                 .outputs = answer.outputs,
                 .final_states = answer.final_states,
                 .trajectory = answer.trajectory,
                 .reports = answer.reports,
                 .token = &token};
    DEEPPCR_RETURN_IF_ERROR(check_.runner.Run(options, {&item, 1}, nullptr));
    for (const SampleReport& report : answer.reports) {
      if (report.termination == Termination::kCancelled) return Stopped();
    }
    const auto end = CancelToken::Clock::now();
    answer.seconds = std::chrono::duration<double>(end - start).count();
    // A run that looked at no clock has answers all the same.
    if (end > deadline) return Wrong(options.solver, " was not done after ", seconds, " s");
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
        DEEPPCR_RETURN_IF_ERROR(CheckSolver(row.name, s, answer));
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
    const double explained = std::max(kStepTolerance, kOfProbes * norms.rounding);
    if (norms.finite != 0 && norms.update <= explained) return absl::OkStatus();
    return Wrong("a step of sample ", s, " is off by ", norms.update);
  }

  absl::Status CheckOutputs(int64_t s, const Answer& answer) {
    std::vector<float> expected(shape_.output_dim);
    oracle_->GuessTrajectory(0, answer.trajectory.data());
    passes_->Begin(1);
    passes_->Finish(1, nullptr);
    oracle_->Decode(0, expected.data());
    const double off = Difference(answer.outputs, expected, 0);
    const double explained = oracle_->AmplifyError(0, kStateRounding, floor_, expected.data());
    if (off <= std::max(kOutputTolerance, explained)) return absl::OkStatus();
    return Wrong("outputs of sample ", s, " are off by ", off);
  }

  absl::Status CheckSolver(std::string_view solver, int64_t s, const Answer& sequential) {
    DEEPPCR_ASSIGN_OR_RETURN(ResolvedOptions options, Options(solver, 1));
    DEEPPCR_ASSIGN_OR_RETURN(const Answer answer, Run(options, s, 1, true));
    const bool planned = measured() && check_.plan.ChoiceOf(solver) != nullptr;
    if (planned && !answer.converged())
      return Wrong(solver, ", which is in the plan, ended as ",
                   ToString(answer.reports.front().termination), " for sample ", s);
    const double off = LargestError(answer, sequential, options.shooting_interval);
    if (answer.converged() && !(off <= kCertified * options.rtol))
      return Wrong(solver, " certified states of sample ", s, " that are off by ", off);
    for (int32_t iterations = 1; iterations <= 2; ++iterations) {
      options.max_iterations = iterations;
      DEEPPCR_ASSIGN_OR_RETURN(const Answer early, Run(options, s, 1, true));
      const int64_t steps =
          std::min<int64_t>(int64_t{iterations} * options.shooting_interval, shape_.num_steps);
      const auto known = static_cast<size_t>((steps + 1) * shape_.state_dim);
      if (!SameBits(std::span(early.trajectory).first(known),
                    std::span(sequential.trajectory).first(known)))
        return Wrong(solver, " has other bits than sequential after ", iterations,
                     " iterations, in the first ", steps, " steps of sample ", s);
    }
    return absl::OkStatus();
  }

  // At the ends of intervals, which the certificate speaks of.
  double LargestError(const Answer& answer, const Answer& sequential, int64_t interval) const {
    double largest = 0;
    for (int64_t l = interval; l < shape_.num_steps + interval; l += interval) {
      const auto row = [&](const Answer& of) {
        const int64_t at = std::min(l, shape_.num_steps) * shape_.state_dim;
        return std::span(of.trajectory).subspan(at, shape_.state_dim);
      };
      const double off = Difference(row(answer), row(sequential), floor_);
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

  // Sample i of one run, and sample k of another.
  bool SameSample(const Answer& a, int64_t i, const Answer& b, int64_t k) const {
    const auto row = [](const std::vector<float>& rows, int64_t at, int64_t size) {
      return std::span(rows).subspan(at * size, size);
    };
    const int64_t outputs = shape_.output_dim, states = shape_.state_dim;
    return SameBits(row(a.outputs, i, outputs), row(b.outputs, k, outputs)) &&
           SameBits(row(a.final_states, i, states), row(b.final_states, k, states));
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
  IterationPasses* passes_ = nullptr;
};

}  // namespace

absl::Status RunSelfCheck(const SelfCheck& check) { return Checker(check).CheckAll(); }

}  // namespace deeppcr
