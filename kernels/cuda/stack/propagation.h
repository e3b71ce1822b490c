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

// What a propagation makes beside the states of an interval.
enum class Beside : uint8_t { kNothing, kProbes, kDiagonal, kTangents };

// Rule: a StackView, or a PiecewiseRule, whose steps take a third of the time.
template <int W, Beside kBeside, class Rule, class Context>
class StackPropagation {
 public:
  // `signs`: draws the signs of the first step's rounding. `entry`: the lane's element of the
  // state. `matrix`: where a matrix goes, if one is made; a diagonal is that of a single step.
  DEEPPCR_DEVICE StackPropagation(Context& context, const Rule& rule, int64_t signs, float entry,
                                  float* matrix)
      : context_(context),
        rule_(rule),
        matrix_(matrix),
        row_(context.lane() % W),
        signs_(signs),
        z_(entry) {}

  // Makes `steps` steps, whose layers begin at `layers`; a diagonal takes one.
  template <int kRowStride>
  DEEPPCR_DEVICE void Run(const LayerRows<W, kRowStride>& layers, int32_t steps) {
    if constexpr (kBeside == Beside::kDiagonal) {
      RunDiagonal(layers);
    } else if constexpr (kBeside == Beside::kNothing) {
      RunStates(layers, steps);
    } else {
      RunBeside(layers, steps);
    }
  }

  // The lane's element of the state, and of a probe.
  DEEPPCR_DEVICE float state() const { return z_; }
  DEEPPCR_DEVICE float probe(int v) const { return probes_[v]; }

 private:
  // A step of the state.
  struct StateStep {
    LayerPart<W> layer;
    RowElements<W> row;  // of the state before
    float before, pre_activation, after;

    StateStep() = default;
    DEEPPCR_DEVICE StateStep(Context& context, const Rule& rule, const LayerPart<W>& of, float z)
        : layer(of),
          row(context, z),
          before(z),
          pre_activation(Multiply<W>(context, of, row) + of.bias),
          after(FinishStep(rule, context.lane() % W, pre_activation, z)) {}
  };

  template <int kRowStride>
  DEEPPCR_DEVICE void RunDiagonal(const LayerRows<W, kRowStride>& layers) {
    const float weight = layers.weights[row_ * (kRowStride + 1)];
    const StateStep step(context_, rule_, layers.Part(context_), z_);
    const float slope = SlopeAt(rule_, step.pre_activation);
    if (context_.lane() < W) matrix_[row_] = fmaf(slope, weight, rule_.residual ? 1.0F : 0.0F);
    z_ = step.after;
  }

  template <int kRowStride>
  DEEPPCR_DEVICE void RunStates(LayerRows<W, kRowStride> layers, int32_t steps) {
    LayerPart<W> next = layers.Part(context_);
    for (int32_t k = 0; k < steps; ++k) {
      // The layer after this one is on its way while this one is multiplied.
      const LayerPart<W> layer = next;
      if (k + 1 < steps) layers.Advance(1);
      next = layers.Part(context_);
      z_ = StateStep(context_, rule_, layer, z_).after;
    }
  }

  // Layers are loaded a step before they are wanted. Where registers hold two steps, the states are
  // a step ahead of what is made beside them, so that neither waits for the other; the one behind
  // the last is nobody's.
  template <int kRowStride>
  DEEPPCR_DEVICE void RunBeside(LayerRows<W, kRowStride> layers, int32_t steps) {
    constexpr int kAhead = W < kWarpSize ? 1 : 0;
    LayerRows<W, kRowStride> beside = layers;
    RowPairs<W> next_pairs = {};
    if constexpr (kBeside == Beside::kTangents) {
      beside.Pairs(context_, next_pairs);
      tangents_.SetIdentity(context_);
    }
    LayerPart<W> next_layer = layers.Part(context_);
    const auto make = [&](int32_t k, float z) {
      const LayerPart<W> layer = next_layer;
      if (k + 1 < steps) layers.Advance(1);
      next_layer = layers.Part(context_);
      return StateStep(context_, rule_, layer, z);
    };
    StateStep ahead;
    if constexpr (kAhead == 1) ahead = make(0, z_);
    for (int32_t k = 0; k < steps; ++k) {
      const StateStep made = ahead;
      const RowPairs<W> pairs = next_pairs;
      if (k + 1 < steps) beside.Advance(1);
      if constexpr (kBeside == Beside::kTangents) beside.Pairs(context_, next_pairs);
      ahead = make(k + kAhead, kAhead == 1 ? made.after : z_);
      const StateStep& step = kAhead == 1 ? made : ahead;
      const float slope = SlopeAt(rule_, step.pre_activation);
      if constexpr (kBeside == Beside::kTangents) {
        Tangents(context_, pairs, slope, rule_.residual, tangents_);
      } else {
        Probes(step, k, slope);
      }
      z_ = step.after;
    }
    if constexpr (kBeside == Beside::kTangents) tangents_.Store(context_, matrix_);
  }

  // Size that the rounding of a step is proportional to (kernels/cpu/kernels_impl.h has the formula
  // and its reasons), from the new state, the branch, and the terms of the dot products with the
  // bias. `slope` is the slope at the pre-activation, `slopes` receives the slopes near it, and
  // `product` is the largest product of a probe.
  DEEPPCR_DEVICE float RoundingSize(const StateStep& step, float product, float slope,
                                    SlopeRange* slopes) {
    const float largest =
        context_.LargestOfWarp(fmaxf(fmaxf(fabsf(step.after), fabsf(step.before)), 0.0F));
    const float scale = PowerOfTwoBelow(largest), inverse = InverseOfPower(scale);
    const float before = step.before * inverse, after = step.after * inverse;
    const float bias = step.layer.bias * inverse;
    const float sum = SquaresOfTerms<W>(context_, step.layer, step.row, inverse);
    const float squared = fmaf(bias, bias, sum) * SquaredRoundingOfSum(rule_.state_dim);
    const float length = Context::ApproximateRoot(fminf(squared, kLargestFloat));
    *slopes = SlopesNear(rule_, step.pre_activation, ReachOf(length * scale, product), slope);
    const float terms = slopes->Largest() * length;
    const float branch = rule_.residual ? after - before : 0.0F;
    return Context::ApproximateRoot(fmaf(after, after, fmaf(branch, branch, terms * terms))) *
           scale;
  }

  // E <- J E + rounding of the step.
  DEEPPCR_DEVICE void Probes(const StateStep& step, int32_t k, float slope) {
    float products[kNumProbes], largest = 0.0F;
    MultiplyAll<W>(context_, step.layer, probes_, products);
    DEEPPCR_UNROLL
    for (int v = 0; v < kNumProbes; ++v) largest = fmaxf(largest, fabsf(products[v]));
    SlopeRange slopes;
    const float size = RoundingSize(step, largest, slope, &slopes);
    DEEPPCR_UNROLL
    for (int v = 0; v < kNumProbes; ++v)
      probes_[v] = slopes.Carry(products[v], rule_.residual ? probes_[v] : 0.0F) +
                   RoundingSource(size, v, row_, signs_ + k);
  }

  Context& context_;
  const Rule& rule_;
  float* const matrix_;
  const int row_;
  const int64_t signs_;
  float z_;
  float probes_[kNumProbes] = {};
  TileMatrix<W> tangents_;
};

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_STACK_PROPAGATION_H_
