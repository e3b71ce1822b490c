// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CPU_OUTER_BACKWARD_H_
#define DEEPPCR_KERNELS_CPU_OUTER_BACKWARD_H_

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/backend/backend.h"
#include "kernels/base/aligned_buffer.h"
#include "kernels/cpu/packed_dense.h"

namespace deeppcr::cpu {

// The dense layers before the first state or behind the last one, backwards, with the memory that
// this takes. Not thread-safe.
class OuterBackward {
 public:
  // `layers`, from first to last, must outlive this; if they are empty, they are the identity of
  // `dim` elements.
  OuterBackward(std::span<const PackedDense> layers, int64_t dim);
  static int64_t Bytes(std::span<const PackedDense> layers, int64_t dim);
  bool ok() const { return values_.ok() && slopes_.ok() && deltas_.ok(); }

  // Computes the slopes of all layers at an input [cols of the first layer].
  void At(const float* input);
  // The cotangent of the input from one of the result, and in delta [rows] that of the last layer's
  // pre-activations; either may be null.
  void Back(const float* result, float* input, float* delta);

 private:
  const std::span<const PackedDense> layers_;
  const int64_t dim_, widest_;
  AlignedBuffer<float> values_;  // [2, widest]
  AlignedBuffer<float> slopes_;  // each layer's [width]
  AlignedBuffer<float> deltas_;  // [2, widest]
};

// Forms g_L [m, W] of a sample from the cotangents of its outputs and of its final state, through
// the layers behind it.
void BeginOutputs(OuterBackward& decode, const SystemShape& shape, int64_t width,
                  const BackwardSample& taken, float* g);
// Gives the cotangents of the inputs of a sample, through the layers before z_0, from g_0 [m, W].
void FinishInputs(OuterBackward& encode, const SystemShape& shape, int64_t width,
                  const BackwardSample& taken, const float* g);

}  // namespace deeppcr::cpu

#endif  // DEEPPCR_KERNELS_CPU_OUTER_BACKWARD_H_
