// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/cuda_backend.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "kernels/backend/common.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/cuda/cuda_space.h"
#include "kernels/cuda/diffusion/recurrence.h"
#include "kernels/cuda/loop/block_shape.h"
#include "kernels/cuda/program/backward_space.h"
#include "kernels/cuda/program/compiler.h"
#include "kernels/cuda/program/recurrence.h"
#include "kernels/cuda/stack/backward_space.h"
#include "kernels/cuda/stack/parameter_adder.h"
#include "kernels/cuda/stack/recurrence.h"
#include "kernels/program/cost.h"
#include "kernels/program/denoiser_program.h"
#include "kernels/program/dense_stack.h"
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
  bool SolvesAtOnce(int64_t shooting_interval) const override {
    return cuda::SolvesAtOnce(device_.limits(), model_, shooting_interval);
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

// Recurrences whose step is a program, or a named denoiser, which goes back as the program that it
// is.
template <class Model>
class ReversibleProgram final : public CudaSystem<Model> {
 public:
  // `program` where the model is none; `adder` where the step is a dense layer, or null.
  ReversibleProgram(Device& device, Model model, std::optional<ProgramModel> program,
                    std::unique_ptr<ParameterAdder> adder = nullptr)
      : CudaSystem<Model>(device, std::move(model)),
        program_(std::move(program)),
        adder_(std::move(adder)) {}

  int64_t memory_bytes() const override {
    const int64_t beside = program_.has_value() ? program_->memory_bytes() : 0;
    const int64_t adding = adder_ == nullptr ? 0 : adder_->memory_bytes();
    return CudaSystem<Model>::memory_bytes() + beside + adding;
  }
  BackwardGrouping backward_grouping() const override { return BackwardGroupingOf(Program()); }
  int64_t BackwardSpaceBytes(const BackwardLimits& limits) const override {
    return cuda::BackwardSpaceBytes(this->device(), Program(), limits);
  }
  absl::StatusOr<std::unique_ptr<BackwardSpace>> NewBackwardSpace(
      const BackwardLimits& limits) const override {
    return cuda::NewBackwardSpace(this->device(), Program(), limits);
  }
  bool gives_state_cotangents() const override { return true; }
  absl::Status AddParameterGradients(std::span<const ParameterSample> samples, int64_t begin,
                                     int64_t end, const ParameterSums& sums) const override {
    if (adder_ == nullptr) return System::AddParameterGradients(samples, begin, end, sums);
    return adder_->Add(samples, begin, end, sums);
  }

 private:
  const ProgramModel& Program() const {
    if constexpr (std::is_same_v<Model, ProgramModel>) {
      return this->model();
    } else {
      return *program_;
    }
  }

  const std::optional<ProgramModel> program_;
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

absl::StatusOr<program::Program> ProgramOf(const DiffusionSpec& spec) {
  DEEPPCR_ASSIGN_OR_RETURN(const program::Program written,
                           program::ProgramOfDenoiser(spec, program::kNoLimits));
  return program::Optimize(written, program::kNoLimits);
}

template <class Spec>
absl::StatusOr<std::unique_ptr<System>> LoadProgram(Device& device, const Spec& spec,
                                                    const PackingLimits& limits,
                                                    ProgramCompiler* compiler) {
  if (!limits.backward) return Load<ProgramModel>(device, spec, limits, compiler);
  DEEPPCR_ASSIGN_OR_RETURN(ProgramModel model,
                           ProgramModel::Upload(device, spec, limits, compiler));
  return std::unique_ptr<System>(
      std::make_unique<ReversibleProgram<ProgramModel>>(device, std::move(model), std::nullopt));
}

// A model with the program that it is for its way back; without, where no block has the memory for
// what conditions give there. The program has what the model leaves of the memory that it may take.
template <class Model, class Spec>
absl::StatusOr<std::unique_ptr<System>> WithWayBack(
    Device& device, Model model, const Spec& program, PackingLimits limits,
    std::unique_ptr<ParameterAdder> adder = nullptr) {
  limits.max_bytes -= model.memory_bytes();
  absl::StatusOr<ProgramModel> back =
      ProgramModel::Upload(device, program, limits, nullptr, ProgramModel::Use::kWayBack);
  if (absl::IsUnimplemented(back.status()))
    return std::unique_ptr<System>(std::make_unique<CudaSystem<Model>>(device, std::move(model)));
  DEEPPCR_RETURN_IF_ERROR(back.status());
  return std::unique_ptr<System>(std::make_unique<ReversibleProgram<Model>>(
      device, std::move(model), *std::move(back), std::move(adder)));
}

// A named denoiser; as the program that it is, where its sampler is none that the kernels of named
// denoisers know.
absl::StatusOr<std::unique_ptr<System>> LoadDenoiser(Device& device, const DiffusionSpec& spec,
                                                     const PackingLimits& limits,
                                                     ProgramCompiler* compiler) {
  const bool named = spec.form == SamplerForm{};
  if (named && !limits.backward) return Load<DiffusionModel>(device, spec, limits);
  DEEPPCR_ASSIGN_OR_RETURN(const program::Program program, ProgramOf(spec));
  const DiffusionProgramSpec with_program = program::WithProgram(spec, program);
  if (!named) return LoadProgram(device, with_program, limits, compiler);
  DEEPPCR_ASSIGN_OR_RETURN(DiffusionModel model, DiffusionModel::Upload(device, spec, limits));
  return WithWayBack(device, std::move(model), with_program, limits);
}

// Dense stacks that warps do not take, which go back as the programs that they are.
absl::StatusOr<std::unique_ptr<System>> LoadWide(Device& device, const DenseStackSpec& spec,
                                                 const PackingLimits& limits) {
  if (!limits.backward) return Load<PanelStackModel>(device, spec, limits);
  DEEPPCR_ASSIGN_OR_RETURN(PanelStackModel model, PanelStackModel::Upload(device, spec, limits));
  DEEPPCR_ASSIGN_OR_RETURN(const program::Program program, program::ProgramOfStack(spec));
  const StackProgramSpec with_program = {.num_steps = spec.num_steps,
                                         .state_dim = spec.state_dim,
                                         .program = &program,
                                         .step_weights = program::StepWeights(program),
                                         .encode = spec.encode,
                                         .decode = spec.decode};
  DEEPPCR_ASSIGN_OR_RETURN(std::unique_ptr<ParameterAdder> adder,
                           ParameterAdder::New(device, model.shape()));
  return WithWayBack(device, std::move(model), with_program, limits, std::move(adder));
}

// One overload per family.
struct NewSystemFrom {
  absl::StatusOr<std::unique_ptr<System>> operator()(const DenseStackSpec& spec) const {
    if (!ByWarps(spec.state_dim, device.limits())) return LoadWide(device, spec, limits);
    return limits.backward ? LoadReversible(device, spec, limits)
                           : Load<StackModel>(device, spec, limits);
  }
  absl::StatusOr<std::unique_ptr<System>> operator()(const DiffusionSpec& spec) const {
    return LoadDenoiser(device, spec, limits, &compiler);
  }
  absl::StatusOr<std::unique_ptr<System>> operator()(const DiffusionProgramSpec& spec) const {
    return LoadProgram(device, spec, limits, &compiler);
  }
  absl::StatusOr<std::unique_ptr<System>> operator()(const StackProgramSpec& spec) const {
    return LoadProgram(device, spec, limits, &compiler);
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
