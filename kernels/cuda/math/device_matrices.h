// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_MATH_DEVICE_MATRICES_H_
#define DEEPPCR_KERNELS_CUDA_MATH_DEVICE_MATRICES_H_

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/runtime/device_buffer.h"

namespace deeppcr::cuda {

// Layers of one shape in a device's memory, row-major, for a LayerGemmArgs.
class DeviceMatrices {
 public:
  // [layers, rows, cols], padded with zeros to padded_rows and padded_cols.
  static absl::StatusOr<DeviceMatrices> Upload(Device& device, int64_t layers, int64_t rows,
                                               int64_t cols, int64_t padded_rows,
                                               int64_t padded_cols,
                                               std::span<const float> weights) {
    DeviceMatrices matrices;
    matrices.floats_ = padded_rows * padded_cols;
    std::vector<float> padded(layers * matrices.floats_);
    for (int64_t l = 0; l < layers; ++l) {
      for (int64_t i = 0; i < rows; ++i)
        std::copy_n(&weights[(l * rows + i) * cols], cols,
                    &padded[l * matrices.floats_ + i * padded_cols]);
    }
    DEEPPCR_ASSIGN_OR_RETURN(matrices.weights_, DeviceBuffer<float>::Of(device, padded));
    return matrices;
  }
  const float* layer(int64_t i) const { return weights_.data() + i * floats_; }
  int64_t memory_bytes() const { return weights_.bytes(); }

 private:
  int64_t floats_ = 0;  // floats of a layer
  DeviceBuffer<float> weights_;
};

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_MATH_DEVICE_MATRICES_H_
