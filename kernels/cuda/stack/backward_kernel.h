// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_STACK_BACKWARD_KERNEL_H_
#define DEEPPCR_KERNELS_CUDA_STACK_BACKWARD_KERNEL_H_

// The backward pass of a dense stack step by step, the baseline of the scan: one launch, one warp a
// sample, the gradient in registers, layers and states read ahead of their use. Also the gradients
// by the parameters, which follow either kind of backward pass.

#include <math.h>

#include <cstdint>

#include "kernels/cuda/runtime/device_code.h"
#include "kernels/cuda/stack/backward_args.h"
#include "kernels/cuda/stack/backward_step.h"

namespace deeppcr::cuda {

// Body of a launch of blocks of whole warps, a warp per sample.
template <int W, class Context>
DEEPPCR_DEVICE void GoBackSequentially(Context& context, const BackwardArgs& args) {
  const int64_t warps = context.num_threads() / kWarpSize;
  const int64_t sample = context.cluster() * warps + context.warp();
  if (sample >= args.num_samples) return;
  BackwardSweep<W, Context> sweep(context, args, sample);
  SlopesOfStates<W, Context> slopes(context, args, sample);
  const auto steps = static_cast<int32_t>(args.stack.num_steps);
  sweep.WriteInitialGradient(sweep.Run(0, steps, sweep.FinalGradient(), slopes));
  if (sample == 0 && context.lane() == 0) *args.num_dependent = sweep.made();
}

// Body of a launch of any number of threads, which share the weights of all layers. Samples are
// added up in their order.
template <int W, class Context>
DEEPPCR_DEVICE void SumParameterGradients(Context& context, const ParameterGradientArgs& args) {
  const int64_t dim = args.state_dim, steps = args.num_steps;
  const int64_t threads = int64_t{context.num_clusters()} * context.num_threads();
  for (int64_t at = int64_t{context.cluster()} * context.num_threads() + context.thread();
       at < steps * W * W; at += threads) {
    const int64_t l = at / (W * W), row = at / W % W, column = at % W;
    const bool used = row < dim && column < dim;
    float weight = 0.0F, bias = 0.0F;
    for (int64_t s = 0; used && s < args.num_samples; ++s) {
      const float delta = args.deltas[(s * steps + l) * W + row];
      weight = fmaf(delta, args.states[(s * (steps + 1) + l) * dim + column], weight);
      bias += delta;
    }
    args.weight_gradients[at] = weight;
    if (column == 0) args.bias_gradients[l * W + row] = bias;
  }
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_STACK_BACKWARD_KERNEL_H_
