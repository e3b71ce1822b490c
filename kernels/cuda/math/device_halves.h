// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_MATH_DEVICE_HALVES_H_
#define DEEPPCR_KERNELS_CUDA_MATH_DEVICE_HALVES_H_

#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "kernels/cuda/math/half_layer.h"
#include "kernels/cuda/runtime/device_buffer.h"

namespace deeppcr::cuda {

// Layers of one shape in a device's memory, as half-precision numbers packed for MultiplyHalves.
class DeviceHalves {
 public:
  // [layers, rows, cols], padded to padded_rows and padded_cols, multiples of kHalfRows.
  static absl::StatusOr<DeviceHalves> Upload(Device& device, int64_t layers, int64_t rows,
                                             int64_t cols, int64_t padded_rows, int64_t padded_cols,
                                             std::span<const float> weights);
  // The first layer; the others are its HalfLayer::Next.
  const HalfLayer& layer() const { return first_; }
  int64_t memory_bytes() const { return weights_.bytes() + scales_.bytes(); }

 private:
  HalfLayer first_ = {};
  DeviceBuffer<uint16_t> weights_;
  DeviceBuffer<float> scales_;
};

// The half-precision number next to x, of two the even one; infinite from 65520 on.
uint16_t NearestHalf(float x);

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_MATH_DEVICE_HALVES_H_
