// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_RUNTIME_CUDA_COMPILER_H_
#define DEEPPCR_KERNELS_CUDA_RUNTIME_CUDA_COMPILER_H_

#include <atomic>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/cuda/runtime/device.h"
#include "kernels/cuda/runtime/probe.h"

namespace deeppcr::cuda {

// NVRTC, for the device of this number. `lost` outlives the compiler and its code, and says that
// work on the device did not end: nothing waits for it then. Errors: kUnimplemented where programs
// are interpreted, and why.
absl::StatusOr<std::unique_ptr<DeviceCompiler>> NewCudaCompiler(int device, const DeviceInfo& info,
                                                                const std::atomic<bool>& lost);

// Part of Device::versions: the compiler of another toolkit than ours may give other bits than the
// kernels that interpret. Empty: it is ours, or there is none.
std::string OtherNvrtc();

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_RUNTIME_CUDA_COMPILER_H_
