// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_MATH_DENSE_CHAIN_KERNEL_H_
#define DEEPPCR_KERNELS_CUDA_MATH_DENSE_CHAIN_KERNEL_H_

// Dense layers before and after the recurrence, a block of threads for each sample. On request the
// outputs come with their amplification of an error of the inputs: the largest row sum of the
// absolute Jacobian, its columns pushed through in forward mode, a few at a time. The value is
// summed in double: a mean folded into a layer cancels there, and no certificate sees it.

#include <math.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/math/activation.h"
#include "kernels/cuda/math/layer_norm.h"
#include "kernels/cuda/runtime/device_code.h"
#include "kernels/cuda/tuning.h"

namespace deeppcr::cuda {

// y = act(W x + b).
struct DenseView {
  const float* weights;  // [rows, cols], row-major
  const float* biases;   // [rows]
  int32_t rows, cols;
  Activation activation;
};

// Pointers are to device memory.
struct DenseChainArgs {
  const DenseView* layers;  // in order; the first one takes input_dim values
  int32_t num_layers;       // may be 0: the outputs are the inputs
  int32_t input_dim;
  int32_t output_dim;
  int32_t widest;        // floats of the widest vector on the way
  const float* inputs;   // [n, input_stride]
  int64_t input_stride;  // >= input_dim
  float* outputs;        // [n, output_stride], zeros beyond output_dim
  int64_t output_stride;
  float* input_copies;   // [n, copied_dim], or null
  int64_t copied_dim;    // in [input_dim, input_stride]
  float* amplification;  // [n]; infinite for a NaN; or null
  float* scratch;        // [n, DenseChainFloats(widest)], or null: shared memory
};

// Columns that go through the layers together.
inline constexpr int kChainColumns = 1 + kChainTangents;

// Floats of two vectors of all columns, and of the row sums.
constexpr int64_t DenseChainFloats(int64_t widest) { return (2 * kChainColumns + 1) * widest; }

// The barrier calls of the kernel.
enum DenseChainSite : int { kAfterInputs, kAfterLayer, kAfterOutputs, kNumDenseChainSites };

template <class Context>
class DenseChain {
 public:
  DEEPPCR_DEVICE DenseChain(Context& context, const DenseChainArgs& args)
      : context_(context),
        args_(args),
        sample_(context.cluster()),
        in_(args.scratch == nullptr ? reinterpret_cast<float*>(context.shared())
                                    : args.scratch + sample_ * DenseChainFloats(args.widest)),
        out_(in_ + kChainColumns * args.widest),
        row_sums_(out_ + kChainColumns * args.widest) {}

  DEEPPCR_DEVICE void Run() {
    const bool amplified = args_.amplification != nullptr;
    const int32_t end = amplified ? args_.input_dim : 1;
    for (int32_t first = 0; first < end; first += kChainTangents) {
      const int columns = amplified ? kChainColumns : 1;
      PlaceInputs(first, columns);
      for (int32_t i = 0; i < args_.num_layers; ++i) Apply(args_.layers[i], columns);
      if (first == 0) WriteOutputs();
      if (amplified) AddRowSums(first == 0);
      context_.SyncBlock(kAfterOutputs);  // the next columns replace these
    }
    if (amplified && context_.warp() == 0) WriteAmplification();
  }

 private:
  // Places the input, then unit vectors first, first + 1, ...; zeros where there are no more.
  DEEPPCR_DEVICE void PlaceInputs(int32_t first, int columns) {
    const float* inputs = args_.inputs + sample_ * args_.input_stride;
    for (int32_t i = context_.thread(); i < args_.input_dim; i += context_.num_threads()) {
      in_[i] = inputs[i];
      for (int c = 1; c < columns; ++c)
        in_[c * args_.widest + i] = i == first + c - 1 ? 1.0F : 0.0F;
    }
    if (first == 0 && args_.input_copies != nullptr) {
      for (int64_t i = context_.thread(); i < args_.copied_dim; i += context_.num_threads())
        args_.input_copies[sample_ * args_.copied_dim + i] = inputs[i];
    }
    context_.SyncBlock(kAfterInputs);
  }

  // Applies a layer, a warp a row.
  DEEPPCR_DEVICE void Apply(const DenseView& layer, int columns) {
    for (int32_t row = context_.warp(); row < layer.rows; row += context_.num_threads() / kWarpSize)
      columns == 1 ? Row<1>(layer, row) : Row<kChainColumns>(layer, row);
    context_.SyncBlock(kAfterLayer);
    float* const next = out_;
    out_ = in_;
    in_ = next;
  }

  template <int kColumns>
  DEEPPCR_DEVICE void Row(const DenseView& layer, int32_t row) {
    const float* weights = layer.weights + int64_t{row} * layer.cols;
    double value = 0;
    float sums[kColumns] = {};
    for (int32_t k = context_.lane(); k < layer.cols; k += kWarpSize) {
      const float w = weights[k];
      value = fma(double{w}, double{in_[k]}, value);
      DEEPPCR_UNROLL
      for (int c = 1; c < kColumns; ++c) sums[c] = fmaf(w, in_[c * args_.widest + k], sums[c]);
    }
    value = SumOfWarp(context_, value);
    DEEPPCR_UNROLL
    for (int c = 1; c < kColumns; ++c) sums[c] = SumOfWarp(context_, sums[c]);
    if (context_.lane() != 0) return;
    const auto a = static_cast<float>(value + double{layer.biases[row]});
    out_[row] = Activate(layer.activation, a);
    if constexpr (kColumns > 1) {
      const float slope = Differentiate(layer.activation, a);
      DEEPPCR_UNROLL
      for (int c = 1; c < kColumns; ++c) out_[c * args_.widest + row] = slope * sums[c];
    }
  }

  DEEPPCR_DEVICE void WriteOutputs() const {
    float* outputs = args_.outputs + sample_ * args_.output_stride;
    for (int64_t i = context_.thread(); i < args_.output_stride; i += context_.num_threads())
      outputs[i] = i < args_.output_dim ? in_[i] : 0.0F;
  }

  DEEPPCR_DEVICE void AddRowSums(bool fresh) {
    for (int32_t i = context_.thread(); i < args_.output_dim; i += context_.num_threads()) {
      float sum = fresh ? 0.0F : row_sums_[i];
      for (int c = 1; c < kChainColumns; ++c) sum += fabsf(in_[c * args_.widest + i]);
      row_sums_[i] = sum;
    }
  }

  DEEPPCR_DEVICE void WriteAmplification() {
    float largest = 0.0F;
    for (int32_t i = context_.lane(); i < args_.output_dim; i += kWarpSize)
      largest = fmaxf(largest, row_sums_[i] != row_sums_[i] ? INFINITY : row_sums_[i]);
    DEEPPCR_UNROLL
    for (int mask = 1; mask < kWarpSize; mask *= 2)
      largest = fmaxf(largest, context_.ShuffleXor(largest, mask));
    if (context_.lane() == 0) args_.amplification[sample_] = largest;
  }

  Context& context_;
  const DenseChainArgs& args_;
  const int64_t sample_;
  float* in_;   // [kChainColumns, widest]: the value, then tangents
  float* out_;  // [kChainColumns, widest]
  float* const row_sums_;
};

// Body of a launch of one block per sample, with DenseChainFloats(widest) floats of shared memory
// where there is no scratch.
template <class Context>
DEEPPCR_DEVICE void ApplyDenseChain(Context& context, const DenseChainArgs& args) {
  DenseChain<Context>(context, args).Run();
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_MATH_DENSE_CHAIN_KERNEL_H_
