// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_STACK_BACKWARD_KERNEL_H_
#define DEEPPCR_KERNELS_CUDA_STACK_BACKWARD_KERNEL_H_

// The backward pass of a dense stack step by step, the baseline of the scan: one launch, one warp a
// sample, the gradient in registers, layers and states read ahead of their use. Also the gradients
// by the parameters, which follow either kind of backward pass.

#include <math.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/math/warp_matrix.h"
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
  const auto last = sweep.LastLayers(args.begin, args.end);
  sweep.WriteInitialGradient(sweep.Run(args.begin, args.end, sweep.FinalGradient(), last, slopes));
  if (row == 0 && context.lane() == 0) *backward.num_dependent = sweep.made();
}

// Adds the outer products to kTogether neighbours of a row of weights by each thread; the threads
// of a block have the same layer.
template <int kTogether, class Context>
DEEPPCR_DEVICE void SumOuterProducts(Context& context, const ParameterGradientArgs& args) {
  const auto threads = static_cast<uint32_t>(context.num_threads());
  const auto per_row = static_cast<uint32_t>(args.cols / kTogether);
  const uint32_t per_layer = static_cast<uint32_t>(args.rows) * per_row;
  const uint32_t shares = (per_layer - 1) / threads + 1;
  for (int64_t share = context.cluster(); share < args.num_layers * shares;
       share += context.num_clusters()) {
    const int64_t l = share / shares;
    const uint32_t at =
        static_cast<uint32_t>(share % shares) * threads + static_cast<uint32_t>(context.thread());
    if (at >= per_layer) continue;
    const uint32_t row = at / per_row, column = at % per_row * kTogether;
    const int64_t place = l * args.rows + row, delta_stride = args.num_layers * args.rows;
    const float* const deltas = args.deltas + place;
    const float* const inputs = args.inputs + l * args.cols + column;
    float* const sums = args.weights + place * args.cols + column;
    float weights[kTogether], bias = column == 0 ? args.biases[place] : 0.0F;
    LoadRow(context, sums, weights);
    // Adds kSamples samples, whose loads are on their way together.
    const auto add = [&](auto samples, int64_t s) {
      constexpr int kSamples = samples.value;
      float delta[kSamples], input[kSamples][kTogether];
      DEEPPCR_UNROLL
      for (int b = 0; b < kSamples; ++b) {
        delta[b] = deltas[(s + b) * delta_stride];
        LoadRow(context, inputs + (s + b) * args.input_stride, input[b]);
      }
      DEEPPCR_UNROLL
      for (int b = 0; b < kSamples; ++b) {
        DEEPPCR_UNROLL
        for (int k = 0; k < kTogether; ++k) weights[k] = fmaf(delta[b], input[b][k], weights[k]);
        bias += delta[b];
      }
    };
    int64_t s = 0;
    DEEPPCR_AS_WRITTEN
    for (; s + 4 <= args.num_samples; s += 4) add(std::integral_constant<int, 4>(), s);
    DEEPPCR_AS_WRITTEN
    for (; s < args.num_samples; ++s) add(std::integral_constant<int, 1>(), s);
    if constexpr (kTogether == 4) context.StoreFour(weights, sums);
    if constexpr (kTogether == 1) *sums = weights[0];
    if (column == 0) args.biases[place] = bias;
  }
}

// Body of a launch of any number of threads, which share the weights of all layers. Samples are
// added up in their order, to what the sums hold: bits do not depend on how samples are divided
// over launches.
template <class Context>
DEEPPCR_DEVICE void SumParameterGradients(Context& context, const ParameterGradientArgs& args) {
  args.cols % 4 == 0 && args.input_stride % 4 == 0 ? SumOuterProducts<4>(context, args)
                                                   : SumOuterProducts<1>(context, args);
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_STACK_BACKWARD_KERNEL_H_
