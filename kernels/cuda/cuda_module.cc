// SPDX-License-Identifier: Apache-2.0
// The CUDA module: what a server loads to find out whether it can use a GPU.
#include <string>

#include "kernels/backend/module.h"
#include "kernels/base/strings.h"
#include "kernels/cuda/device.h"

namespace deeppcr::cuda {
namespace {

absl::Status CudaUnavailable(cudaError_t error) {
  return absl::UnavailableError(StrCat("CUDA: ", cudaGetErrorString(error)));
}

// Solvers for the device are not part of this version, so what it can do is to say precisely what
// it found.
absl::StatusOr<std::unique_ptr<Backend>> NewCudaBackend() {
  int count = 0;
  if (const cudaError_t error = CountDevices(&count); error != cudaSuccess)
    return CudaUnavailable(error);
  if (count == 0) return absl::UnavailableError("CUDA: the driver offers no device");
  DeviceInfo info = {};
  if (const cudaError_t error = ProbeDevice(0, &info); error != cudaSuccess)
    return CudaUnavailable(error);
  return absl::UnavailableError(StrCat("CUDA: found ", info.name, " (compute capability ",
                                       info.major, ".", info.minor,
                                       "), but this version has no solvers for GPUs"));
}

constexpr BackendModule kModule = {.version = kBackendModuleVersion, .create = &NewCudaBackend};

}  // namespace
}  // namespace deeppcr::cuda

extern "C" __attribute__((visibility("default"))) const deeppcr::BackendModule*
deeppcr_backend_module() {
  return &deeppcr::cuda::kModule;
}
