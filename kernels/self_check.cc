// SPDX-License-Identifier: Apache-2.0
#include "kernels/self_check.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"

namespace deeppcr {
namespace {

// Limits on differences that rounding explains, relative to the largest element of a state, per
// step, or of the outputs. The demo models on the CPU differ from the reference by up to 3e-7.
constexpr double kStepTolerance = 5e-6;
constexpr double kOutputTolerance = 2e-5;
// Factor of the plan's rtol within which an answer that is certified has to be.
constexpr double kCertified = 1.5;
constexpr int64_t kCheckedSamples = 2;
constexpr int kRepetitions = 20;
constexpr int64_t kRepeatedSamples = 4;

struct Answer {
  std::vector<float> outputs, final_states;
  std::vector<float> trajectory;  // empty unless it was asked for
  std::vector<SampleReport> reports;

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
                           check.max_oracle_bytes, " bytes");
}

class Checker {
 public:
  explicit Checker(const SelfCheck& check)
      : check_(check),
        shape_(check.resolve.shape),
        floor_(SolveOptions{}.atol / SolveOptions{}.rtol) {}

  absl::Status CheckAll() {
    DEEPPCR_RETURN_IF_ERROR(MakeOracle());
    const int64_t samples = std::min(kCheckedSamples, check_.inputs.count);
    for (int64_t s = 0; s < samples; ++s) DEEPPCR_RETURN_IF_ERROR(CheckSequential(s));
    for (const std::string_view solver : Solvers()) {
      DEEPPCR_RETURN_IF_ERROR(CheckBatches(solver));
      DEEPPCR_RETURN_IF_ERROR(CheckRepetitions(solver));
    }
    return absl::OkStatus();
  }

 private:
  // The sequential solver, and those that the plan has a choice for.
  std::vector<std::string_view> Solvers() const {
    std::vector<std::string_view> solvers = {"sequential"};
    for (const PlanChoice& choice : check_.plan.choices) solvers.emplace_back(choice.solver);
    return solvers;
  }

  absl::Status MakeOracle() {
    DEEPPCR_ASSIGN_OR_RETURN(const SpaceLimits limits, OracleLimits(check_));
    DEEPPCR_ASSIGN_OR_RETURN(oracle_, check_.oracle.NewSpace(limits));
    oracle_->SetShootingInterval(limits.min_shooting_interval);
    steps_per_interval_ = static_cast<double>(limits.min_shooting_interval);
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
    const auto deadline =
        CancelToken::Clock::now() + std::chrono::microseconds(static_cast<int64_t>(1e6 * seconds));
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
      if (report.termination == Termination::kCancelled)
        return absl::CancelledError("stopped during the self-check");
    }
    // A run that looked at no clock has answers all the same.
    if (CancelToken::Clock::now() > deadline)
      return Wrong(options.solver, " was not done after ", seconds, " s");
    return answer;
  }

  // What the device computes step by step, and, from there, everything that is said of sample s.
  absl::Status CheckSequential(int64_t s) {
    DEEPPCR_ASSIGN_OR_RETURN(const ResolvedOptions options, Options("sequential", 1));
    DEEPPCR_ASSIGN_OR_RETURN(const Answer answer, Run(options, s, 1, true));
    const OwnedSampleInputs samples = CalibrationSamples(check_.inputs, shape_, s, 1);
    oracle_->Encode(0, InputOf(samples.View(), 0, nullptr));
    oracle_->Restart(1);
    // A model that overflows has to do so on both.
    if (!answer.converged()) return CheckOverflow(s);
    DEEPPCR_RETURN_IF_ERROR(CheckSteps(s, answer));
    DEEPPCR_RETURN_IF_ERROR(CheckOutputs(s, answer));
    for (const PlanChoice& choice : check_.plan.choices)
      DEEPPCR_RETURN_IF_ERROR(CheckSolver(choice.solver, s, answer));
    return absl::OkStatus();
  }

