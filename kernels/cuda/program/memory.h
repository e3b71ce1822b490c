// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_PROGRAM_MEMORY_H_
#define DEEPPCR_KERNELS_CUDA_PROGRAM_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/math/device_panels.h"
#include "kernels/cuda/program/frame_blocks.h"
#include "kernels/cuda/runtime/device_buffer.h"

namespace deeppcr::cuda {

// What a program has in a device's memory: lists of numbers and instructions, and layers.
class ProgramMemory {
 public:
  ProgramMemory() = default;
  // `device` must outlive the result.
  explicit ProgramMemory(Device& device) : device_(&device) {}

  // Copies a list to the device. Errors of both: the device's.
  template <class T>
  absl::StatusOr<const T*> List(std::span<const T> values) {
    static_assert(std::is_trivially_copyable_v<T>);
    DEEPPCR_ASSIGN_OR_RETURN(auto buffer,
                             DeviceBuffer<std::byte>::Of(*device_, std::as_bytes(values)));
    return reinterpret_cast<const T*>(lists_.emplace_back(std::move(buffer)).data());
  }
  // Copies layers [layers, rows, cols] and their biases [layers, rows], or none. The result is the
  // first of them.
  absl::StatusOr<PanelLayer> Panels(int64_t layers, int64_t rows, int64_t cols,
                                    std::span<const float> weights, std::span<const float> biases) {
    DEEPPCR_ASSIGN_OR_RETURN(DevicePanels panels,
                             DevicePanels::Upload(*device_, layers, rows, cols, ValueWidth(rows),
                                                  ValueWidth(cols), weights, biases));
    return panels_.emplace_back(std::move(panels)).layer();
  }
  int64_t bytes() const {
    int64_t bytes = 0;
    for (const auto& list : lists_) bytes += list.bytes();
    for (const auto& panels : panels_) bytes += panels.memory_bytes();
    return bytes;
  }

 private:
  Device* device_ = nullptr;
  std::vector<DeviceBuffer<std::byte>> lists_;
  std::vector<DevicePanels> panels_;
};

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_PROGRAM_MEMORY_H_
