// SPDX-License-Identifier: Apache-2.0
// Takes the place of backend_cases.cc where it is linked: the tests that go through all backends
// then see the cuda backend, on the device under test, and the reference.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/reference/reference_backend.h"
#include "tests/testing/gpu_under_test.h"
#include "tests/testing/solver_rig.h"

namespace deeppcr::testing {
namespace {

std::unique_ptr<Backend> NewCuda() { return cuda::NewCudaBackend(NewDeviceUnderTest()); }

}  // namespace

const std::vector<BackendCase>& BackendCases() {
  static const auto* cases = new std::vector<BackendCase>{
      {"cuda", &NewCuda, MaxStepsUnderTest()}, {"reference", &reference::NewReferenceBackend}};
  return *cases;
}

}  // namespace deeppcr::testing
