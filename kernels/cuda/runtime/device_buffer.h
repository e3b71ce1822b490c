// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_RUNTIME_DEVICE_BUFFER_H_
#define DEEPPCR_KERNELS_CUDA_RUNTIME_DEVICE_BUFFER_H_

#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/runtime/device.h"

namespace deeppcr::cuda {

// An array of `size` values in memory of a device, which must outlive the array. May be empty.
template <class T>
class DeviceBuffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  DeviceBuffer() = default;
  DeviceBuffer(DeviceBuffer&& other) noexcept { *this = std::move(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(kind_, other.kind_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~DeviceBuffer() {
    if (data_ != nullptr) device_->Free(kind_, data_);
  }

  static absl::StatusOr<DeviceBuffer> New(Device& device, MemoryKind kind, int64_t size) {
    DeviceBuffer buffer;
    if (size == 0) return buffer;
    DEEPPCR_ASSIGN_OR_RETURN(void* const data, device.Allocate(kind, size * sizeof(T)));
    buffer.device_ = &device;
    buffer.kind_ = kind;
    buffer.data_ = static_cast<T*>(data);
    buffer.size_ = size;
    return buffer;
  }
  // Buffer in the device's own memory, with these values.
  static absl::StatusOr<DeviceBuffer> Of(Device& device, std::span<const T> values) {
    DEEPPCR_ASSIGN_OR_RETURN(DeviceBuffer buffer,
                             New(device, MemoryKind::kDevice, static_cast<int64_t>(values.size())));
    if (values.empty()) return buffer;
    DEEPPCR_RETURN_IF_ERROR(device.Upload(buffer.data(), values.data(), values.size_bytes()));
    return buffer;
  }

  T* data() const { return data_; }
  int64_t size() const { return size_; }
  int64_t bytes() const { return size_ * static_cast<int64_t>(sizeof(T)); }

 private:
  Device* device_ = nullptr;
  MemoryKind kind_ = MemoryKind::kDevice;
  T* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_RUNTIME_DEVICE_BUFFER_H_
