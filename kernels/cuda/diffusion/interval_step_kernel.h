// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_DIFFUSION_INTERVAL_STEP_KERNEL_H_
#define DEEPPCR_KERNELS_CUDA_DIFFUSION_INTERVAL_STEP_KERNEL_H_

// One step of many shooting intervals of a sample at once, for denoisers so wide that reading their
// weights takes the time of a step: a team reads a layer once for up to kTeamSamples intervals. The
// linearization points for the tangents go to a tape (tangent_kernel.h).

#include <cstdint>

#include "kernels/cuda/diffusion/kernel.h"
#include "kernels/cuda/diffusion/tape.h"

namespace deeppcr::cuda {

// Intervals first, ..., first + count - 1 of a sample, all at the same step of their own.
struct IntervalRange {
  int64_t sample;
  int32_t first, count;
  int32_t step;               // 0, ..., C - 1
  Confirmation confirmation;  // as in the IterationKind
};

struct IntervalStepArgs {
  DiffusionView process;
  IntervalsView intervals;
  IntervalRange range;
  TeamShape team;     // its samples are intervals here
  DenoiserTape tape;  // a row for each interval of the range
};

// Steps of intervals, a row each.
class IntervalSteps {
 public:
  DEEPPCR_DEVICE IntervalSteps(const SampleSteps& steps, int64_t first, int64_t stride)
      : steps_(steps), first_(first), stride_(stride) {}
  DEEPPCR_DEVICE StepView Row(int r) const { return steps_.At(first_ + r * stride_); }

 private:
  const SampleSteps& steps_;
  const int64_t first_, stride_;
};

// Body of a launch of one team per team.samples intervals, with StepFloats(team.samples) of shared
// memory a block: takes F of each interval one step further.
template <class Team>
DEEPPCR_DEVICE void StepIntervals(const Team& team, const IntervalStepArgs& args) {
  const DiffusionView& process = args.process;
  const IntervalRange& range = args.range;
  auto& context = team.context();
  const int width = process.width;
  const int32_t done = context.cluster() * args.team.samples;
  const int32_t left = range.count - done;
  const int rows = left < args.team.samples ? left : args.team.samples;
  const auto interval = [&](int r) {
    return BlockInterval(args.intervals, process, range.sample, range.first + done + r);
  };
  auto step = process.NewStates<kTeamSamples>(team, SharedFloats(context), rows);
  step.KeepTape(args.tape.From(process.denoiser, done));
  for (int r = 0; r < rows; ++r) {
    const BlockInterval at = interval(r);
    range.step == 0 ? PlaceEntry(context, at, range.confirmation, r, step, width)
                    : PlaceState(context, at.memory.Propagated(at.local), r, step, width);
  }
  team.Sync(kAfterInitialState);
  const SampleSteps steps(process, range.sample);
  step.Run(IntervalSteps(steps, interval(0).begin + range.step, args.intervals.shooting_interval));
  for (int r = 0; team.leads() && r < rows; ++r) {
    const BlockInterval at = interval(r);
    WriteState(context, step, width, at.memory.Propagated(at.local), r);
  }
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_DIFFUSION_INTERVAL_STEP_KERNEL_H_
