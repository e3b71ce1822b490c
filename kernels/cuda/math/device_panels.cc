// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/math/device_panels.h"

#include <vector>

#include "kernels/backend/common.h"

namespace deeppcr::cuda {

absl::StatusOr<DevicePanels> DevicePanels::Upload(Device& device, int64_t layers, int64_t rows,
                                                  int64_t cols, int64_t padded_rows,
                                                  int64_t padded_cols,
                                                  std::span<const float> weights,
                                                  std::span<const float> biases, int64_t behind) {
  const int64_t floats = padded_rows * padded_cols, all = layers + behind;
  std::vector<float> packed(all * floats), bias(all * padded_rows), spreads(bias.size());
  for (int64_t l = 0; l < layers; ++l) {
    for (int64_t i = 0; i < rows; ++i) {
      double squares = 0;
      for (int64_t k = 0; k < cols; ++k) {
        const float w = weights[(l * rows + i) * cols + k];
        packed[l * floats + PanelPlace(padded_cols, i, k)] = w;
        squares += double{w} * w;
      }
      spreads[l * padded_rows + i] = RoundingSpread(squares, cols);
      if (!biases.empty()) bias[l * padded_rows + i] = biases[l * rows + i];
    }
  }
  DevicePanels panels;
  DEEPPCR_ASSIGN_OR_RETURN(panels.weights_, DeviceBuffer<float>::Of(device, packed));
  DEEPPCR_ASSIGN_OR_RETURN(panels.biases_, DeviceBuffer<float>::Of(device, bias));
  DEEPPCR_ASSIGN_OR_RETURN(panels.spreads_, DeviceBuffer<float>::Of(device, spreads));
  panels.first_ = {.weights = panels.weights_.data(),
                   .bias = panels.biases_.data(),
                   .spreads = panels.spreads_.data(),
                   .rows = static_cast<int32_t>(padded_rows),
                   .cols = static_cast<int32_t>(padded_cols)};
  return panels;
}

}  // namespace deeppcr::cuda
