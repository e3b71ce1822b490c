// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_STACK_BACKWARD_STEP_H_
#define DEEPPCR_KERNELS_CUDA_STACK_BACKWARD_STEP_H_

// Backward steps of a dense stack by a warp: every solver takes its gradients through this code.
// Lanes hold g and delta as they hold states in warp_step.h. Layers count from 0 here, as the rows
// of their weights do: layer l makes z_{l+1} from z_l.

#include <math.h>

#include <cstdint>

#include "kernels/cuda/math/activation.h"
#include "kernels/cuda/math/warp_matrix.h"
#include "kernels/cuda/runtime/device_code.h"
#include "kernels/cuda/stack/backward_args.h"
#include "kernels/cuda/stack/warp_step.h"
#include "kernels/cuda/tuning.h"

namespace deeppcr::cuda {

DEEPPCR_DEVICE int32_t AtLeast(int32_t least, int32_t l) { return l < least ? least : l; }
DEEPPCR_DEVICE int32_t AtMost(int32_t most, int32_t l) { return l > most ? most : l; }

template <class Context>
DEEPPCR_DEVICE float LoadConstant(Context& context, const float* from) {
  float value[1];
  context.LoadConstants(from, value);
  return value[0];
}

// Reads layers, and the states of a sample that enter them, as the lanes hold them.
template <int W, class Context>
class LayerReader {
 public:
  DEEPPCR_DEVICE LayerReader(Context& context, const BackwardArgs& args, int64_t sample)
      : context_(context),
        row_(context.lane() % W),
        dim_(args.stack.state_dim),
        rows_(args.stack.weights + row_ * W + LanePart<W>(context.lane()).first_column),
        columns_(args.stack.weights + FirstRow<W>(context.lane()) * W + row_),
        biases_(args.stack.biases + row_),
        states_(args.states + sample * (args.stack.num_steps + 1) * dim_ + row_) {}

  DEEPPCR_DEVICE LayerPart<W> Layer(int32_t l) const {
    LayerPart<W> layer;
    context_.LoadConstants(rows_ + int64_t{l} * W * W, layer.weights);
    layer.bias = LoadConstant(context_, biases_ + int64_t{l} * W);
    return layer;
  }
  DEEPPCR_DEVICE float State(int32_t l) const {
    return row_ < dim_ ? LoadConstant(context_, states_ + int64_t{l} * dim_) : 0.0F;
  }
  // Loads a transposed layer: W lanes read W consecutive numbers.
  DEEPPCR_DEVICE LayerPart<W> Transposed(int32_t l) const {
    LayerPart<W> layer;
    layer.bias = 0.0F;
    DEEPPCR_UNROLL
    for (int r = 0; r < kColumnRows<W>; ++r)
      layer.weights[r] = LoadConstant(context_, columns_ + int64_t{l} * W * W + r * W);
    return layer;
  }

