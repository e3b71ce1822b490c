// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/gpu_under_test.h"

#include "kernels/cuda/cuda_backend.h"

namespace deeppcr::testing {

std::unique_ptr<Backend> NewBackendUnderTest() {
  return cuda::NewCudaBackend(NewDeviceUnderTest());
}

}  // namespace deeppcr::testing
