// SPDX-License-Identifier: Apache-2.0
// The real device on the fake CUDA runtime: a kernel that does not end, and errors of others.
#include "kernels/cuda/runtime/cuda_device.h"

#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "kernels/backend/registry.h"
#include "kernels/base/thread_pool.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/runtime/device_buffer.h"
#include "kernels/loaded_model.h"
#include "tests/testing/expect_error.h"
#include "tests/testing/safetensors_writer.h"
#include "tests/testing/simt/fake_runtime.h"
#include "tests/testing/solver_rig.h"
#include "tests/testing/systems.h"

namespace deeppcr::testing {
namespace {

using simt::HangAfter;

constexpr int64_t kSteps = 16, kWidth = 4;
constexpr char kConfig[] =
    R"({"model_type":"resnet","input_dim":4,"output_dim":4,"state_dim":4,"num_layers":16,)"
    R"("activation":"tanh","max_batch_size":2})";

class CudaDeviceTest : public ::testing::Test {
 protected:
  CudaDeviceTest() { HangAfter(-1); }
  ~CudaDeviceTest() override { HangAfter(-1); }
  static std::unique_ptr<cuda::Device> Open() {
    return *cuda::OpenCudaDevice(0, {.least = std::chrono::milliseconds(20), .factor = 0});
  }
};

// The fake runtime ends the program if any call, of destructors too, waits for the kernel.
TEST_F(CudaDeviceTest, AKernelThatDoesNotEndIsGivenUp) {
  const RandomSystem system({.num_steps = 20, .state_dim = 4});
  for (const int launches : {0, 1, 2}) {
    HangAfter(-1);
    const SolverRig rig(cuda::NewCudaBackend(Open()), system.spec());
    HangAfter(launches);
    EXPECT_TRUE(rig.Solve(OptionsFor("newton", 20, 4, 1e-4), system.Inputs(1, 5)).reports.empty());
    EXPECT_TRUE(rig.Solve({.solver = "sequential"}, system.Inputs(1, 5)).reports.empty());
  }
}

TEST_F(CudaDeviceTest, ALostDeviceTakesNoMoreWork) {
  const std::unique_ptr<cuda::Device> device = Open();
  const auto buffer = cuda::DeviceBuffer<float>::New(*device, cuda::MemoryKind::kDevice, 8);
  const std::unique_ptr<cuda::Stream> hung = *device->NewStream(), other = *device->NewStream();
  HangAfter(0);

  hung->Launch(cuda::NoiseArgs{});
  hung->Wait([] {});

  ExpectError(hung->status(), absl::StatusCode::kUnavailable, "not done after 0.02 s");
  EXPECT_TRUE(other->status().ok());
  other->Launch(cuda::NoiseArgs{});
  other->Wait([] {});
  ExpectError(other->status(), absl::StatusCode::kUnavailable, "the device is lost");
  ExpectError(device->Allocate(cuda::MemoryKind::kMapped, 8).status(),
              absl::StatusCode::kUnavailable, "the device is lost");
  ExpectError(device->NewStream().status(), absl::StatusCode::kUnavailable, "the device is lost");
  const float value = 1;
  ExpectError(device->Upload(buffer->data(), &value, sizeof(value)), absl::StatusCode::kUnavailable,
              "the device is lost");
}

// Wherever in a load the device hangs: the next backend takes the model and says why, and the
// server is not asked to end.
TEST_F(CudaDeviceTest, AModelWhoseLoadHangsGoesToTheNextBackend) {
  const TemporaryDirectory folder;
  ASSERT_TRUE(
      WriteModel(folder.path(), kConfig,
                 {{"layers.weight",
                   {kSteps, kWidth, kWidth},
                   std::vector<float>(kSteps * kWidth * kWidth, 0.1F)},
                  {"layers.bias", {kSteps, kWidth}, std::vector<float>(kSteps * kWidth, 0.2F)}})
          .ok());
  for (const int launches : {0, 40, 400}) {
    HangAfter(-1);
    std::vector<SelectedBackend> backends;
    backends.push_back({cuda::NewCudaBackend(Open()), {2e12, 65e-9}});
    backends.back().oracles.push_back(*cpu::NewCpuBackend());
    backends.push_back({*cpu::NewCpuBackend(), {25e9, 14e-9}});
    bool ended = false;
    EngineOptions options;
    options.device_failed = [&](const absl::Status&) { ended = true; };
    ThreadPool pool(1);
    HangAfter(launches);

    const auto model = PrepareModel(*ReadModel(folder.path(), {}),
                                    {.backends = backends, .pool = &pool, .options = &options});

    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_EQ((*model)->info().backend, "cpu");
    EXPECT_EQ((*model)->info().backend_choice, BackendChoice::kSelfCheck);
    EXPECT_THAT((*model)->info().backend_reason,
                ::testing::HasSubstr("the device of the cuda backend failed: CUDA: "));
    EXPECT_FALSE(ended);
  }
}

// An error that another call has left on this thread is not the stream's.
TEST_F(CudaDeviceTest, AnErrorOfAnotherCallIsNotReported) {
  const std::unique_ptr<cuda::Device> device = Open();
  const std::unique_ptr<cuda::Stream> stream = *device->NewStream();
  void* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, size_t{1} << 40), cudaErrorMemoryAllocation);

