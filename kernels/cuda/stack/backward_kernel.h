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

// Body of a launch of blocks of whole warps, a warp per row.
template <int W, class Context>
DEEPPCR_DEVICE void GoBackSequentially(Context& context, const BackwardStepsArgs& args) {
  const BackwardArgs& backward = args.backward;
  const int64_t warps = context.num_threads() / kWarpSize;
  const int64_t row = context.cluster() * warps + context.warp();
  if (row >= int64_t{backward.num_samples} * backward.num_columns) return;
  const auto sample = static_cast<int32_t>(row / backward.num_columns);
  BackwardSweep<W, Context> sweep(context, backward, sample, row);
  SlopesOfStates<W, Context> slopes(context, backward, sample, args.end);
  sweep.WriteInitialGradient(sweep.Run(args.begin, args.end, sweep.FinalGradient(), slopes));
  if (row == 0 && context.lane() == 0) *backward.num_dependent = sweep.made();
}

// Body of a launch of any number of threads, which share the weights of all layers. Samples are
// added up in their order, to what the sums hold: bits do not depend on how samples are divided
// over launches.
template <class Context>
DEEPPCR_DEVICE void SumParameterGradients(Context& context, const ParameterGradientArgs& args) {
  const int64_t rows = args.rows, cols = args.cols, layer = rows * cols;
  const int64_t threads = int64_t{context.num_clusters()} * context.num_threads();
  for (int64_t at = int64_t{context.cluster()} * context.num_threads() + context.thread();
       at < args.num_layers * layer; at += threads) {
    const int64_t l = at / layer, row = at % layer / cols, column = at % cols;
    float weight = args.weights[at], bias = column == 0 ? args.biases[l * rows + row] : 0.0F;
    for (int64_t s = 0; s < args.num_samples; ++s) {
      const float delta = args.deltas[(s * args.num_layers + l) * rows + row];
      weight = fmaf(delta, args.inputs[s * args.input_stride + l * cols + column], weight);
      bias += delta;
    }
    args.weights[at] = weight;
    if (column == 0) args.biases[l * rows + row] = bias;
  }
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_STACK_BACKWARD_KERNEL_H_
