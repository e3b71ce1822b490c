// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_RUNTIME_CUDA_DEVICE_H_
#define DEEPPCR_KERNELS_CUDA_RUNTIME_CUDA_DEVICE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda/runtime/device.h"
#include "kernels/cuda/runtime/patience.h"

namespace deeppcr::cuda {

// The GPU of this index, after a kernel of this build has run on it and answered. Errors:
// kUnavailable, and why.
//
// A stream whose work is not done at the limit of a wait is kUnavailable, and the device is lost to
// this process: other streams fail too, nothing is allocated any more, and what there is stays
// allocated, as a kernel that hangs may still write to it, and as the calls that free memory and
// handles would wait for that kernel.
absl::StatusOr<std::unique_ptr<Device>> OpenCudaDevice(int index, const WaitLimits& limits = {});

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_RUNTIME_CUDA_DEVICE_H_
