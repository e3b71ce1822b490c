// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_TESTING_GPU_UNDER_TEST_H_
#define DEEPPCR_TESTS_TESTING_GPU_UNDER_TEST_H_

#include <cstdint>
#include <memory>

#include "kernels/backend/backend.h"
#include "kernels/cuda/runtime/device.h"

namespace deeppcr::testing {

// The device that the tests of the cuda backend run on: the SIMT executor, or, linked with
// tests/gpu/real_gpu.cc, a GPU.
std::unique_ptr<cuda::Device> NewDeviceUnderTest();
// The cuda backend on the device under test, where it interprets step programs.
std::unique_ptr<Backend> NewBackendUnderTest();
// The cuda backend on a device without clusters, so that every pass is a row of launches.
std::unique_ptr<Backend> NewBackendWithoutClusters();
// The depth of the deepest systems to test: deeper ones are for a GPU only.
int64_t MaxStepsUnderTest();

}  // namespace deeppcr::testing

#endif  // DEEPPCR_TESTS_TESTING_GPU_UNDER_TEST_H_
