// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_STACK_JACOBIAN_H_
#define DEEPPCR_KERNELS_CUDA_STACK_JACOBIAN_H_

// Jacobians of the steps of a dense stack, and products of the Jacobians of consecutive steps,
// which a warp holds in registers: by columns (warp_matrix.h), or as tiles (tile_matrix.h), many
// times as fast, where it does no harm that tensor cores cut sums off.

#include <math.h>

#include <cstdint>

#include "kernels/cuda/math/rounding_source.h"
#include "kernels/cuda/math/slope_near.h"
#include "kernels/cuda/math/tile_matrix.h"
#include "kernels/cuda/math/warp_matrix.h"
#include "kernels/cuda/runtime/device_code.h"
#include "kernels/cuda/stack/warp_step.h"

namespace deeppcr::cuda {

// Slope at a pre-activation: J = diag(slope) W_l, + I of a residual stack.
template <class Stack>
DEEPPCR_DEVICE float SlopeAt(const Stack& stack, float pre_activation) {
  const float slope = Differentiate(stack.activation, pre_activation);
  return stack.residual ? stack.scale * slope : slope;
}

// Slopes within `reach` of a pre-activation a; `slope` is the slope at a itself.
template <class Stack>
DEEPPCR_DEVICE SlopeRange SlopesNear(const Stack& stack, float a, float reach, float slope) {
  return SlopesNear(stack.activation, stack.residual ? stack.scale : 1.0F, a, reach, slope);
}

// column = J of the step with the weights W_l, given the lane's element of the slope.
template <int W, class Context>
DEEPPCR_DEVICE void FirstTangents(Context& context, const StackView& stack, int64_t l, float slope,
                                  float (&column)[kColumnRows<W>]) {
  const int row = context.lane() % W;
  const float* weights = stack.weights + l * W * W;
  DEEPPCR_UNROLL
  for (int r = 0; r < kColumnRows<W>; ++r) {
    const int i = FirstRow<W>(context.lane()) + r;
    const float s = context.Shuffle(slope, i);
    const float identity = stack.residual && i == row ? 1.0F : 0.0F;
    column[r] = fmaf(s, weights[i * W + row], identity);
  }
}

// column <- J column.
template <int W, class Context>
DEEPPCR_DEVICE void Tangents(Context& context, const StackView& stack, int64_t l, float slope,
                             float (&column)[kColumnRows<W>]) {
  float whole[W], weights[W];
  GatherColumn<W>(context, column, whole);
  DEEPPCR_UNROLL
  for (int r = 0; r < kColumnRows<W>; ++r) {
    const int i = FirstRow<W>(context.lane()) + r;
    context.LoadConstants(stack.weights + (l * W + i) * W, weights);
    const float product = RowTimes<W>(weights, whole);
    const float s = context.Shuffle(slope, i);
    column[r] = stack.residual ? fmaf(s, product, column[r]) : s * product;
  }
}

// tangents <- J tangents, on the tensor cores. The identity part of a residual step is added in
// full.
template <int W, class Context>
DEEPPCR_DEVICE void Tangents(Context& context, const RowPairs<W>& layer, float slope, bool residual,
                             TileMatrix<W>& tangents) {
  TileMatrix<W> product;
  tangents.LeftProduct(context, layer, product);
  tangents.TakeScaled(context, slope, product, residual);
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_STACK_JACOBIAN_H_
