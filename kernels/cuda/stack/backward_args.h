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

// Pointers are to device memory.
struct BackwardArgs {
  StackView stack;               // L below 2^30
  int32_t num_samples;           // n
  const float* states;           // z_0..z_L [n, L + 1, D]
  const float* final_gradients;  // g_L [n, W], zero beyond D
  float* initial_gradients;      // g_0 [n, W], zero beyond D
  float* deltas;                 // delta_1..delta_L [n, L, W], zero beyond D, or null
  int64_t* num_dependent;        // steps made, one after another, by the first sample
};

// Backward pass by a scan over shooting intervals, one cluster of blocks per sample. The tree is
// used mirrored: its first interval is the last interval of the stack.
struct BackwardScanArgs {
  BackwardArgs backward;
  IntervalTree tree;
  int32_t shooting_interval;  // C
  std::byte* workspace;       // [n, blocks, BackwardMemory::Bytes], or null: shared memory
};

struct ParameterGradientArgs {
  int64_t num_steps;  // L
  int32_t state_dim;  // D
  int32_t num_samples;
  const float* states;      // z_0..z_L [n, L + 1, D]
  const float* deltas;      // [n, L, W]
  float* weight_gradients;  // [L, W, W], zero beyond D
  float* bias_gradients;    // [L, W], zero beyond D
};

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_STACK_BACKWARD_ARGS_H_
