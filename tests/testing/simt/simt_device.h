// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_TESTING_SIMT_SIMT_DEVICE_H_
#define DEEPPCR_TESTS_TESTING_SIMT_SIMT_DEVICE_H_

#include <cstdint>
#include <memory>

#include "kernels/cuda/runtime/device.h"
#include "tests/testing/simt/executor.h"

namespace deeppcr::testing::simt {

// Options of a GPU that is the SIMT executor: launches run at once, on the calling thread. Device
// memory is full of `fill`, which is NaN, before the first store and has exactly the size that was
// asked for.
struct DeviceOptions {
  cuda::LaunchLimits limits = {.multiprocessors = 8,
                               .shared_bytes = size_t{227} << 10,
                               .max_cluster_blocks = 8,
                               .max_warps = 2,
                               .grid_blocks = 8};
  Schedule schedule;
  uint64_t fill = ~uint64_t{0};
  int64_t memory_bytes = int64_t{1} << 30;  // larger requests are refused
  int fail_after = -1;                      // launches until the device is lost; -1: never lost
  // Makes kernels of programs, whose handles are functions void(Thread&, const Args&); null:
  // programs are interpreted.
  cuda::DeviceCompiler* compiler = nullptr;
};
std::unique_ptr<cuda::Device> NewSimtDevice(const DeviceOptions& options);

}  // namespace deeppcr::testing::simt

#endif  // DEEPPCR_TESTS_TESTING_SIMT_SIMT_DEVICE_H_
