// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/solver/solver.h"

namespace deeppcr {
namespace {

// Notes that the token has fired; the reason that was found first stays.
void ProbeToken(const GroupSample& sample) {
  Termination& termination = sample.report->termination;
  if (sample.token == nullptr || termination != Termination::kDirect) return;
  const StopReason reason = sample.token->stop_reason();
  if (reason == StopReason::kDeadline) termination = Termination::kDeadline;
  if (reason == StopReason::kCancelled) termination = Termination::kCancelled;
}

// Notes the samples that are to stop; true if all samples are.
bool AllStopped(std::span<const GroupSample> samples) {
  bool all = true;
  for (const GroupSample& sample : samples) {
    ProbeToken(sample);
    all = all && sample.report->termination != Termination::kDirect;
  }
  return all;
}

void TellListeners(std::span<const GroupSample> samples, int64_t steps) {
  for (const GroupSample& sample : samples) {
    if (sample.listener != nullptr)
      sample.listener->OnProgress({.sample = sample.index, .solver = "sequential", .steps = steps});
  }
}

}  // namespace

float* const* TrajectoriesOf(std::span<const GroupSample> samples, GroupScratch& scratch) {
  bool wanted = false;
  for (size_t b = 0; b < samples.size(); ++b) {
    scratch.trajectories[b] = samples[b].trajectory;
    wanted = wanted || samples[b].trajectory != nullptr;
  }
  return wanted ? scratch.trajectories.data() : nullptr;
}

void SolveSequentially(SolveSpace& space, const SystemShape& shape,
                       std::span<const GroupSample> samples, GroupScratch& scratch) {
  const int32_t n = static_cast<int32_t>(samples.size());
  for (const GroupSample& sample : samples) *sample.report = SampleReport{};
  float* const* trajectories = TrajectoriesOf(samples, scratch);
  space.Restart(n);
  int64_t stages = 0;
  const int64_t stride = space.StepsPerPoll(n);
  for (int64_t l = 0; l < shape.num_steps && !AllStopped(samples); l += stride) {
    const int64_t end = std::min(l + stride, shape.num_steps);
    stages += space.Advance(n, l, end, trajectories);
    TellListeners(samples, end);
  }
  for (int32_t b = 0; b < n; ++b) {
    SampleReport& report = *samples[b].report;
    report.dependent_stages = stages;
    report.column_passes = 1;
    if (report.termination == Termination::kDirect && !space.FinalStateFinite(b))
      report.termination = Termination::kNonFinite;
    report.converged = report.termination == Termination::kDirect;
  }
}

}  // namespace deeppcr
