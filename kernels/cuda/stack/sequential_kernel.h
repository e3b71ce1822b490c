// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_STACK_SEQUENTIAL_KERNEL_H_
#define DEEPPCR_KERNELS_CUDA_STACK_SEQUENTIAL_KERNEL_H_

// The sequential solver on a GPU, the baseline of all others: one launch, one warp a sample, the
// state in registers, layers read ahead of their use.

#include <cstdint>

#include "kernels/cuda/runtime/device_code.h"
#include "kernels/cuda/stack/warp_step.h"

namespace deeppcr::cuda {

// Arguments for steps (begin, end] of every sample. Pointers are to device memory.
struct SequentialArgs {
  StackView stack;
  int32_t num_samples;
  int64_t begin, end;      // 0 <= begin < end <= L
  const float* states;     // z_begin [n, W], zero beyond D
  float* final_states;     // z_end [n, W], zero beyond D; may be `states`
  float* trajectories;     // z_0..z_L [n, L + 1, D], of which begin..end are written, or null
  int64_t* num_dependent;  // steps made, one after another, by the first sample
};

// Writer of one sample's states, by the lanes that hold them.
template <int W>
class TrajectoryWriter {
 public:
  DEEPPCR_DEVICE TrajectoryWriter(const SequentialArgs& args, int64_t sample, int lane)
      : dim_(args.stack.state_dim),
        to_(args.trajectories == nullptr || lane >= dim_
                ? nullptr
                : args.trajectories + sample * (args.stack.num_steps + 1) * dim_ + lane) {}
  DEEPPCR_DEVICE void Write(int64_t l, float z) const {
    if (to_ != nullptr) to_[l * dim_] = z;
  }

 private:
  const int64_t dim_;
  float* const to_;
};

// Body of a launch of blocks of whole warps, a warp per sample.
template <int W, class Context>
DEEPPCR_DEVICE void SolveSequentially(Context& context, const SequentialArgs& args) {
  constexpr int kAhead = W < kWarpSize ? 4 : 2;  // layers, as many as registers hold
  const int64_t warps = context.num_threads() / kWarpSize;
  const int64_t sample = context.cluster() * warps + context.warp();
  if (sample >= args.num_samples) return;
  const StackView& stack = args.stack;
  const int64_t last = args.end - 1;
  const TrajectoryWriter<W> trajectory(args, sample, context.lane());
  float z = args.states[sample * W + context.lane() % W];
  trajectory.Write(args.begin, z);
  LayerPart<W> layers[kAhead];
  DEEPPCR_UNROLL
  for (int k = 0; k < kAhead; ++k) {
    const int64_t l = args.begin + k;
    layers[k] = LoadLayer<W>(context, stack, l < last ? l : last);
  }
  int64_t made = 0;
  for (int64_t begin = args.begin; begin <= last; begin += kAhead) {
    DEEPPCR_UNROLL
    for (int k = 0; k < kAhead; ++k) {
      const int64_t l = begin + k;
      if (l > last) break;
      const LayerPart<W> layer = layers[k];
      layers[k] = LoadLayer<W>(context, stack, l + kAhead < last ? l + kAhead : last);
      z = Step<W>(context, stack, layer, z);
      trajectory.Write(l + 1, z);
      ++made;
    }
  }
  if (context.lane() < W) args.final_states[sample * W + context.lane()] = z;
  if (sample == 0 && context.lane() == 0) *args.num_dependent = made;
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_STACK_SEQUENTIAL_KERNEL_H_
