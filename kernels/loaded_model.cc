// SPDX-License-Identifier: Apache-2.0
#include "kernels/loaded_model.h"

#include <algorithm>
#include <utility>

#include "kernels/base/sha256.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/comparison.h"
#include "kernels/plan/calibration.h"
#include "kernels/plan/plan_cache.h"
#include "kernels/plan/planner.h"
#include "kernels/resolve.h"
#include "kernels/solver/registry.h"
#include "kernels/solver/runner.h"

namespace deeppcr {
namespace {

constexpr int64_t kMaxGuessBytes = int64_t{32} << 20;

// Twice what the affine map has unknowns per output, within reason.
int64_t NumSyntheticInputs(int64_t state_dim) {
  return std::clamp<int64_t>(2 * (state_dim + 1), 256, 2048);
}

class LoadedModelImpl final : public LoadedModel {
 public:
  LoadedModelImpl(ModelInfo info, Plan plan, ResolveContext resolve, std::unique_ptr<System> system,
                  std::unique_ptr<Runner> runner)
      : info_(std::move(info)),
        plan_(std::move(plan)),
        resolve_(resolve),
        system_(std::move(system)),
        runner_(std::move(runner)) {}

  const ModelInfo& info() const override { return info_; }
  const Plan& plan() const override { return plan_; }

  absl::StatusOr<ResolvedOptions> Resolve(const SolveOptions& options,
                                          int64_t num_samples) const override {
    return ResolveOptions(options, num_samples, plan_, resolve_);
  }
  absl::Status Run(const ResolvedOptions& options, std::span<RunItem> items,
                   RunTimings* timings) const override {
    return runner_->Run(options, items, timings);
  }
  absl::StatusOr<std::vector<ComparisonRow>> Compare(std::span<const float> inputs,
                                                     int64_t num_samples,
                                                     std::span<const SolveOptions> options,
                                                     int repetitions,
                                                     const CancelToken* token) const override {
    return CompareSolvers(*this, *runner_, inputs, num_samples, options, repetitions, token);
  }

 private:
  const ModelInfo info_;
  const Plan plan_;
  const ResolveContext resolve_;
  const std::unique_ptr<System> system_;
  const std::unique_ptr<Runner> runner_;
};

// The smallest power of two C (at most L) whose workspace stays within the limit; where none does,
// the sequential solver alone.
absl::StatusOr<SpaceLimits> ChooseLimits(const System& system, int64_t num_steps,
                                         int64_t max_bytes) {
  SpaceLimits limits;
  while (system.SpaceBytes(limits) > max_bytes && limits.min_shooting_interval < num_steps)
    limits.min_shooting_interval = std::min(2 * limits.min_shooting_interval, num_steps);
  if (system.SpaceBytes(limits) > max_bytes) limits.iterative = false;
  if (system.SpaceBytes(limits) <= max_bytes) return limits;
  return ResourceExhausted("workspace: ", system.SpaceBytes(limits), " bytes wanted per thread, ",
                           max_bytes, " allowed (raise max_workspace_bytes)");
}

CalibrationInputs InputsOf(const Model& model) {
  if (model.num_calibration > 0)
    return {.values = model.calibration_inputs, .count = model.num_calibration};
  return SyntheticInputs(NumSyntheticInputs(model.spec.state_dim), model.spec.input_dim());
}

// The inputs that an initial guess is fitted on: not those that the planner judges it by, unless
// there would be too few.
CalibrationInputs FittedInputs(const CalibrationInputs& all, const SystemSpec& spec) {
  const int64_t left = all.count - kJudgedSamples;
  if (left < spec.state_dim + 2) return all;
  return {.values = {all.values.begin() + kJudgedSamples * spec.input_dim(), all.values.end()},
          .count = left};
}

// Loads one model, step by step.
class Preparation {
 public:
  Preparation(Model model, const LoadContext& context)
      : model_(std::move(model)), context_(context) {}

  absl::StatusOr<std::shared_ptr<const LoadedModel>> Run() {
    DEEPPCR_RETURN_IF_ERROR(MakeRunner());
    Calibrate();
    DEEPPCR_ASSIGN_OR_RETURN(Plan plan, FindPlan());
    return std::shared_ptr<const LoadedModel>(std::make_shared<LoadedModelImpl>(
        Info(), std::move(plan), resolve_, std::move(system_), std::move(runner_)));
  }

 private:
  void Say(std::string_view text) const {
    if (context_.progress) context_.progress(text);
  }