 private:
  Context& context_;
  const int row_;
  const int32_t dim_;
  const float* const rows_;
  const float* const columns_;
  const float* const biases_;
  const float* const states_;
};

// A chunk of layers and the states that enter them, in registers.
template <int W>
struct LayersAtStates {
  LayerPart<W> layers[kBackwardAhead<W>];
  float z[kBackwardAhead<W>];
};
// Pre-activations with the bits of the forward pass.
template <int W, class Context>
DEEPPCR_DEVICE void PreActivations(Context& context, const LayersAtStates<W>& at,
                                   float (&values)[kBackwardAhead<W>]) {
  MultiplyAll<W>(context, at.layers, at.z, values);
  DEEPPCR_UNROLL
  for (int k = 0; k < kBackwardAhead<W>; ++k) values[k] += at.layers[k].bias;
}

// Replaces pre-activations by slopes. Where the state is NaN the slope is too, though the slope of
// a relu would be 0.
template <int N>
DEEPPCR_DEVICE void Slopes(const StackView& stack, float (&values)[N]) {
  float slopes[N];
  DEEPPCR_UNROLL
  for (int k = 0; k < N; ++k) slopes[k] = values[k];
  DifferentiateAll(stack.activation, slopes);
  DEEPPCR_UNROLL
  for (int k = 0; k < N; ++k) {
    const float slope = stack.residual ? stack.scale * slopes[k] : slopes[k];
    values[k] = isnan(values[k]) ? values[k] : slope;
  }
}

// Slopes of a chunk of layers, shared among the lanes that hold the same element.
template <int W, class Context>
DEEPPCR_DEVICE void SharedSlopes(Context& context, const StackView& stack,
                                 float (&values)[kBackwardAhead<W>]) {
  constexpr int kLanes = kWarpSize / W;
  float own[kBackwardAhead<W> / kLanes];
  DEEPPCR_UNROLL
  for (int k = 0; k < kBackwardAhead<W>; ++k)
    if (k % kLanes == 0 || k % kLanes == context.lane() / W) own[k / kLanes] = values[k];
  Slopes(stack, own);
  DEEPPCR_UNROLL
  for (int k = 0; k < kBackwardAhead<W>; ++k)
    values[k] = context.Shuffle(own[k / kLanes], k % kLanes * W + context.lane() % W);
}

// Slopes of the layers [0, end) from the last to the first. No slope depends on a gradient: the
// pre-activations of one chunk of layers are computed in the shadow of the chunk before, from
// layers read in the shadow of the chunk before that.
template <int W, class Context>
class SlopesOfStates {
 public:
  DEEPPCR_DEVICE SlopesOfStates(Context& context, const BackwardArgs& args, int64_t sample,
                                int32_t end)
      : context_(context), args_(args), reader_(context, args, sample) {
    const int32_t last = end - 1;
    DEEPPCR_UNROLL
    for (int k = 0; k < kBackwardAhead<W>; ++k) Load(k, last - k);
    PreActivations<W>(context, next_, pre_activations_);
    DEEPPCR_UNROLL
    for (int k = 0; k < kBackwardAhead<W>; ++k) Load(k, last - kBackwardAhead<W> - k);
  }
  // Takes the slopes of a chunk.
  DEEPPCR_DEVICE void Take(float (&slopes)[kBackwardAhead<W>]) {
    DEEPPCR_UNROLL
    for (int k = 0; k < kBackwardAhead<W>; ++k) slopes[k] = pre_activations_[k];
    SharedSlopes<W>(context_, args_.stack, slopes);
  }
  // Product of the step back through a layer. Beside it prepares layer l, in place k of the next
  // chunk.
  DEEPPCR_DEVICE float MultiplyAndPrepare(const LayerPart<W>& transposed, float delta, int k,
                                          int32_t l) {
    const LayerPart<W> layers[] = {transposed, next_.layers[k]};
    const float x[] = {delta, next_.z[k]};
    float products[2];
    MultiplyAll<W>(context_, layers, x, products);
    pre_activations_[k] = products[1] + next_.layers[k].bias;
    Load(k, l - kBackwardAhead<W>);
    return products[0];
  }

 private:
  DEEPPCR_DEVICE void Load(int k, int32_t l) {
    next_.layers[k] = reader_.Layer(AtLeast(0, l));
    next_.z[k] = reader_.State(AtLeast(0, l));
  }

  Context& context_;
  const BackwardArgs& args_;
  const LayerReader<W, Context> reader_;
  LayersAtStates<W> next_;
  float pre_activations_[kBackwardAhead<W>];
};

// Slopes of the layers [begin, end) that lie in memory, [end - begin, W].
template <int W, class Context>
class SlopesInMemory {
 public:
  DEEPPCR_DEVICE SlopesInMemory(Context& context, const float* slopes, int32_t begin, int32_t end)
      : context_(context), slopes_(slopes + context.lane() % W), begin_(begin) {
    DEEPPCR_UNROLL
    for (int k = 0; k < kBackwardAhead<W>; ++k) Load(k, end - 1 - k);
  }
  DEEPPCR_DEVICE void Take(float (&slopes)[kBackwardAhead<W>]) const {
    DEEPPCR_UNROLL
    for (int k = 0; k < kBackwardAhead<W>; ++k) slopes[k] = next_[k];
  }
  DEEPPCR_DEVICE float MultiplyAndPrepare(const LayerPart<W>& transposed, float delta, int k,
                                          int32_t l) {
    Load(k, l);
    return Multiply<W>(context_, transposed, delta);
  }

