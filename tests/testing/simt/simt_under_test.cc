// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/gpu_under_test.h"
#include "tests/testing/simt/simt_device.h"

namespace deeppcr::testing {

std::unique_ptr<cuda::Device> NewDeviceUnderTest() { return simt::NewSimtDevice({}); }
int64_t MaxStepsUnderTest() { return 40; }

}  // namespace deeppcr::testing
