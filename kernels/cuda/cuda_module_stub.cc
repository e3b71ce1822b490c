// SPDX-License-Identifier: Apache-2.0
// Stands in for the CUDA module where no toolkit was found when the project was built.
#include "kernels/backend/module.h"

namespace deeppcr::cuda {
namespace {

absl::StatusOr<std::unique_ptr<Backend>> NewCudaBackend() {
  return absl::UnavailableError("CUDA: not compiled in (no toolkit was found when this was built)");
}

constexpr BackendModule kModule = {.version = kBackendModuleVersion, .create = &NewCudaBackend};

}  // namespace
}  // namespace deeppcr::cuda

extern "C" __attribute__((visibility("default"))) const deeppcr::BackendModule*
deeppcr_backend_module() {
  return &deeppcr::cuda::kModule;
}
