// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_DIFFUSION_RESIDENT_BLOCK_H_
#define DEEPPCR_KERNELS_CUDA_DIFFUSION_RESIDENT_BLOCK_H_

// A block of threads that propagates shooting intervals of a residual denoiser whose layers it has
// shared memory for.

#include <cstdint>

#include "kernels/cuda/diffusion/kernel.h"
#include "kernels/cuda/diffusion/tape.h"
#include "kernels/cuda/loop/block_recurrence.h"
#include "kernels/cuda/runtime/device_code.h"
#include "kernels/cuda/tuning.h"

namespace deeppcr::cuda {

struct ResidentArgs {
  PropagationArgs<DiffusionView> propagation;
  int32_t together;   // intervals of a block, at most kResidentIntervals
  int32_t groups;     // blocks of a sample
  DenoiserTape tape;  // [n, P] rows
};

// The barrier calls of the kernel, beyond those of steps.
enum ResidentSite : int {
  kAfterResidentEntries = 72,
  kAfterResidentStates,
  kAfterResidentTangents,
  kAfterLengths,
  kBeforeProbes,
  kAfterProbes,
  kBeforeElements,
  kAfterElements,
  kNumResidentSites,
};

template <class Context>
struct ResidentBlock {
  Context& context;
  const ResidentArgs& args;
  const IntervalsView& view;
  const DiffusionView& process;
  const int64_t sample;
  const int32_t first;  // first interval of the block
  const int32_t count;  // intervals of the block
  DenoiserView d;       // its layers in shared memory, once they are copied

  // `place`: number of the block in the launch.
  DEEPPCR_DEVICE ResidentBlock(Context& context_, const ResidentArgs& args_, int place)
      : context(context_),
        args(args_),
        view(args.propagation.intervals),
        process(args.propagation.process),
        sample(view.members.at[place / args.groups]),
        first(place % args.groups * args.together),
        count(view.tree.num_intervals - first < args.together ? view.tree.num_intervals - first
                                                              : args.together),
        d(process.denoiser) {}

  DEEPPCR_DEVICE int width() const { return process.width; }
  DEEPPCR_DEVICE BlockInterval Interval(int r) const {
    return BlockInterval(view, process, sample, first + r);
  }
  DEEPPCR_DEVICE DenoiserTape TapeOf(int r) const {
    return args.tape.From(process.denoiser, sample * view.tree.num_intervals + first + r);
  }
  // Intervals that have step l of their own: the sample's last one may have fewer steps.
  DEEPPCR_DEVICE int NumActive(int32_t l) const {
    const int64_t last = int64_t{first + count - 1} * view.shooting_interval + l;
    return count - (last >= process.num_steps ? 1 : 0);
  }
  // Residual of what an interval ends at, in front of those of its probes.
  DEEPPCR_DEVICE float* ResidualOf(const BlockInterval& at) const {
    return at.memory.Residual(view.tree.index_of(0, at.interval));
  }
  // Calls f(r) for intervals r < n, a warp each.
  template <class F>
  DEEPPCR_DEVICE void ForIntervals(int n, const F& f) const {
    for (int r = context.warp(); r < n; r += context.num_threads() / kWarpSize) f(r);
  }
};

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_DIFFUSION_RESIDENT_BLOCK_H_
