// SPDX-License-Identifier: Apache-2.0
// The CUDA module, which a server loads to find out whether it can use a GPU.
#include "kernels/backend/module.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/runtime/cuda_device.h"

namespace deeppcr::cuda {
namespace {

absl::StatusOr<std::unique_ptr<Backend>> NewBackend() {
  DEEPPCR_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, OpenCudaDevice(0));
  return NewCudaBackend(std::move(device));
}

constexpr BackendModule kModule = {.version = kBackendModuleVersion, .create = &NewBackend};

}  // namespace
}  // namespace deeppcr::cuda

extern "C" __attribute__((visibility("default"))) const deeppcr::BackendModule*
deeppcr_backend_module() {
  return &deeppcr::cuda::kModule;
}
