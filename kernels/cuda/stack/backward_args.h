// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_STACK_BACKWARD_ARGS_H_
#define DEEPPCR_KERNELS_CUDA_STACK_BACKWARD_ARGS_H_

// Arguments of the kernels of the backward pass. With a_l = W_l z_{l-1} + b_l and g_l = dloss/dz_l:
//
//   delta_l = slope_l g_l      slope_l = act'(a_l), times the scale of a residual stack
//   g_{l-1} = W_l^T delta_l    (+ g_l of a residual stack)
//   dloss/dW_l = sum over samples of delta_l z_{l-1}^T, dloss/db_l = sum of delta_l

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/loop/interval_tree.h"
#include "kernels/cuda/stack/warp_step.h"

namespace deeppcr::cuda {

// Pointers are to memory of the device, or mapped. A row is a cotangent of a sample: row r is the
// column r % m of sample r / m.
struct BackwardArgs {
  StackView stack;               // L below 2^30
  int32_t num_samples;           // n
  int32_t num_columns;           // m
  const float* states;           // z_0..z_L [n, L + 1, D]
  const float* final_gradients;  // [n, m, W], zero beyond D
  // [n, m, W], zero beyond D; may be the final ones' memory, but not for the scan.
  float* initial_gradients;
  float* deltas;           // delta_1..delta_L [n, L, D], where m = 1, or null
  int64_t* num_dependent;  // steps made, one after another, by the first row
};

// Backward pass step by step, one warp a row: from g_end to g_begin.
struct BackwardStepsArgs {
  BackwardArgs backward;
  int32_t begin, end;  // steps end, end - 1, .., begin + 1
};

// Backward pass by a scan over shooting intervals, one cluster of blocks per sample: from g_L to
// g_0. The tree is used mirrored: its first interval is the last interval of the stack.
struct BackwardScanArgs {
  BackwardArgs backward;
  IntervalTree tree;
  int32_t shooting_interval;  // C
  std::byte* workspace;       // [n, blocks, BackwardMemory::Bytes], or null: shared memory
};

// Sums of the outer products of deltas with the inputs of their layers, over samples, for layers
// that lie one behind the other.
struct ParameterGradientArgs {
  int64_t num_layers;
  int32_t rows, cols;    // of every layer
  int32_t num_samples;   // n
  const float* inputs;   // [n, input_stride]: the vectors [cols] that enter the layers
  int64_t input_stride;  // >= num_layers * cols
  const float* deltas;   // [n, num_layers, rows]
  float* weights;        // [num_layers, rows, cols], added to
  float* biases;         // [num_layers, rows], added to
};

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_STACK_BACKWARD_ARGS_H_
