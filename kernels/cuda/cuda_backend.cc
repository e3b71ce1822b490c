// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/cuda_backend.h"

#include <cstdint>
#include <string>
#include <utility>
#include <variant>

#include "kernels/base/status_macros.h"
#include "kernels/cuda/cuda_space.h"
#include "kernels/cuda/stack_model.h"

namespace deeppcr::cuda {
namespace {

class CudaSystem final : public System {
 public:
  CudaSystem(Device& device, StackModel model) : device_(device), model_(std::move(model)) {}

  int64_t memory_bytes() const override { return model_.memory_bytes(); }
  // One launch takes a whole group; a second space prepares the next one meanwhile.
  Grouping grouping() const override {
    const int32_t group = GroupSize(model_);
    return {.sequential = group, .iterative = group, .worthwhile = group, .spaces = 2};
  }
  int64_t SpaceBytes(const SpaceLimits& limits) const override {
    return CudaSpaceBytes(device_.limits(), model_, limits);
  }
  absl::StatusOr<std::unique_ptr<SolveSpace>> NewSpace(const SpaceLimits& limits) const override {
    return NewCudaSpace(device_, model_, limits);
  }
  absl::Status SetAffineGuess(const AffineGuess& guess) override {
    return model_.SetGuess(device_, guess);
  }

 private:
  Device& device_;
  StackModel model_;
};

absl::StatusOr<StackModel> Upload(Device& device, const DenseStackSpec& spec,
                                  const PackingLimits& limits) {
  return StackModel::Upload(device, spec, limits);
}
absl::StatusOr<StackModel> Upload(Device&, const DiffusionSpec&, const PackingLimits&) {
  return absl::UnimplementedError(
      "model_type: the cuda backend of this version takes mlp and resnet; --backend cpu can run "
      "diffusion");
}

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(std::unique_ptr<Device> device)
      : device_(std::move(device)), name_(device_->name()) {}

  std::string_view name() const override { return "cuda"; }
  std::string_view device() const override { return name_; }
  absl::StatusOr<std::unique_ptr<System>> NewSystem(const SystemSpec& spec,
                                                    const PackingLimits& limits) const override {
    DEEPPCR_ASSIGN_OR_RETURN(
        StackModel model,
        std::visit([&](const auto& s) { return Upload(*device_, s, limits); }, spec));
    return std::unique_ptr<System>(std::make_unique<CudaSystem>(*device_, std::move(model)));
  }

 private:
  const std::unique_ptr<Device> device_;
  const std::string name_;
};

}  // namespace

std::unique_ptr<Backend> NewCudaBackend(std::unique_ptr<Device> device) {
  return std::make_unique<CudaBackend>(std::move(device));
}

}  // namespace deeppcr::cuda
