// SPDX-License-Identifier: Apache-2.0
// The errors that the cuda backend reports when it cannot go on, on a device that fails on demand.
#include <gtest/gtest.h>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/program/denoiser_program.h"
#include "tests/testing/expect_error.h"
#include "tests/testing/random_diffusion.h"
#include "tests/testing/simt/simt_device.h"
#include "tests/testing/solver_rig.h"
#include "tests/testing/systems.h"

namespace deeppcr::testing {
namespace {

using simt::NewSimtDevice;

// The loop runs on the device for the narrow system, and on the host for the wide one.
TEST(CudaErrorsTest, ALostDeviceIsAnErrorAndNoAnswer) {
  for (const int64_t dim : {4, 40}) {
    const RandomSystem system({.num_steps = 20, .state_dim = dim});
    for (const char* solver : {"sequential", "newton"}) {
      for (const int launches : {0, 1, 2, 7}) {
        const SolverRig rig(cuda::NewCudaBackend(NewSimtDevice({.fail_after = launches})),
                            system.spec());
        const bool lost = launches < (dim == 40 && solver[0] == 'n' ? 8 : 3);
        EXPECT_EQ(rig.Solve(OptionsFor(solver, 20, 4, 1e-4), system.Inputs(1, 5)).reports.empty(),
                  lost)
            << solver << " D " << dim << " after " << launches;
      }
    }
  }
}

// Products with whole layers are launches like others.
TEST(CudaErrorsTest, ALostDeviceIsAnErrorOfWideDenoisersToo) {
  for (const int64_t dim : {12, 40}) {
    const RandomDiffusion process({.state_dim = dim, .hidden_dim = 250, .num_steps = 3});
    for (const int launches : {3, 4, 5, 6, 7, 8, 9, 10}) {
      const SolverRig rig(cuda::NewCudaBackend(NewSimtDevice({.fail_after = launches})),
                          process.spec());
      const SampleInputs request{.num_samples = 1, .seed = 5};
      EXPECT_TRUE(rig.Solve(OptionsFor("newton", 3, 1, 1e-4), request).reports.empty())
          << "D " << dim << " after " << launches;
    }
  }
}

// A space takes no more than the bytes that SpaceBytes named.
TEST(CudaErrorsTest, SpacesFitIntoTheBytesTheyNamed) {
  const RandomSystem narrow({.num_steps = 300, .state_dim = 4}), wide({.state_dim = 40}),
      at_once({.num_steps = 300, .state_dim = 64});
  const RandomDiffusion diffusion({.state_dim = 5}), wide_diffusion({.state_dim = 40});
  const RandomDiffusion denoiser({.state_dim = 5, .hidden_dim = 250}),
      both_wide({.kind = DenoiserKind::kAdaLnMlp, .state_dim = 40, .hidden_dim = 250});
  const RandomDiffusion conditioned(AdaLnWithDecoder(30, 1)),
      carries({.state_dim = 20, .form = {.carries = true, .noise_scale = NoiseScale::kLearned}});
  const program::Program program = *program::ProgramOfDenoiser(conditioned.spec());
  const std::vector<SystemSpec> specs = {
      narrow.spec(),         wide.spec(),
      at_once.spec(),        diffusion.spec(),
      wide_diffusion.spec(), denoiser.spec(),
      both_wide.spec(),      program::WithProgram(conditioned.spec(), program),
      carries.spec()};
  for (const SystemSpec& spec : specs) {
    const auto roomy = cuda::NewCudaBackend(NewSimtDevice({}));
    const auto measured = *roomy->NewSystem(spec);
    const int64_t space = measured->SpaceBytes({});
    const auto backend =
        cuda::NewCudaBackend(NewSimtDevice({.memory_bytes = measured->memory_bytes() + space}));
    const auto system = *backend->NewSystem(spec);
    EXPECT_EQ(system->NewSpace({}).status(), absl::OkStatus()) << space;
  }
}

TEST(CudaErrorsTest, SaysWhatItCannotTake) {
  const auto refusal = [](const SystemSpec& spec, const simt::DeviceOptions& options,
                          const PackingLimits& limits) {
    const auto backend = cuda::NewCudaBackend(NewSimtDevice(options));
    return backend->NewSystem(spec, limits).status();
  };
  const RandomSystem stack({.num_steps = 20, .state_dim = 4}), wide({.state_dim = 257});
  ExpectError(refusal(stack.spec(), {.memory_bytes = 1000}, {}),
              absl::StatusCode::kResourceExhausted, "bytes wanted, 1000 of 1000 free");
  ExpectError(refusal(stack.spec(), {}, {.max_bytes = 1000}), absl::StatusCode::kResourceExhausted,
              "1000 are left of those allowed");
  ExpectError(refusal(wide.spec(), {}, {}), absl::StatusCode::kUnimplemented,
              "takes 1 .. 256, got 257; --backend cpu");
}

}  // namespace
}  // namespace deeppcr::testing
