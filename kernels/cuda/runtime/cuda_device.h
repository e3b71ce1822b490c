// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_RUNTIME_CUDA_DEVICE_H_
#define DEEPPCR_KERNELS_CUDA_RUNTIME_CUDA_DEVICE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda/runtime/device.h"

namespace deeppcr::cuda {

// The GPU of this index, after a kernel of this build has run on it and answered. Errors:
// kUnavailable, and why.
absl::StatusOr<std::unique_ptr<Device>> OpenCudaDevice(int index);

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_RUNTIME_CUDA_DEVICE_H_