  absl::Status MakeRunner() {
    Say("packing weights");
    const SystemSpec& spec = model_.spec;
    DEEPPCR_ASSIGN_OR_RETURN(system_, context_.backend->NewSystem(spec));
    DEEPPCR_ASSIGN_OR_RETURN(
        const SpaceLimits limits,
        ChooseLimits(*system_, spec.num_steps, context_.options->max_workspace_bytes));
    const RunnerShape shape{.num_steps = spec.num_steps,
                            .state_dim = spec.state_dim,
                            .input_dim = spec.input_dim(),
                            .output_dim = spec.output_dim()};
    DEEPPCR_ASSIGN_OR_RETURN(
        runner_, Runner::Create(*context_.backend, *system_, shape, limits, context_.pool,
                                context_.options->max_concurrent_runs));
    resolve_ = {.num_steps = spec.num_steps,
                .min_shooting_interval = limits.min_shooting_interval,
                .iterative = limits.iterative};
    return absl::OkStatus();
  }

  // Without a usable calibration the model works, from the constant guess.
  void Calibrate() {
    Say("calibrating the initial guess");
    inputs_ = InputsOf(model_);
    if (!resolve_.iterative) return;
    const absl::StatusOr<AffineGuess> guess =
        FitAffineGuess(*runner_, FittedInputs(inputs_, model_.spec), kMaxGuessBytes);
    if (!guess.ok()) return Say(ToStd(guess.status().message()));
    system_->SetAffineGuess(*guess);
    resolve_.calibrated_guess = true;
  }

  absl::StatusOr<Plan> FindPlan() {
    const std::string_view values(reinterpret_cast<const char*>(inputs_.values.data()),
                                  inputs_.values.size() * sizeof(float));
    DEEPPCR_ASSIGN_OR_RETURN(const std::string calibration, Sha256Hex(values));
    const PlanKey key{.device = std::string(context_.backend->device()),
                      .build = DEEPPCR_BUILD_ID,
                      .weights_sha256 = model_.weights_sha256,
                      .config_json = model_.config_json,
                      .calibration_sha256 = calibration,
                      .min_shooting_interval = resolve_.min_shooting_interval,
                      .iterative = resolve_.iterative,
                      .num_threads = context_.pool->num_threads(),
                      .rtol = PlannerOptions{}.rtol};
    const PlanCache cache(context_.options->plan_cache_dir);
    absl::StatusOr<Plan> cached = cache.Load(key);
    if (cached.ok() && PlanFits(*cached, resolve_)) return cached;
    if (cached.ok()) Say(StrCat("measuring anew: plan ", cached->id, " does not fit this model"));
    if (!cached.ok() && !absl::IsNotFound(cached.status())) Say(ToStd(cached.status().message()));
    DEEPPCR_ASSIGN_OR_RETURN(Plan plan, Measure());
    plan.device = key.device;
    DEEPPCR_ASSIGN_OR_RETURN(plan.id, PlanId(key, plan));
    if (const absl::Status saved = cache.Save(key, plan); !saved.ok()) Say(ToStd(saved.message()));
    return plan;
  }

  absl::StatusOr<Plan> Measure() const {
    return MeasurePlan(*runner_, inputs_,
                       {.max_batch_size = model_.config.max_batch_size,
                        .calibrated_guess = resolve_.calibrated_guess,
                        .progress = context_.progress});
  }

  ModelInfo Info() const {
    ModelInfo info{.model_type = model_.config.model_type,
                   .input_dim = model_.spec.input_dim(),
                   .output_dim = model_.spec.output_dim(),
                   .state_dim = model_.spec.state_dim,
                   .num_layers = model_.spec.num_steps,
                   .max_batch_size = model_.config.max_batch_size,
                   .min_shooting_interval = static_cast<int32_t>(resolve_.min_shooting_interval),
                   .config_json = model_.config_json,
                   .weights_sha256 = model_.weights_sha256,
                   .memory_bytes = system_->memory_bytes() + runner_->memory_bytes(),
                   .solvers = {},
                   .labels = model_.config.labels};
    for (const std::string_view name : SolverNames()) {
      if (SolverFits(name, resolve_)) info.solvers.emplace_back(name);
    }
    return info;
  }

  Model model_;
  const LoadContext& context_;
  std::unique_ptr<System> system_;
  std::unique_ptr<Runner> runner_;
  CalibrationInputs inputs_;
  ResolveContext resolve_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<const LoadedModel>> PrepareModel(Model model,
                                                                const LoadContext& context) {
  return Preparation(std::move(model), context).Run();
}

}  // namespace deeppcr
