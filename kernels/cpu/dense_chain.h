// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CPU_DENSE_CHAIN_H_
#define DEEPPCR_KERNELS_CPU_DENSE_CHAIN_H_

#include <cstdint>
#include <vector>

#include "kernels/base/aligned_buffer.h"
#include "kernels/cpu/packed_dense.h"

namespace deeppcr::cpu {

// The layers from the final state to the answer, with the memory that running them takes. Not
// thread-safe.
class DenseChain {
 public:
  // `layers` must outlive the chain; if they are empty, the answer is the state.
  DenseChain(const std::vector<PackedDense>& layers, int64_t state_dim);
  static int64_t Bytes(const std::vector<PackedDense>& layers, int64_t state_dim);
  bool ok() const { return values_.ok() && slopes_.ok() && tangents_.ok() && row_sums_.ok(); }

  void Apply(const float* z, float* outputs);
  // Largest row sum of the absolute Jacobian at z, in forward mode; infinite if a row sum is NaN.
  double Amplification(const float* z);

 private:
  void RecordSlopes(const float* z);
  void AddColumns(int64_t first, int64_t count);

  const std::vector<PackedDense>& layers_;
  const int64_t state_dim_;
  const int64_t widest_;
  AlignedBuffer<float> values_;    // [2, widest]
  AlignedBuffer<float> slopes_;    // each layer's [width]
  AlignedBuffer<float> tangents_;  // [2, columns at a time, widest]
  AlignedBuffer<double> row_sums_;
};

}  // namespace deeppcr::cpu

#endif  // DEEPPCR_KERNELS_CPU_DENSE_CHAIN_H_
