// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_SEQUENTIAL_KERNEL_H_
#define DEEPPCR_KERNELS_CUDA_SEQUENTIAL_KERNEL_H_

// The sequential solver on a GPU, the baseline of all others: one launch, one warp a sample, the
// state in registers, layers read ahead of their use.

#include <cstdint>

#include "kernels/cuda/device_code.h"
#include "kernels/cuda/stack_step.h"

namespace deeppcr::cuda {

// Pointers are the device's.
struct SequentialArgs {
  StackView stack;
  int32_t num_samples;
  const float* initial_states;  // z_0 [n, W], zero beyond D
  float* final_states;          // z_L [n, W], zero beyond D
  float* trajectories;          // z_0..z_L [n, L + 1, D], or null
};

// One sample's states, written by the lanes that hold them.
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

// Body of a launch of one block of whole warps per so many samples.
template <int W, class Context>
DEEPPCR_DEVICE void SolveSequentially(Context& context, const SequentialArgs& args) {
  constexpr int kAhead = W < kWarpSize ? 4 : 2;  // layers, as many as registers hold
  const int64_t warps = context.num_threads() / kWarpSize;
  const int64_t sample = context.cluster() * warps + context.warp();
  if (sample >= args.num_samples) return;
  const StackView& stack = args.stack;
  const int64_t last = stack.num_steps - 1;
  const TrajectoryWriter<W> trajectory(args, sample, context.lane());
  float z = args.initial_states[sample * W + context.lane() % W];
  trajectory.Write(0, z);
  LayerPart<W> layers[kAhead];
  DEEPPCR_UNROLL
  for (int k = 0; k < kAhead; ++k) layers[k] = LoadLayer<W>(context, stack, k < last ? k : last);
  for (int64_t begin = 0; begin <= last; begin += kAhead) {
    DEEPPCR_UNROLL
    for (int k = 0; k < kAhead; ++k) {
      const int64_t l = begin + k;
      if (l > last) break;
      const LayerPart<W> layer = layers[k];
      layers[k] = LoadLayer<W>(context, stack, l + kAhead < last ? l + kAhead : last);
      z = Step<W>(context, stack, layer, z);
      trajectory.Write(l + 1, z);
    }
  }
  if (context.lane() < W) args.final_states[sample * W + context.lane()] = z;
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_SEQUENTIAL_KERNEL_H_
