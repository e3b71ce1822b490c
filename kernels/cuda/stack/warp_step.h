// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_STACK_WARP_STEP_H_
#define DEEPPCR_KERNELS_CUDA_STACK_WARP_STEP_H_

// THE step of a dense stack on a GPU, one warp a sample: every solver takes its states through this
// function, so that states agree bit for bit.
//
// A state of width W <= 32 is spread over the lanes: lane i holds element i mod W, so that 32 / W
// lanes hold the same element. These lanes share the row of a layer: each has W^2 / 32 of the row's
// weights in registers.

#include <math.h>

#include <cstdint>

#include "kernels/cuda/math/activation.h"
#include "kernels/cuda/runtime/device_code.h"

namespace deeppcr::cuda {

// z_l = act(W_l z + b_l), or z + scale act(W_l z + b_l), for states padded to W with zeros.
struct StackView {
  int64_t num_steps;     // L >= 1
  int32_t state_dim;     // D in [1, W]
  const float* weights;  // [L, W, W], row-major, 16-byte aligned; zero beyond D
  const float* biases;   // [L, W]; zero beyond D
  float scale;
  bool residual;
  Activation activation;
};

// Part of a layer that a lane works on.
template <int W>
struct LanePart {
  static_assert(W >= 8 && W <= kWarpSize && kWarpSize % W == 0, "a row is shared by whole lanes");
  static constexpr int kColumns = W * W / kWarpSize;

  explicit DEEPPCR_DEVICE LanePart(int lane) : row(lane % W), first_column(lane / W * kColumns) {}
  const int row;
  const int first_column;
};

// A lane's part of a layer, in registers.
template <int W>
struct LayerPart {
  float weights[LanePart<W>::kColumns];
  float bias;
};

// A lane's place in the layers of a stack. Loops keep one and advance it: addresses made from l
// anew are 60 cycles of 64-bit arithmetic before a load.
template <int W>
class LayerCursor {
 public:
  DEEPPCR_DEVICE LayerCursor(const StackView& stack, int lane, int64_t l) {
    const LanePart<W> part(lane);
    weights_ = stack.weights + (l * W + part.row) * W + part.first_column;
    bias_ = stack.biases + l * W + part.row;
  }
  DEEPPCR_DEVICE void Advance(int layers) {
    weights_ += layers * W * W;
    bias_ += layers * W;
  }
  // The lane's part of the layer that is `ahead` layers from here.
  DEEPPCR_DEVICE const float* Weights(int ahead) const { return weights_ + ahead * W * W; }
  DEEPPCR_DEVICE const float* Bias(int ahead) const { return bias_ + ahead * W; }
  // Loads the layer that is `ahead` layers from here.
  template <class Context>
  DEEPPCR_DEVICE LayerPart<W> Load(Context& context, int ahead = 0) const {
    LayerPart<W> layer;
    context.LoadConstants(Weights(ahead), layer.weights);
    float bias[1];
    context.LoadConstants(Bias(ahead), bias);
    layer.bias = bias[0];
    return layer;
  }

 private:
  const float* weights_;
  const float* bias_;
};

template <int W, class Context>
DEEPPCR_DEVICE LayerPart<W> LoadLayer(Context& context, const StackView& stack, int64_t l) {
  return LayerCursor<W>(stack, context.lane(), l).Load(context);
}

// The elements of a vector that the columns of a lane's part of a layer are multiplied with.
template <int W>
struct RowElements {
  float at[LanePart<W>::kColumns];

