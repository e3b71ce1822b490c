// SPDX-License-Identifier: Apache-2.0
// What the cuda backend says where it cannot go on, on a device that fails when it is told to.
#include <gtest/gtest.h>

#include "kernels/cuda/cuda_backend.h"
#include "tests/testing/expect_error.h"
#include "tests/testing/simt/simt_device.h"
#include "tests/testing/solver_rig.h"
#include "tests/testing/systems.h"

namespace deeppcr {
namespace {

using testing::OptionsFor;
using testing::RandomSystem;
using testing::SolverRig;
using testing::simt::NewSimtDevice;

TEST(CudaErrorsTest, ALostDeviceIsAnErrorAndNoAnswer) {
  const RandomSystem system({.num_steps = 20, .state_dim = 4});
  for (const char* solver : {"sequential", "newton"}) {
    const SolverRig rig(cuda::NewCudaBackend(NewSimtDevice({.fail_after = 1})), system.spec());
    EXPECT_TRUE(rig.Solve(OptionsFor(solver, 20, 4, 1e-4), system.Inputs(1, 5)).reports.empty());
  }
}

TEST(CudaErrorsTest, SaysWhatItCannotTake) {
  const auto refusal = [](const SystemSpec& spec, const testing::simt::DeviceOptions& options,
                          const PackingLimits& limits) {
    const auto backend = cuda::NewCudaBackend(NewSimtDevice(options));
    return backend->NewSystem(spec, limits).status();
  };
  const RandomSystem stack({.num_steps = 20, .state_dim = 4}), wide({.state_dim = 257});
  testing::ExpectError(refusal(stack.spec(), {.memory_bytes = 1000}, {}),
                       absl::StatusCode::kResourceExhausted, "bytes wanted, 1000 of 1000 free");
  testing::ExpectError(refusal(stack.spec(), {}, {.max_bytes = 1000}),
                       absl::StatusCode::kResourceExhausted, "1000 are left of those allowed");
  testing::ExpectError(refusal(wide.spec(), {}, {}), absl::StatusCode::kUnimplemented,
                       "takes 1 .. 256, got 257; --backend cpu");
}

}  // namespace
}  // namespace deeppcr