 private:
  DEEPPCR_DEVICE void Load(int k, int32_t l) {
    next_[k] = slopes_[(AtLeast(begin_, l) - begin_) * W];
  }

  Context& context_;
  const float* const slopes_;
  const int32_t begin_;
  float next_[kBackwardAhead<W>];
};

// Backward sweep of one row, which is a column of the sample.
template <int W, class Context>
class BackwardSweep {
 public:
  DEEPPCR_DEVICE BackwardSweep(Context& context, const BackwardArgs& args, int64_t sample,
                               int64_t row)
      : context_(context),
        args_(args),
        sample_(sample),
        at_(row * W + context.lane() % W),
        element_(context.lane() % W) {}

  DEEPPCR_DEVICE float FinalGradient() const { return args_.final_gradients[at_]; }

  // A chunk of transposed layers, in registers.
  struct TransposedLayers {
    LayerPart<W> at[kBackwardAhead<W>];
  };
  // Loads the layers that Run begins with: their way here may be in the shadow of what makes g.
  DEEPPCR_DEVICE TransposedLayers LastLayers(int32_t begin, int32_t end) const {
    const LayerReader<W, Context> reader(context_, args_, sample_);
    TransposedLayers layers;
    DEEPPCR_UNROLL
    for (int k = 0; k < kBackwardAhead<W>; ++k)
      layers.at[k] = reader.Transposed(AtLeast(begin, end - 1 - k));
    return layers;
  }

  // Takes the gradient by the state behind the layers [begin, end) to the gradient by the state
  // before these layers. `last`: LastLayers of them.
  template <class Slopes>
  DEEPPCR_DEVICE float Run(int32_t begin, int32_t end, float g, const TransposedLayers& last,
                           Slopes& slopes) {
    const LayerReader<W, Context> reader(context_, args_, sample_);
    TransposedLayers chunk = last;
    LayerPart<W>(&layers)[kBackwardAhead<W>] = chunk.at;
    float slope[kBackwardAhead<W>];
    int32_t l = end - 1;
    // Whole chunks: without an exit from the middle of a chunk, the compiler moves loads and the
    // work for the next chunk to places where a step waits.
    for (; l + 1 - begin >= kBackwardAhead<W>; l -= kBackwardAhead<W>) {
      slopes.Take(slope);
      DEEPPCR_UNROLL
      for (int k = 0; k < kBackwardAhead<W>; ++k) {
        const LayerPart<W> layer = layers[k];
        layers[k] = reader.Transposed(AtLeast(begin, l - k - kBackwardAhead<W>));
        const float delta = TakeDelta(l - k, slope[k], g);
        g = Add(slopes.MultiplyAndPrepare(layer, delta, k, l - k - kBackwardAhead<W>), g);
      }
    }
    if (l < begin) return g;
    slopes.Take(slope);
    DEEPPCR_UNROLL
    for (int k = 0; k < kBackwardAhead<W>; ++k) {
      if (l - k < begin) break;
      const float delta = TakeDelta(l - k, slope[k], g);
      g = Add(Multiply<W>(context_, layers[k], delta), g);
    }
    return g;
  }

  DEEPPCR_DEVICE void WriteInitialGradient(float g) const {
    if (context_.lane() < W) args_.initial_gradients[at_] = InState() ? g : 0.0F;
  }
  // Number of steps made one after another.
  DEEPPCR_DEVICE int32_t made() const { return made_; }

 private:
  DEEPPCR_DEVICE bool InState() const { return element_ < args_.stack.state_dim; }
  DEEPPCR_DEVICE float TakeDelta(int32_t l, float slope, float g) {
    const float delta = slope * g;
    if (args_.deltas != nullptr && context_.lane() < W && InState())
      args_.deltas[(sample_ * args_.stack.num_steps + l) * args_.stack.state_dim + element_] =
          delta;
    ++made_;
    return delta;
  }
  DEEPPCR_DEVICE float Add(float product, float g) const {
    return args_.stack.residual ? product + g : product;
  }

  Context& context_;
  const BackwardArgs& args_;
  const int64_t sample_;
  const int64_t at_;   // of the lane's element, in rows of W
  const int element_;  // of the state
  int32_t made_ = 0;
};

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_STACK_BACKWARD_STEP_H_
