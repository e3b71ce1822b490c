// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PREPARED_SYSTEM_H_
#define DEEPPCR_KERNELS_PREPARED_SYSTEM_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend/registry.h"
#include "kernels/base/memory_budget.h"
#include "kernels/base/thread_pool.h"
#include "kernels/engine.h"
#include "kernels/model/model.h"
#include "kernels/parameter_summer.h"
#include "kernels/plan/plan_file.h"
#include "kernels/plan/plan_key.h"
#include "kernels/resolve.h"
#include "kernels/solver/backward_runner.h"
#include "kernels/solver/runner.h"

namespace deeppcr {

// Tells the listener, if there is one, that the device has failed; returns the status.
absl::Status Watched(absl::Status status,
                     const std::function<void(const absl::Status&)>& device_failed);

// Limit on the packed systems, in sizes of the largest weights file: every number of inference
// steps has a copy of the weights and a table of its own.
inline constexpr int64_t kMaxPackedCopies = 4;

// What to do about a model whose packed systems take more; static storage.
std::string_view AdviceOnSize(const Model& model);

// The smallest power of two C (at most L) whose workspace takes no more than `max_bytes`; where
// none does, the sequential solver alone. Errors: kResourceExhausted where that takes more too.
absl::StatusOr<SpaceLimits> ChooseSpaceLimits(const System& system, int64_t num_steps,
                                              int64_t max_bytes);

// One system of a model: its weights as a backend packs them, a runner, and a plan.
class PreparedSystem final : public LoadedSystem {
 public:
  struct Parts {
    MemoryShare memory;  // of what follows, and so given back after it
    std::unique_ptr<System> system;
    std::unique_ptr<Runner> runner;            // has spaces of the system
    std::unique_ptr<BackwardRunner> backward;  // null: no backward pass
    // Of gradients by parameters; null: those of layers, if there are parameters, or none.
    std::unique_ptr<const ParameterSummer> summer;
    std::vector<TensorShape> layer_parameters;  // of an mlp or a resnet
    ThreadPool* pool = nullptr;
    PlanKey key;
    Plan plan;
    ResolveContext resolve;

    int64_t memory_bytes() const {
      return system->memory_bytes() + runner->memory_bytes() +
             (backward == nullptr ? 0 : backward->memory_bytes()) +
             (summer == nullptr ? 0 : summer->memory_bytes());
    }
  };

  PreparedSystem(Parts parts, std::function<void(const absl::Status&)> device_failed)
      : parts_(std::move(parts)), device_failed_(std::move(device_failed)) {}

  const Plan& plan() const override { return parts_.plan; }
  absl::StatusOr<ResolvedOptions> Resolve(const SolveOptions& options,
                                          int64_t num_samples) const override {
    return ResolveOptions(options, num_samples, parts_.plan, parts_.resolve);
  }
  absl::Status Run(const ResolvedOptions& options, std::span<RunItem> items,
                   RunTimings* timings) const override {
    return Watched(parts_.runner->Run(options, items, timings), device_failed_);
  }
  const BackwardLimits* backward_limits() const override {
    return parts_.backward == nullptr ? nullptr : &parts_.backward->limits();
  }
  absl::Status GoBack(const BackwardOptions& options, std::span<BackwardItem> items) const override;
  absl::Status AddParameterGradients(std::span<const ParameterSample> samples,
                                     std::span<float* const> sums, const CancelToken* token,
                                     absl::FunctionRef<void(double)> pause) const override;
  bool has_parameter_gradients() const override {
    return parts_.summer != nullptr ||
           (parts_.backward != nullptr && !parts_.layer_parameters.empty());
  }
  absl::StatusOr<std::vector<ComparisonRow>> Compare(
      const SampleInputs& samples, std::span<const absl::StatusOr<ResolvedOptions>> options,
      const ComparisonLimits& limits, const CancelToken* token) const override;

  const PlanKey& key() const { return parts_.key; }
  const ResolveContext& resolve() const { return parts_.resolve; }
  int64_t num_steps() const { return parts_.resolve.shape.num_steps; }
  int64_t packed_bytes() const { return parts_.system->memory_bytes(); }
  int64_t memory_bytes() const { return parts_.memory_bytes(); }
  // See ModelInfo::parameter_bytes.
  int64_t parameter_bytes() const {
    return parts_.summer == nullptr ? 0 : parts_.summer->workspace_bytes();
  }

 private:
  absl::Status AddLayerGradients(std::span<const ParameterSample> samples,
                                 const ParameterSums& sums) const;

  const Parts parts_;
  const std::function<void(const absl::Status&)> device_failed_;
};

// Model and place of the systems that are prepared together. All references outlive the systems but
// for `model` and `progress`, which outlive the preparation.
struct SystemPreparation {
  const Model& model;
  const SelectedBackend& on;
  const EngineOptions& options;
  ThreadPool& pool;
  LoadProgress progress;               // may be empty
  const CancelToken* token = nullptr;  // may be null
  int64_t count = 1;                   // systems that share the limits of the options
  // What the system may take in all: its workspaces are smaller for it. Bits follow from their
  // size, so this is the same whatever else is in memory.
  int64_t max_bytes = INT64_MAX;
  // What is left beside other systems. It takes half of that for more workspaces than one, and
  // leaves the rest to those that come.
  int64_t spare_bytes = INT64_MAX;
  // Makes room for a system with its workspaces, before it takes so many bytes; may be empty.
  std::function<absl::Status(int64_t bytes)> make_room;
  // Of all models, which a system in the memory of a device does not count in; may be null.
  std::shared_ptr<MemoryBudget> budget;
};

// Packs the system within `packing`, calibrates it, and finds its plan in plan.json
// (`plans`, which may be null), in the models that are loaded, in the cache, or by measuring.
// Errors: as Engine::LoadModel.
absl::StatusOr<std::shared_ptr<const PreparedSystem>> PrepareSystem(
    const SystemPreparation& preparation, const SystemSpec& spec, const PackingLimits& packing,
    const PlanFile* plans, std::span<const std::shared_ptr<const LoadedModel>> loaded);

// The same, of this name, with the plan of `nearest`, which is another system of the model,
// rescaled.
absl::StatusOr<std::shared_ptr<const PreparedSystem>> PrepareSystemLike(
    const SystemPreparation& preparation, const SystemSpec& spec, const PackingLimits& packing,
    const SystemKey& key, const PreparedSystem& nearest);

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_PREPARED_SYSTEM_H_
