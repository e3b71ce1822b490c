// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_MATH_DENSE_BACK_KERNEL_H_
#define DEEPPCR_KERNELS_CUDA_MATH_DENSE_BACK_KERNEL_H_

// The way back through the layer y = act(W x + b) before or after the recurrence, a block of
// threads for each sample. With a = W x + b and cotangents g_y, of which a sample has m:
//
//   delta = act'(a) g_y,   g_x = W^T delta + beside

#include <math.h>

#include <cstdint>

#include "kernels/cuda/math/activation.h"
#include "kernels/cuda/math/dense_chain_kernel.h"
#include "kernels/cuda/runtime/device_code.h"

namespace deeppcr::cuda {

// Pointers are to memory of the device, or mapped.
struct DenseBackArgs {
  DenseView layer;      // rows == 0: the identity of cols elements
  int32_t num_columns;  // m
  const float* inputs;  // x [n, input_stride]; not of the identity
  int64_t input_stride;
  const float* of_outputs;  // g_y [n, m, of_outputs_stride]
  int64_t of_outputs_stride;
  const float* beside;  // [n, m, beside_dim], or null
  int32_t beside_dim;   // may be more than cols: of what the layer does not read
  float* deltas;        // [n, m, rows]; not of the identity
  float* of_inputs;     // g_x [n, m, of_inputs_stride], zero beyond cols and beside_dim
  int64_t of_inputs_stride;
};

// The barrier calls of the kernel.
enum DenseBackSite : int { kAfterDenseDeltas, kNumDenseBackSites };

// Forms the deltas of a row of the layer, a warp a row, from the very pre-activation of the way
// forward. Where that is NaN the slope is too, though the slope of a relu would be 0.
template <class Context>
DEEPPCR_DEVICE void FormDenseDeltas(Context& context, const DenseBackArgs& args, int32_t row) {
  const int64_t sample = context.cluster(), first = sample * args.num_columns;
  const float* const weights = args.layer.weights + int64_t{row} * args.layer.cols;
  const float* const inputs = args.inputs + sample * args.input_stride;
  double value = 0;
  for (int32_t k = context.lane(); k < args.layer.cols; k += kWarpSize)
    value = fma(double{weights[k]}, double{inputs[k]}, value);
  const auto a = static_cast<float>(SumOfWarp(context, value) + double{args.layer.biases[row]});
  const float slope = isnan(a) ? a : Differentiate(args.layer.activation, a);
  for (int32_t c = context.lane(); c < args.num_columns; c += kWarpSize)
    args.deltas[(first + c) * args.layer.rows + row] =
        slope * args.of_outputs[(first + c) * args.of_outputs_stride + row];
}

// Element j of g_x of a row of cotangents, counted over all samples.
DEEPPCR_DEVICE float DenseCotangent(const DenseBackArgs& args, int64_t at, int64_t j) {
  const DenseView& layer = args.layer;
  const bool beside = args.beside != nullptr && j < args.beside_dim;
  float sum = beside ? args.beside[at * args.beside_dim + j] : 0.0F;
  if (j >= layer.cols) return sum;
  if (layer.rows == 0) return sum + args.of_outputs[at * args.of_outputs_stride + j];
  for (int32_t i = 0; i < layer.rows; ++i)
    sum = fmaf(layer.weights[int64_t{i} * layer.cols + j], args.deltas[at * layer.rows + i], sum);
  return sum;
}

// Body of a launch of one block per sample.
template <class Context>
DEEPPCR_DEVICE void GoBackThroughLayer(Context& context, const DenseBackArgs& args) {
  const int warps = context.num_threads() / kWarpSize;
  for (int32_t row = context.warp(); row < args.layer.rows; row += warps)
    FormDenseDeltas(context, args, row);
  context.SyncBlock(kAfterDenseDeltas);
  const int64_t stride = args.of_inputs_stride;
  for (int64_t at = context.thread(); at < args.num_columns * stride; at += context.num_threads()) {
    const int64_t row = int64_t{context.cluster()} * args.num_columns + at / stride;
    const int64_t j = at % stride;
    args.of_inputs[row * stride + j] = DenseCotangent(args, row, j);
  }
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_MATH_DENSE_BACK_KERNEL_H_
