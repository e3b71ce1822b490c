// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/gpu_under_test.h"

#include <string>
#include <utility>

#include "kernels/cuda/cuda_backend.h"

namespace deeppcr::testing {
namespace {

// A device that compiles nothing: most tests would wait for a compiler most of the time.
class InterpretingDevice final : public cuda::Device {
 public:
  InterpretingDevice(std::unique_ptr<cuda::Device> device, bool clusters)
      : device_(std::move(device)), limits_(device_->limits()) {
    if (!clusters) limits_.max_cluster_blocks = 0;
  }
  std::string name() const override { return device_->name(); }
  std::string versions() const override { return device_->versions(); }
  const cuda::LaunchLimits& limits() const override { return limits_; }
  absl::StatusOr<void*> Allocate(cuda::MemoryKind kind, size_t bytes) override {
    return device_->Allocate(kind, bytes);
  }
  void Free(cuda::MemoryKind kind, void* memory) override { device_->Free(kind, memory); }
  absl::Status Upload(void* to, const void* from, size_t bytes) override {
    return device_->Upload(to, from, bytes);
  }
  absl::StatusOr<std::unique_ptr<cuda::Stream>> NewStream() override {
    return device_->NewStream();
  }

 private:
  const std::unique_ptr<cuda::Device> device_;
  cuda::LaunchLimits limits_;
};

}  // namespace

std::unique_ptr<Backend> NewBackendUnderTest() {
  return cuda::NewCudaBackend(std::make_unique<InterpretingDevice>(NewDeviceUnderTest(), true));
}
std::unique_ptr<Backend> NewBackendWithoutClusters() {
  return cuda::NewCudaBackend(std::make_unique<InterpretingDevice>(NewDeviceUnderTest(), false));
}

}  // namespace deeppcr::testing
