// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_MATH_DEVICE_PANELS_H_
#define DEEPPCR_KERNELS_CUDA_MATH_DEVICE_PANELS_H_

#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "kernels/cuda/math/panel_layer.h"
#include "kernels/cuda/runtime/device_buffer.h"

namespace deeppcr::cuda {

// Layers of one shape in a device's memory, packed for ForRows.
class DevicePanels {
 public:
  // [layers, rows, cols] and [layers, rows] (or empty: zeros), padded to padded_rows and
  // padded_cols, with `behind` layers of zeros behind them.
  static absl::StatusOr<DevicePanels> Upload(Device& device, int64_t layers, int64_t rows,
                                             int64_t cols, int64_t padded_rows, int64_t padded_cols,
                                             std::span<const float> weights,
                                             std::span<const float> biases, int64_t behind = 0);
  // The first layer; the others are its PanelLayer::Next.
  const PanelLayer& layer() const { return first_; }
  int64_t memory_bytes() const { return weights_.bytes() + biases_.bytes() + spreads_.bytes(); }

 private:
  PanelLayer first_ = {};
  DeviceBuffer<float> weights_, biases_, spreads_;
};

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_MATH_DEVICE_PANELS_H_