  absl::Status CheckOverflow(int64_t s) {
    oracle_->Advance(1, 0, shape_.num_steps, nullptr);
    if (!oracle_->FinalStateFinite(0)) return absl::OkStatus();
    return Wrong("sample ", s, " overflows, and does not on the other backend");
  }

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
    // Without transition matrices the update is what the oracle's steps make of the states before.
    const int32_t sample = 0;
    UpdateNorms norms;
    const IterationKind steps{.linearization = Linearization::kZero};
    passes_->Propagate({&sample, 1}, steps);
    passes_->Update({&sample, 1}, steps, floor_, {&norms, 1});
    if (norms.finite != 0 && norms.update <= kStepTolerance * steps_per_interval_)
      return absl::OkStatus();
    return Wrong("a step of sample ", s, " is off by ", norms.update);
  }

  absl::Status CheckOutputs(int64_t s, const Answer& answer) {
    std::vector<float> expected(shape_.output_dim);
    oracle_->GuessTrajectory(0, answer.trajectory.data());
    passes_->Begin(1);
    passes_->Finish(1, nullptr);
    oracle_->Decode(0, expected.data());
    const double off = Difference(answer.outputs, expected, floor_);
    if (off <= kOutputTolerance) return absl::OkStatus();
    return Wrong("outputs of sample ", s, " are off by ", off);
  }

  absl::Status CheckSolver(std::string_view solver, int64_t s, const Answer& sequential) {
    DEEPPCR_ASSIGN_OR_RETURN(ResolvedOptions options, Options(solver, 1));
    DEEPPCR_ASSIGN_OR_RETURN(const Answer answer, Run(options, s, 1, true));
    if (!answer.converged())
      return Wrong(solver, ", which is in the plan, ended as ",
                   ToString(answer.reports.front().termination), " for sample ", s);
    if (const double off = LargestError(answer, sequential); !(off <= kCertified * options.rtol))
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

  double LargestError(const Answer& answer, const Answer& sequential) const {
    double largest = 0;
    for (int64_t l = 0; l <= shape_.num_steps; ++l) {
      const auto row = [&](const Answer& of) {
        return std::span(of.trajectory).subspan(l * shape_.state_dim, shape_.state_dim);
      };
      const double off = Difference(row(answer), row(sequential), floor_);
      if (!(off <= largest)) largest = off;
    }
    return largest;
  }

  absl::Status CheckBatches(std::string_view solver) {
    std::vector<int64_t> sizes = {2, 3, check_.max_batch_size};
    std::erase_if(sizes, [&](int64_t n) { return n > check_.max_batch_size || n < 2; });
    for (const int64_t n : sizes) {
      DEEPPCR_ASSIGN_OR_RETURN(const ResolvedOptions options, Options(solver, n));
      DEEPPCR_ASSIGN_OR_RETURN(const Answer batch, Run(options, 0, n, false));
      for (const int64_t i : {int64_t{0}, n / 2, n - 1}) {
        DEEPPCR_ASSIGN_OR_RETURN(const Answer alone, Run(options, i, 1, false));
        if (!SameSample(batch, i, alone))
          return Wrong(solver, " has other bits for sample ", i, " of ", n, " than for it alone");
      }
    }
    return absl::OkStatus();
  }

  bool SameSample(const Answer& batch, int64_t i, const Answer& alone) const {
    const auto row = [&](const std::vector<float>& rows, int64_t size) {
      return std::span(rows).subspan(i * size, size);
    };
    return SameBits(row(batch.outputs, shape_.output_dim), alone.outputs) &&
           SameBits(row(batch.final_states, shape_.state_dim), alone.final_states);
  }

  absl::Status CheckRepetitions(std::string_view solver) {
    const int64_t n = std::min(kRepeatedSamples, check_.max_batch_size);
    DEEPPCR_ASSIGN_OR_RETURN(const ResolvedOptions options, Options(solver, n));
    DEEPPCR_ASSIGN_OR_RETURN(const Answer first, Run(options, 0, n, false));
    for (int i = 1; i < kRepetitions; ++i) {
      DEEPPCR_ASSIGN_OR_RETURN(const Answer again, Run(options, 0, n, false));
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
  double steps_per_interval_ = 1;  // of the oracle
};

}  // namespace

absl::Status RunSelfCheck(const SelfCheck& check) { return Checker(check).CheckAll(); }

}  // namespace deeppcr