  stream->Launch(cuda::NoiseArgs{});
  stream->Wait([] {});

  EXPECT_TRUE(stream->status().ok()) << stream->status();
}

TEST_F(CudaDeviceTest, LoadsCompiledKernelsAndUnloadsThem) {
  EXPECT_TRUE(absl::IsUnimplemented(Open()->compiler().status()));
  simt::FindNvrtc(true);
  const std::unique_ptr<cuda::Device> device = Open();
  simt::FindNvrtc(false);
  ASSERT_TRUE(device->compiler().ok());
  cuda::DeviceCompiler* const compiler = *device->compiler();
  EXPECT_THAT(std::string(compiler->name()), ::testing::StartsWith("nvrtc 13.0 sm_"));
  const auto code = compiler->Compile("a source", nullptr);
  ASSERT_TRUE(code.ok()) << code.status();
  auto loaded = compiler->Load(*code);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const cuda::ProgramKernels& kernels = (*loaded)->kernels();
  EXPECT_NE(kernels.sequential, nullptr);
  EXPECT_NE(kernels.propagation, nullptr);
  EXPECT_NE(kernels.propagation, kernels.sequential);
  EXPECT_EQ(kernels.coarse, nullptr);
  EXPECT_EQ(simt::NumLibraries(), 1);
  loaded = std::shared_ptr<const cuda::DeviceCode>();
  EXPECT_EQ(simt::NumLibraries(), 0);
  // Code of another device, or none.
  EXPECT_FALSE(compiler->Load("no code").ok());
  // The errors are not those of the next launch.
  const std::unique_ptr<cuda::Stream> stream = *device->NewStream();
  stream->Launch(cuda::NoiseArgs{});
  stream->Wait([] {});
  EXPECT_TRUE(stream->status().ok()) << stream->status();
}

// Unloading would wait for the kernel that does not end.
TEST_F(CudaDeviceTest, ALostDeviceKeepsItsCode) {
  simt::FindNvrtc(true);
  const std::unique_ptr<cuda::Device> device = Open();
  simt::FindNvrtc(false);
  cuda::DeviceCompiler* const compiler = *device->compiler();
  auto loaded = compiler->Load(*compiler->Compile("a source", nullptr));
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const int libraries = simt::NumLibraries();
  const std::unique_ptr<cuda::Stream> stream = *device->NewStream();
  HangAfter(0);
  stream->Launch(cuda::NoiseArgs{});
  stream->Wait([] {});
  EXPECT_FALSE(stream->status().ok());
  loaded = std::shared_ptr<const cuda::DeviceCode>();
  EXPECT_EQ(simt::NumLibraries(), libraries);
  EXPECT_TRUE(absl::IsUnavailable(compiler->Load(simt::kFakeCode).status()));
}

}  // namespace
}  // namespace deeppcr::testing
