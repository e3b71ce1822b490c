// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cassert>
#include <optional>
#include <variant>

#include "kernels/solver/interval_scan.h"
#include "kernels/solver/solver.h"

namespace deeppcr {
namespace {

// A kind of pass that some samples may be waiting for.
struct Pass {
  NextPass next;
  bool probes;
};
constexpr std::array kPasses = {
    Pass{NextPass::kWarmSweep, false},      Pass{NextPass::kIterate, false},
    Pass{NextPass::kLinearize, false},      Pass{NextPass::kCorrect, false},
    Pass{NextPass::kCorrect, true},         Pass{NextPass::kConfirm, false},
    Pass{NextPass::kConfirmUpdated, false}, Pass{NextPass::kConfirmDisplaced, false}};

// Places the guess and returns its cost.
PassCount PlaceGuess(SolveSpace& space, InitialGuess guess, int32_t b, const GroupSample& sample) {
  PassCount cost;
  if (guess == InitialGuess::kCoarse) {
    cost = space.GuessCoarse(b);
  } else if (guess == InitialGuess::kCalibrated) {
    space.GuessAffine(b);
  } else if (guess == InitialGuess::kPrevious) {
    space.GuessTrajectory(b, sample.initial_states);
  } else {
    space.GuessConstant(b);
  }
  return cost;
}

// Last update; absent if states overflowed, as the norms cover only the finite states then.
std::optional<double> UpdateOf(const Progress& progress) {
  const bool overflowed =
      progress.next == NextPass::kStop && progress.termination == Termination::kNonFinite;
  if (overflowed || progress.updates() == 0) return std::nullopt;
  return progress.update;
}

// Error estimate; absent if the states are not certified, as an earlier estimate was of other
// states.
std::optional<double> EstimateOf(const Progress& progress) {
  const bool certified =
      progress.next == NextPass::kStop && progress.termination == Termination::kConverged;
  return certified ? std::optional(progress.error_estimate) : std::nullopt;
}

void TellListener(std::string_view solver, const GroupSample& sample, const Progress& progress) {
  if (sample.listener == nullptr) return;
  sample.listener->OnProgress({.sample = sample.index,
                               .solver = solver,
                               .updates = static_cast<int32_t>(progress.updates()),
                               .update = UpdateOf(progress),
                               .error_estimate = EstimateOf(progress)});
}

void ProbeToken(const GroupSample& sample, Progress* progress) {
  if (sample.token == nullptr || progress->next == NextPass::kStop) return;
  const StopReason reason = sample.token->stop_reason();
  if (reason == StopReason::kDeadline) Stop(progress, Termination::kDeadline);
  if (reason == StopReason::kCancelled) Stop(progress, Termination::kCancelled);
}

// One pass for samples that wait for it, all of them with the same kind of pass.
void RunPass(IterationPasses& passes, const StoppingPolicy& policy,
             std::span<const int32_t> members, GroupScratch& scratch) {
  const IterationKind kind = KindOf(scratch.progress[members.front()], policy.linearization);
  const PassCount count = passes.Propagate(members, kind);
  int64_t stages = count.stages + ScanIntervals(passes, policy.num_intervals, members, kind);
  passes.Update(members, kind, policy.floor(), std::span(scratch.norms).first(members.size()));
  ++stages;
  for (size_t i = 0; i < members.size(); ++i) {
    // The next poll of its token ends an interrupted sample.
    if (passes.interrupted(members[i])) continue;
    AdvanceProgress(policy, scratch.norms[i], stages, count.columns, &scratch.progress[members[i]]);
  }
}

bool Unwanted(const Progress& progress) {
  return progress.next == NextPass::kStop && StoppedFromOutside(progress.termination);
}
bool NobodyWaits(int32_t num_samples, const GroupScratch& scratch) {
  return std::all_of(scratch.progress.begin(), scratch.progress.begin() + num_samples, Unwanted);
}
// Trajectories of the samples that have an answer; null if none of these samples wants one.
float* const* WantedTrajectories(std::span<const GroupSample> samples, GroupScratch& scratch) {
  bool wanted = false;
  for (size_t b = 0; b < samples.size(); ++b) {
    float* const to = Unwanted(scratch.progress[b]) ? nullptr : samples[b].trajectory;
    scratch.trajectories[b] = to;
    wanted = wanted || to != nullptr;
  }
  return wanted ? scratch.trajectories.data() : nullptr;
}

// Finds the samples that wait for a pass, with signs of this draw where it carries probes.
std::span<const int32_t> MembersOf(Pass pass, int32_t draw, int32_t num_samples,
                                   GroupScratch& scratch) {
  size_t count = 0;
  for (int32_t b = 0; b < num_samples; ++b) {
    const Progress& progress = scratch.progress[b];
    const bool waits = progress.next == pass.next && progress.probes == pass.probes;
    if (waits && (!pass.probes || progress.draws == draw)) scratch.members[count++] = b;
  }
  return std::span(scratch.members).first(count);
}
// Number of draws of signs that any sample has come to, for a pass that carries probes; else 1.
int32_t NumDraws(Pass pass, int32_t num_samples, const GroupScratch& scratch) {
  int32_t most = 0;
  for (int32_t b = 0; b < num_samples && pass.probes; ++b)
    most = std::max(most, scratch.progress[b].draws);
  return most + 1;
}

// The loop on the host: each round, one pass of each kind for the samples that wait for it.
void RunLoop(IterationPasses& passes, const FixedPointOptions& options,
             const StoppingPolicy& policy, std::span<const GroupSample> samples,
             GroupScratch& scratch) {
  const int32_t n = static_cast<int32_t>(samples.size());
  for (int32_t b = 0; b < n; ++b) ProbeToken(samples[b], &scratch.progress[b]);
  if (NobodyWaits(n, scratch)) return;
  passes.Begin(n);
  bool running = true;
  while (running) {
    running = false;
    for (int32_t b = 0; b < n; ++b) ProbeToken(samples[b], &scratch.progress[b]);
    for (const Pass pass : kPasses) {
      const int32_t draws = NumDraws(pass, n, scratch);
      for (int32_t draw = 0; draw < draws; ++draw) {
        const std::span<const int32_t> members = MembersOf(pass, draw, n, scratch);
        if (members.empty()) continue;
        RunPass(passes, policy, members, scratch);
        for (const int32_t b : members)
          TellListener(options.solver, samples[b], scratch.progress[b]);
        running = true;
      }
    }
  }
  assert(std::all_of(scratch.progress.begin(), scratch.progress.begin() + n,
                     [](const Progress& p) { return p.next == NextPass::kStop; }) &&
         "kPasses has every kind of pass");
  if (!NobodyWaits(n, scratch)) passes.Finish(n, WantedTrajectories(samples, scratch));
}

// The loop on the device.
void RunLoop(IterationLoop& loop, const FixedPointOptions& options, const StoppingPolicy& policy,
             std::span<const GroupSample> samples, GroupScratch& scratch) {
  const int32_t n = static_cast<int32_t>(samples.size());
  loop.Iterate(n, policy, TrajectoriesOf(samples, scratch), scratch.progress.data());
  for (int32_t b = 0; b < n; ++b) TellListener(options.solver, samples[b], scratch.progress[b]);
}

SampleReport ReportOf(const Progress& progress) {
  SampleReport report;
  report.termination = progress.termination;
  report.converged = progress.termination == Termination::kConverged;
  report.iterations = progress.iterations;
  report.chord_corrections = progress.corrections;
  report.confirmations = progress.confirmations;
  report.warm_sweeps = progress.warm_sweeps;
  report.dependent_stages = progress.stages;
  report.column_passes = progress.columns;
  report.update = UpdateOf(progress);
  report.error_estimate = EstimateOf(progress);
  if (report.converged || progress.termination == Termination::kPrecisionLimited)
    report.rounding_estimate = progress.rounding_estimate;
  return report;
}

}  // namespace

FixedPointOptions FixedPointOptionsOf(const ResolvedOptions& options, Linearization linearization,
                                      int64_t num_steps) {
  return {
      .solver = options.solver,
      .policy = {.linearization = linearization,
                 .rtol = options.rtol,
                 .atol = options.atol,
                 .max_iterations = options.max_iterations,
                 .warm_sweeps = options.warm_sweeps,
                 .reuse_matrices = options.jacobian_refresh == JacobianRefresh::kWhileContracting,
                 .stage_budget = options.automatic ? num_steps : 0},
      .shooting_interval = options.shooting_interval,
      .initial_guess = options.initial_guess};
}

void SolveFixedPoint(SolveSpace& space, const FixedPointOptions& options,
                     std::span<const GroupSample> samples, GroupScratch& scratch) {
  const int32_t n = static_cast<int32_t>(samples.size());
  space.SetShootingInterval(options.shooting_interval);
  StoppingPolicy policy = options.policy;
  policy.num_intervals = space.num_intervals();
  for (int32_t b = 0; b < n; ++b) {
    const PassCount cost = PlaceGuess(space, options.initial_guess, b, samples[b]);
    scratch.progress[b] = StartProgress(policy);
    scratch.progress[b].stages = cost.stages;
    scratch.progress[b].columns = cost.columns;
  }
  std::visit([&](auto* loop) { RunLoop(*loop, options, policy, samples, scratch); },
             space.iteration(policy));
  for (int32_t b = 0; b < n; ++b) *samples[b].report = ReportOf(scratch.progress[b]);
}

}  // namespace deeppcr
