// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CPU_PACKED_DENSE_H_
#define DEEPPCR_KERNELS_CPU_PACKED_DENSE_H_

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend/backend.h"
#include "kernels/base/aligned_buffer.h"
#include "kernels/cpu/kernels.h"
#include "kernels/problem/spec.h"

namespace deeppcr::cpu {

// Padded width of a vector: 4, 8, 16, 32, 64 or the next multiple of 32.
int64_t PaddedWidth(int64_t dim);

// A dense layer packed column by column: weights [cols, width(rows)], bias [width(rows)].
struct PackedDense {
  int64_t rows = 0;  // 0: the identity
  int64_t cols = 0;
  int64_t width = 0;
  AlignedBuffer<float> weights, bias;
  Activation activation = Activation::kIdentity;
  double row_sum = 0;  // largest sum of absolute weights in a row: the max-norm of the matrix
  Kernels kernels = {};

  // out [width] = act(W in + b), summed in double: a mean folded into an input layer cancels there,
  // and no certificate sees it.
  void Apply(const float* in, float* out) const;
  // The same without the activation.
  void PreActivations(const float* in, float* out) const;
  int64_t memory_bytes() const {
    return (weights.size() + bias.size()) * static_cast<int64_t>(sizeof(float));
  }
};

// Puts the weights of a spec of the same shape in the places of those that are packed.
void RepackDense(const DenseSpec& spec, PackedDense* packed);

// Counts them in beside `beside` bytes. Errors: those of CheckPackedBytes; kResourceExhausted with
// the bytes that could not be had.
absl::StatusOr<PackedDense> PackDense(const DenseSpec& spec, Kernels (*kernels)(int64_t width),
                                      const PackingLimits& limits, int64_t beside);

// Of layers one behind the other and the vector of `dim` elements that enters them: floats of the
// widest padded vector, and of all layers' results together.
int64_t WidestOf(std::span<const PackedDense> layers, int64_t dim);
int64_t SumOfWidths(std::span<const PackedDense> layers);

// Row-major [rows, cols] to columns of `width` floats.
void PackColumns(std::span<const float> matrix, int64_t rows, int64_t cols, int64_t width,
                 float* to);

absl::Status CheckAllocated(bool ok, int64_t floats);
// CheckPackedBytes of so many floats.
absl::Status CheckPackedFloats(int64_t floats, const PackingLimits& limits, int64_t beside = 0);

// All ones in the first `dim` of `width` lanes.
AlignedBuffer<float> LaneMask(int64_t dim, int64_t width);
// Seeds [kNumProbes, width] for the signs of the rounding probes, the same for every model.
AlignedBuffer<uint32_t> ProbeSeeds(int64_t width);

}  // namespace deeppcr::cpu

#endif  // DEEPPCR_KERNELS_CPU_PACKED_DENSE_H_
