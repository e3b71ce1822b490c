// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_STACK_PROPAGATION_H_
#define DEEPPCR_KERNELS_CUDA_STACK_PROPAGATION_H_

// A shooting interval of a dense stack, by a warp: the state, the probes that pick up its rounding,
// and the interval's transition matrix.

#include <math.h>

#include <cstdint>

#include "kernels/cuda/loop/interval_norms.h"
#include "kernels/cuda/math/rounding_source.h"
#include "kernels/cuda/math/slope_near.h"
#include "kernels/cuda/math/warp_matrix.h"
#include "kernels/cuda/stack/jacobian.h"
#include "kernels/cuda/stack/warp_step.h"
#include "kernels/iteration/pass.h"

namespace deeppcr::cuda {

template <int W, class Context>
class StackPropagation {
 public:
  // `entry`: the lane's element of the state. `matrix`: null if no matrix is wanted; a diagonal is
  // that of a single step.
  DEEPPCR_DEVICE StackPropagation(Context& context, const StackView& stack, IterationKind kind,
                                  float entry, float* matrix)
      : context_(context),
        stack_(stack),
        kind_(kind),
        matrix_(matrix),
        row_(context.lane() % W),
        z_(entry) {}

  // Makes steps (begin, end].
  DEEPPCR_DEVICE void Run(int64_t begin, int64_t end) {
    const bool full = matrix_ != nullptr && kind_.linearization == Linearization::kFull;
    for (int64_t l = begin; l < end; ++l) {
      const LayerPart<W> layer = LoadLayer<W>(context_, stack_, l);
      const float a = Multiply<W>(context_, layer, z_) + layer.bias;
      const float next = FinishStep(stack_, row_, a, z_);
      if (matrix_ != nullptr || kind_.probes) {
        const float slope = SlopeAt(stack_, a);
        // Before the tangents, which need the registers of the layer.
        if (kind_.probes) Probes(layer, l, a, slope, next);
        if (full) {
          l == begin ? FirstTangents<W>(context_, stack_, l, slope, column_)
                     : Tangents<W>(context_, stack_, l, slope, column_);
        }
        if (matrix_ != nullptr && !full) StoreDiagonal(l, slope);
      }
      z_ = next;
    }
    if (full) StoreColumn<W>(context_, column_, matrix_);
  }

  // The lane's element of the state, and of a probe.
  DEEPPCR_DEVICE float state() const { return z_; }
  DEEPPCR_DEVICE float probe(int v) const { return probes_[v]; }

 private:
  DEEPPCR_DEVICE void StoreDiagonal(int64_t l, float slope) const {
    const float weight = stack_.weights[(l * W + row_) * W + row_];
    if (context_.lane() < W) matrix_[row_] = fmaf(slope, weight, stack_.residual ? 1.0F : 0.0F);
  }

  // Size that the rounding of the step is proportional to (kernels/cpu/kernels_impl.h has the
  // formula and its reasons), from the new state, the branch, and the terms of the dot products
  // with the bias. `slope` is the slope at the pre-activation a, `slopes` receives the slopes near
  // a, and `product` is the largest product of a probe.
  DEEPPCR_DEVICE float RoundingSize(const LayerPart<W>& layer, float a, float product, float next,
                                    float slope, SlopeRange* slopes) {
    const float largest = LargestOfWarp(context_, fmaxf(fabsf(next), fabsf(z_)));
    const float scale = PowerOfTwoBelow(largest), inverse = 1.0F / scale;
    LayerPart<W> squares;
    DEEPPCR_UNROLL
    for (int j = 0; j < LanePart<W>::kColumns; ++j)
      squares.weights[j] = layer.weights[j] * layer.weights[j];
    const float before = z_ * inverse, after = next * inverse, bias = layer.bias * inverse;
    const float sum = Multiply<W>(context_, squares, before * before);
    const float length = sqrtf(fminf(fmaf(bias, bias, sum), kLargestFloat));
    *slopes = SlopesNear(stack_, a, ReachOf(length * scale, product), slope);
    const float terms = slopes->Largest() * length;
    const float branch = stack_.residual ? after - before : 0.0F;
    return sqrtf(fmaf(after, after, fmaf(branch, branch, terms * terms))) * scale;
  }

  // E <- J E + rounding of the step.
  DEEPPCR_DEVICE void Probes(const LayerPart<W>& layer, int64_t l, float a, float slope,
                             float next) {
    float products[kNumProbes], largest = 0.0F;
    DEEPPCR_UNROLL
    for (int v = 0; v < kNumProbes; ++v) {
      products[v] = Multiply<W>(context_, layer, probes_[v]);
      largest = fmaxf(largest, fabsf(products[v]));
    }
    SlopeRange slopes;
    const float size = RoundingSize(layer, a, largest, next, slope, &slopes);
    DEEPPCR_UNROLL
    for (int v = 0; v < kNumProbes; ++v)
      probes_[v] = slopes.Carry(products[v], stack_.residual ? probes_[v] : 0.0F) +
                   RoundingSource(size, v, row_, l);
  }

  Context& context_;
  const StackView& stack_;
  const IterationKind kind_;
  float* const matrix_;
  const int row_;
  float z_;
  float probes_[kNumProbes] = {};
  float column_[kColumnRows<W>] = {};
};

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_STACK_PROPAGATION_H_
