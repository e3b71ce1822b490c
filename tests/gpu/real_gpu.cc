// SPDX-License-Identifier: Apache-2.0
// Runs the tests of the cuda backend on a GPU. Exit status 77 if there is none.
#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "kernels/cuda/runtime/cuda_device.h"
#include "tests/testing/gpu_under_test.h"

namespace deeppcr::testing {

std::unique_ptr<cuda::Device> NewDeviceUnderTest() { return *cuda::OpenCudaDevice(0); }
int64_t MaxStepsUnderTest() { return INT64_MAX; }

}  // namespace deeppcr::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const auto device = deeppcr::cuda::OpenCudaDevice(0);
  if (!device.ok()) {
    std::printf("skipped: %s\n", std::string(device.status().message()).c_str());
    return 77;
  }
  return RUN_ALL_TESTS();
}