  RowElements() = default;
  template <class Context>
  DEEPPCR_DEVICE RowElements(Context& context, float x) {
    const LanePart<W> part(context.lane());
    DEEPPCR_UNROLL
    for (int j = 0; j < LanePart<W>::kColumns; ++j)
      at[j] = context.Shuffle(x, part.first_column + j);
  }
};

// The lane's sum over the columns j of its row, `add(w_j, x_j, sum)` adding to a sum. The chains of
// sums are short to reduce latency, and have a fixed shape.
template <int W, class Context, class Add>
DEEPPCR_DEVICE float SumOfRow(Context& context, const LayerPart<W>& layer, const RowElements<W>& x,
                              const Add& add) {
  constexpr int kChains = W < kWarpSize ? 2 : 4;
  float chains[kChains] = {};
  DEEPPCR_UNROLL
  for (int j = 0; j < LanePart<W>::kColumns; ++j)
    chains[j % kChains] = add(layer.weights[j], x.at[j], chains[j % kChains]);
  float sum = chains[0] + chains[1];
  if constexpr (kChains == 4) sum += chains[2] + chains[3];
  DEEPPCR_UNROLL
  for (int mask = W; mask < kWarpSize; mask *= 2) sum += context.ShuffleXor(sum, mask);
  return sum;
}

// The lane's element of W_l x.
template <int W, class Context>
DEEPPCR_DEVICE float Multiply(Context& context, const LayerPart<W>& layer,
                              const RowElements<W>& x) {
  return SumOfRow<W>(context, layer, x,
                     [](float weight, float other, float sum) { return fmaf(weight, other, sum); });
}
template <int W, class Context>
DEEPPCR_DEVICE float Multiply(Context& context, const LayerPart<W>& layer, float x) {
  return Multiply<W>(context, layer, RowElements<W>(context, x));
}
// The lane's sum of the squares of the terms of that element, with `scale` x for x.
template <int W, class Context>
DEEPPCR_DEVICE float SquaresOfTerms(Context& context, const LayerPart<W>& layer,
                                    const RowElements<W>& x, float scale) {
  return SumOfRow<W>(context, layer, x, [scale](float weight, float other, float sum) {
    const float term = weight * (scale * other);
    return fmaf(term, term, sum);
  });
}

// Several products at once, each with the bits of Multiply: no chain waits for another.
template <int W, int N, class Context>
DEEPPCR_DEVICE void MultiplyAll(Context& context, const LayerPart<W> (&layers)[N],
                                const float (&x)[N], float (&products)[N]) {
  constexpr int kChains = W < kWarpSize ? 2 : 4;
  const LanePart<W> part(context.lane());
  float chains[N][kChains] = {};
  DEEPPCR_UNROLL
  for (int j = 0; j < LanePart<W>::kColumns; ++j) {
    DEEPPCR_UNROLL
    for (int n = 0; n < N; ++n) {
      const float other = context.Shuffle(x[n], part.first_column + j);
      chains[n][j % kChains] = fmaf(layers[n].weights[j], other, chains[n][j % kChains]);
    }
  }
  DEEPPCR_UNROLL
  for (int n = 0; n < N; ++n) {
    products[n] = chains[n][0] + chains[n][1];
    if constexpr (kChains == 4) products[n] += chains[n][2] + chains[n][3];
  }
  DEEPPCR_UNROLL
  for (int mask = W; mask < kWarpSize; mask *= 2) {
    DEEPPCR_UNROLL
    for (int n = 0; n < N; ++n) products[n] += context.ShuffleXor(products[n], mask);
  }
}

// The same of one layer.
template <int W, int N, class Context>
DEEPPCR_DEVICE void MultiplyAll(Context& context, const LayerPart<W>& layer, const float (&x)[N],
                                float (&products)[N]) {
  LayerPart<W> layers[N];
  DEEPPCR_UNROLL
  for (int n = 0; n < N; ++n) layers[n] = layer;
  MultiplyAll<W>(context, layers, x, products);
}

// z_l from z_{l-1} and the lane's pre-activation. Elements beyond D, zero in z_{l-1}, stay zero
// whatever other elements have come to; that they are held before the sum spares a select behind
// it.
template <class Stack>
DEEPPCR_DEVICE float FinishStep(const Stack& stack, int row, float pre_activation, float z) {
  const float activated = row < stack.state_dim ? Activate(stack.activation, pre_activation) : 0.0F;
  // Without a residual path there are no branches either: -0 leaves the bits of what it is added
  // to.
  const float scale = stack.residual ? stack.scale : 1.0F, beside = stack.residual ? z : -0.0F;
  return fmaf(scale, activated, beside);
}

// True, as a type.
struct Always {
  DEEPPCR_DEVICE constexpr operator bool() const { return true; }
};

// What FinishStep needs of a stack whose activation is of two straight parts. Residual: bool, or
// Always, which leaves no branches.
template <class Residual>
struct PiecewiseRule {
  int32_t state_dim;
  float scale;
  Residual residual;
  PiecewiseLinear activation;

  DEEPPCR_DEVICE PiecewiseRule(const StackView& stack, Residual is_residual)
      : state_dim(stack.state_dim),
        scale(stack.scale),
        residual(is_residual),
        activation(stack.activation) {}
};

// What FinishStep needs of a stack, the activation and the branch as types.
template <class ActivationType, bool kResidual>
struct StepRule {
  static constexpr bool residual = kResidual;
  int32_t state_dim;
  float scale;
  ActivationType activation;
};

// Calls f with the StepRule of a stack.
template <class Stack, class F>
DEEPPCR_DEVICE void WithStepRule(const Stack& stack, const F& f) {
  WithActivation(stack.activation, [&](auto activation) {
    using ActivationType = decltype(activation);
    stack.residual ? f(StepRule<ActivationType, true>{stack.state_dim, stack.scale, activation})
                   : f(StepRule<ActivationType, false>{stack.state_dim, stack.scale, activation});
  });
}

// z_l from z_{l-1}, by a StackView or a StepRule.
template <int W, class Stack, class Context>
DEEPPCR_DEVICE float Step(Context& context, const Stack& stack, const LayerPart<W>& layer,
                          float z) {
  const float pre_activation = Multiply<W>(context, layer, z) + layer.bias;
  return FinishStep(stack, context.lane() % W, pre_activation, z);
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_STACK_WARP_STEP_H_
