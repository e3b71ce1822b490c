// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/cuda_backend.h"

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "kernels/backend/common.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/cuda/cuda_space.h"
#include "kernels/cuda/diffusion/recurrence.h"
#include "kernels/cuda/loop/block_shape.h"
#include "kernels/cuda/program/compiler.h"
#include "kernels/cuda/program/recurrence.h"
#include "kernels/cuda/stack/backward_space.h"
#include "kernels/cuda/stack/parameter_adder.h"
#include "kernels/cuda/stack/recurrence.h"
#include "kernels/program/denoiser_program.h"
#include "kernels/program/optimize.h"

namespace deeppcr::cuda {
namespace {

absl::Status SetGuess(Device& device, DenseStackModel& model, const AffineGuess& guess) {
  return model.SetGuess(device, guess);
}
absl::Status SetGuess(Device& device, ProgramModel& model, const AffineGuess& guess) {
  return model.SetGuess(device, guess);
}
// Diffusion models have no fitted guess: an affine map of the initial noise would know nothing of
// the noise of the steps and of the condition.
absl::Status SetGuess(Device&, DiffusionModel&, const AffineGuess&) { return absl::OkStatus(); }

template <class Model>
class CudaSystem : public System {
 public:
  CudaSystem(Device& device, Model model) : device_(device), model_(std::move(model)) {}

  int64_t memory_bytes() const override { return model_.memory_bytes(); }
  // A space takes a group together; a second space prepares the next group meanwhile.
  Grouping grouping() const override {
    const SpaceSizes sizes = SizesOf(device_.limits(), model_, {.iterative = false});
    const auto group = static_cast<int32_t>(sizes.group);
    return {.sequential = group,
            .iterative = static_cast<int32_t>(sizes.iterative),
            .worthwhile = group,
            .spaces = 2};
  }
  int64_t SpaceBytes(const SpaceLimits& limits) const override {
    return SizesOf(device_.limits(), model_, limits).bytes();
  }
  absl::StatusOr<std::unique_ptr<SolveSpace>> NewSpace(const SpaceLimits& limits) const override {
    return NewCudaSpace(device_, SizesOf(device_.limits(), model_, limits),
                        [this](Workspace& work) { return NewRecurrence(work, model_); });
  }
  absl::Status SetAffineGuess(const AffineGuess& guess) override {
    return SetGuess(device_, model_, guess);
  }

 protected:
  Device& device() const { return device_; }
  const Model& model() const { return model_; }

 private:
  Device& device_;
  Model model_;
};

// Dense stacks that warps take, which also go back.
class ReversibleSystem final : public CudaSystem<StackModel> {
 public:
  ReversibleSystem(Device& device, StackModel model, std::unique_ptr<ParameterAdder> adder)
      : CudaSystem(device, std::move(model)), adder_(std::move(adder)) {}

  int64_t memory_bytes() const override {
    return CudaSystem::memory_bytes() + adder_->memory_bytes();
  }
  BackwardGrouping backward_grouping() const override { return BackwardGroupingOf(model()); }
  int64_t BackwardSpaceBytes(const BackwardLimits& limits) const override {
    return cuda::BackwardSpaceBytes(device(), model(), limits);
  }
  absl::StatusOr<std::unique_ptr<BackwardSpace>> NewBackwardSpace(
      const BackwardLimits& limits) const override {
    return cuda::NewBackwardSpace(device(), model(), limits);
  }
  absl::Status AddParameterGradients(std::span<const ParameterSample> samples, int64_t begin,
                                     int64_t end, const ParameterSums& sums) const override {
    return adder_->Add(samples, begin, end, sums);
  }

 private:
  const std::unique_ptr<ParameterAdder> adder_;
};

absl::StatusOr<std::unique_ptr<System>> LoadReversible(Device& device, const DenseStackSpec& spec,
                                                       const PackingLimits& limits) {
  DEEPPCR_ASSIGN_OR_RETURN(StackModel model, StackModel::Upload(device, spec, limits));
  DEEPPCR_ASSIGN_OR_RETURN(std::unique_ptr<ParameterAdder> adder,
                           ParameterAdder::New(device, model.shape()));
  return std::unique_ptr<System>(
      std::make_unique<ReversibleSystem>(device, std::move(model), std::move(adder)));
}

template <class Model, class Spec, class... Compiler>
absl::StatusOr<std::unique_ptr<System>> Load(Device& device, const Spec& spec,
                                             const PackingLimits& limits, Compiler*... compiler) {
  DEEPPCR_ASSIGN_OR_RETURN(Model model, Model::Upload(device, spec, limits, compiler...));
  return std::unique_ptr<System>(std::make_unique<CudaSystem<Model>>(device, std::move(model)));
}

// A named denoiser with a sampler that the kernels of named denoisers do not know, as the program
// that it is.
absl::StatusOr<std::unique_ptr<System>> LoadAsProgram(Device& device, const DiffusionSpec& spec,
                                                      const PackingLimits& limits,
                                                      ProgramCompiler* compiler) {
  DEEPPCR_ASSIGN_OR_RETURN(const program::Program written,
                           program::ProgramOfDenoiser(spec, program::kNoLimits));
  DEEPPCR_ASSIGN_OR_RETURN(const program::Program optimized,
                           program::Optimize(written, program::kNoLimits));
  return Load<ProgramModel>(device, program::WithProgram(spec, optimized), limits, compiler);
}

// One overload per family.
struct NewSystemFrom {
  absl::StatusOr<std::unique_ptr<System>> operator()(const DenseStackSpec& spec) const {
    if (!ByWarps(spec.state_dim, device.limits()))
      return Load<PanelStackModel>(device, spec, limits);
    return limits.backward ? LoadReversible(device, spec, limits)
                           : Load<StackModel>(device, spec, limits);
  }
  absl::StatusOr<std::unique_ptr<System>> operator()(const DiffusionSpec& spec) const {
    return spec.form == SamplerForm{} ? Load<DiffusionModel>(device, spec, limits)
                                      : LoadAsProgram(device, spec, limits, &compiler);
  }
  absl::StatusOr<std::unique_ptr<System>> operator()(const DiffusionProgramSpec& spec) const {
    return Load<ProgramModel>(device, spec, limits, &compiler);
  }
  absl::StatusOr<std::unique_ptr<System>> operator()(const StackProgramSpec& spec) const {
    return Load<ProgramModel>(device, spec, limits, &compiler);
  }

  Device& device;
  ProgramCompiler& compiler;
  const PackingLimits& limits;
};

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(std::unique_ptr<Device> device)
      : device_(std::move(device)), compiler_(*device_), name_(device_->name()) {}

  std::string_view name() const override { return "cuda"; }
  std::string_view device() const override { return name_; }
  bool on_gpu() const override { return true; }
  // The class has no `speed`: the name determines the caches of a GPU.
  DeviceClass device_class() const override {
    const std::string versions = device_->versions();
    return {.bits = versions.empty() ? name_ : StrCat(name_, " ", versions)};
  }
  absl::StatusOr<std::unique_ptr<System>> NewSystem(const SystemSpec& spec,
                                                    const PackingLimits& limits) const override {
    return NewSystemOf(spec, NewSystemFrom{*device_, compiler_, limits});
  }

 private:
  const std::unique_ptr<Device> device_;
  mutable ProgramCompiler compiler_;
  const std::string name_;
};

}  // namespace

std::unique_ptr<Backend> NewCudaBackend(std::unique_ptr<Device> device) {
  return std::make_unique<CudaBackend>(std::move(device));
}

}  // namespace deeppcr::cuda
