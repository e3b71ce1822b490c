// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_CUDA_BACKEND_H_
#define DEEPPCR_KERNELS_CUDA_CUDA_BACKEND_H_

#include <memory>

#include "kernels/backend/backend.h"
#include "kernels/cuda/runtime/device.h"

namespace deeppcr::cuda {

// Solvers on a GPU, or on a device that stands in for one.
std::unique_ptr<Backend> NewCudaBackend(std::unique_ptr<Device> device);

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_CUDA_BACKEND_H_
