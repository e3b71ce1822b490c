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
#include "kernels/cuda/math/tile_matrix.h"
#include "kernels/cuda/math/warp_matrix.h"
#include "kernels/cuda/stack/jacobian.h"
#include "kernels/cuda/stack/warp_step.h"
#include "kernels/iteration/pass.h"

namespace deeppcr::cuda {

// Layers of an interval: rows of W weights, kRowStride floats apart, one layer behind the other. In
// shared memory rows lie apart; in global memory, where nobody writes them, one behind the other.
template <int W, int kRowStride>
struct LayerRows {
  const float* weights;
  const float* biases;

  DEEPPCR_DEVICE void Advance(int layers) {
    weights += layers * W * kRowStride;
    biases += layers * W;
  }
  template <class Context>
  DEEPPCR_DEVICE LayerPart<W> Part(Context& context) const {
    const LanePart<W> at(context.lane());
    const float* const row = weights + at.row * kRowStride + at.first_column;
    LayerPart<W> part;
    if constexpr (kRowStride == W) {
      context.LoadConstants(row, part.weights);
    } else {
      LoadRow(context, row, part.weights);
    }
    part.bias = biases[at.row];
    return part;
  }
  template <class Context>
  DEEPPCR_DEVICE void Pairs(Context& context, RowPairs<W>& pairs) const {
    pairs.template Load<kRowStride>(context, [&](int at, float(&two)[2]) {
      if constexpr (kRowStride == W) {
        context.LoadConstants(weights + at, two);
      } else {
        context.LoadTwo(weights + at, two);
      }
    });
  }
};

// kFull: the matrix is wanted, and is full. Rule: a StackView, or a PiecewiseRule, whose steps take
// a third of the time.
template <int W, bool kFull, class Rule, class Context>
class StackPropagation {
 public:
  // `signs`: draws the signs of the first step's rounding. `entry`: the lane's element of the
  // state. `matrix`: null if no matrix is wanted; a diagonal is that of a single step.
  DEEPPCR_DEVICE StackPropagation(Context& context, const Rule& rule, IterationKind kind,
                                  int64_t signs, float entry, float* matrix)
      : context_(context),
        rule_(rule),
        carries_probes_(kind.probes),
        matrix_(matrix),
        row_(context.lane() % W),
        signs_(signs),
        z_(entry) {}

  // Makes steps (begin, end], whose layers begin at `layers`.
  template <int kRowStride>
  DEEPPCR_DEVICE void Run(LayerRows<W, kRowStride> layers, int64_t begin, int64_t end) {
    LayerPart<W> next_layer = layers.Part(context_);
    RowPairs<W> next_pairs = {};
    if constexpr (kFull) {
      layers.Pairs(context_, next_pairs);
      tangents_.SetIdentity(context_);
    }
    for (int64_t l = begin; l < end; ++l) {
      // The layer after this one is on its way while this one is multiplied.
      const LayerPart<W> layer = next_layer;
      const RowPairs<W> pairs = next_pairs;
      if (!kFull && matrix_ != nullptr) diagonal_ = layers.weights[row_ * (kRowStride + 1)];
      if (l + 1 < end) layers.Advance(1);
      next_layer = layers.Part(context_);
      if constexpr (kFull) layers.Pairs(context_, next_pairs);
      const float a = Multiply<W>(context_, layer, z_) + layer.bias;
      const float next = FinishStep(rule_, row_, a, z_);
      if (kFull || matrix_ != nullptr || carries_probes_) {
        const float slope = SlopeAt(rule_, a);
        if (carries_probes_) Probes(layer, l, a, slope, next);
        if constexpr (kFull) {
          Tangents(context_, pairs, slope, rule_.residual, tangents_);
        } else if (matrix_ != nullptr) {
          StoreDiagonal(slope);
        }
      }
      z_ = next;
    }
    if constexpr (kFull) tangents_.Store(context_, matrix_);
  }

  // The lane's element of the state, and of a probe.
  DEEPPCR_DEVICE float state() const { return z_; }
  DEEPPCR_DEVICE float probe(int v) const { return probes_[v]; }

 private:
  DEEPPCR_DEVICE void StoreDiagonal(float slope) const {
    if (context_.lane() < W) matrix_[row_] = fmaf(slope, diagonal_, rule_.residual ? 1.0F : 0.0F);
  }

  // Size that the rounding of the step is proportional to (kernels/cpu/kernels_impl.h has the
  // formula and its reasons), from the new state, the branch, and the terms of the dot products
  // with the bias. `slope` is the slope at the pre-activation a, `slopes` receives the slopes near
  // a, and `product` is the largest product of a probe.
  DEEPPCR_DEVICE float RoundingSize(const LayerPart<W>& layer, float a, float product, float next,
                                    float slope, SlopeRange* slopes) {
    const float largest = context_.LargestOfWarp(fmaxf(fmaxf(fabsf(next), fabsf(z_)), 0.0F));
    const float scale = PowerOfTwoBelow(largest), inverse = 1.0F / scale;
    const float before = z_ * inverse, after = next * inverse, bias = layer.bias * inverse;
    const float sum = SquaresOfTerms<W>(context_, layer, before);
    const float squared = fmaf(bias, bias, sum) * SquaredRoundingOfSum(rule_.state_dim);
    const float length = sqrtf(fminf(squared, kLargestFloat));
    *slopes = SlopesNear(rule_, a, ReachOf(length * scale, product), slope);
    const float terms = slopes->Largest() * length;
    const float branch = rule_.residual ? after - before : 0.0F;
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
      probes_[v] = slopes.Carry(products[v], rule_.residual ? probes_[v] : 0.0F) +
                   RoundingSource(size, v, row_, signs_ + l);
  }

  Context& context_;
  const Rule& rule_;
  const bool carries_probes_;
  float* const matrix_;
  const int row_;
  const int64_t signs_;
  float z_;
  float probes_[kNumProbes] = {};
  float diagonal_ = 0.0F;
  TileMatrix<W> tangents_;
};

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_STACK_PROPAGATION_H_
