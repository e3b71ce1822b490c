// SPDX-License-Identifier: Apache-2.0
// Takes the place of backend_cases.cc where it is linked: the tests that go through all backends
// then see the cuda backend, on the device under test, as it is, without clusters, and with step
// programs in place of stacks, and the reference.
#include "kernels/reference/reference_backend.h"
#include "tests/testing/gpu_under_test.h"
#include "tests/testing/program_backend.h"
#include "tests/testing/solver_rig.h"

namespace deeppcr::testing {
namespace {

std::unique_ptr<Backend> NewCudaWithProgramsForStacks() {
  return WithProgramsForStacks(NewBackendUnderTest());
}

}  // namespace

std::unique_ptr<Backend> NewBackendOfUsers() { return NewBackendUnderTest(); }

const std::vector<BackendCase>& BackendCases() {
  static const auto* cases = new std::vector<BackendCase>{
      {"cuda", &NewBackendUnderTest, MaxStepsUnderTest()},
      {"cuda_passes", &NewBackendWithoutClusters, MaxStepsUnderTest()},
      {"cuda_programs", &NewCudaWithProgramsForStacks, MaxStepsUnderTest()},
      {"reference", &reference::NewReferenceBackend}};
  return *cases;
}

}  // namespace deeppcr::testing
