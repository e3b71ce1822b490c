// SPDX-License-Identifier: Apache-2.0
#include "kernels/prepared_system.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "kernels/base/never_fits.h"
#include "kernels/base/sha256.h"
#include "kernels/base/status_context.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/build_id.h"
#include "kernels/comparison.h"
#include "kernels/find_plan.h"
#include "kernels/gradient_check.h"
#include "kernels/model_parameters.h"
#include "kernels/plan/calibration.h"
#include "kernels/plan/candidates.h"
#include "kernels/plan/plan_cache.h"
#include "kernels/plan/planner.h"
#include "kernels/plan/rescaled_plan.h"
#include "kernels/plan/ways.h"
#include "kernels/self_check.h"

namespace deeppcr {
namespace {

// Memory that the workspace of a self-check may take, where --max_workspace_bytes is less.
constexpr int64_t kOracleBytes = int64_t{256} << 20;

// Number of inputs: twice the unknowns of the affine map per output, within reason.
int64_t NumSyntheticInputs(int64_t state_dim) {
  return std::clamp<int64_t>(2 * (state_dim + 1), 256, 2048);
}

// How many of the inputs an initial guess is not fitted on: those that the planner judges the guess
// by, unless too few would be left.
int64_t NumJudged(const CalibrationInputs& inputs, const SystemShape& shape) {
  return inputs.count - kJudgedSamples < shape.state_dim + 2 ? 0 : kJudgedSamples;
}

// Prepares one system, step by step.
class Preparation {
 public:
  Preparation(const SystemPreparation& preparation, const SystemSpec& spec, const SystemKey& key)
      : with_(preparation),
        spec_(spec),
        key_(key),
        shape_(ShapeOf(spec)),
        backend_(*preparation.on.backend) {}

  // Makes everything but key and plan.
  absl::Status Pack(PackingLimits packing) {
    Say("packing weights");
    packing.backward = with_.options.gradients;
    // A group of samples as large as half of what the system may take leaves room for the weights.
    packing.max_workspace_bytes =
        std::min(with_.options.max_workspace_bytes / with_.count, with_.max_bytes / 2);
    if (budget() != nullptr) parts_.memory = MemoryShare(with_.budget);
    packing.memory = &parts_.memory;
    packing.code_cache_dir = with_.options.plan_cache_dir;
    const LoadProgress progress = [this](LoadNews news, std::string_view text) { Say(text, news); };
    packing.progress = &progress;
    DEEPPCR_ASSIGN_OR_RETURN(parts_.system, backend_.NewSystem(spec_, packing));
    DEEPPCR_RETURN_IF_ERROR(parts_.memory.Set(parts_.system->memory_bytes()));
    DEEPPCR_ASSIGN_OR_RETURN(const Workspaces workspaces, ChooseWorkspaces());
    const SpaceLimits& limits = workspaces.forward;
    if (with_.make_room) DEEPPCR_RETURN_IF_ERROR(with_.make_room(BytesOf(workspaces)));
    DEEPPCR_RETURN_IF_ERROR(parts_.memory.Set(BytesOf(workspaces)));
    absl::StatusOr<std::unique_ptr<Runner>> runner =
        Runner::Create(*parts_.system, shape_, limits, &with_.pool,
                       with_.options.max_concurrent_runs, workspaces.lanes);
    // A library that is missing is for the operator to install, and not for another backend.
    if (absl::IsUnimplemented(runner.status()))
      return absl::FailedPreconditionError(runner.status().message());
    DEEPPCR_ASSIGN_OR_RETURN(parts_.runner, std::move(runner));
    parts_.resolve = {.shape = shape_,
                      .min_shooting_interval = limits.min_shooting_interval,
                      .iterative = limits.iterative,
                      .system = key_,
                      .backend = backend_.name()};
    DEEPPCR_RETURN_IF_ERROR(PrepareBackward(workspaces));
    DEEPPCR_RETURN_IF_ERROR(Calibrate());
    DEEPPCR_RETURN_IF_ERROR(parts_.memory.Set(parts_.memory_bytes()));
    if (Fired(with_.token)) return absl::CancelledError("stopped during calibration");
    return absl::OkStatus();
  }

  absl::Status FindItsPlan(const PlanFile* plans,
                           std::span<const std::shared_ptr<const LoadedModel>> loaded) {
    DEEPPCR_ASSIGN_OR_RETURN(parts_.key, Key());
    DEEPPCR_ASSIGN_OR_RETURN(parts_.plan, FindPlan(Search(plans, loaded)));
    DEEPPCR_RETURN_IF_ERROR(FindItsWays());
    parts_.plan.device = std::string(backend_.device());
    return absl::OkStatus();
  }

  // Completes a plan that was made without backward passes. A plan that is required is the one that
  // all servers have: what it leaves open none of them measures.
  absl::Status FindItsWays() {
    if (parts_.backward == nullptr || HasWays(parts_.plan) ||
        with_.options.plan_mode == PlanMode::kRequire)
      return absl::OkStatus();
    Say("measuring the ways back");
    DEEPPCR_ASSIGN_OR_RETURN(const CalibrationInputs* const inputs, Inputs());
    DEEPPCR_RETURN_IF_ERROR(
        MeasureWays(*parts_.runner, *parts_.backward, *inputs, Planning(), &parts_.plan));
    if (!HasWays(parts_.plan)) return absl::OkStatus();
    DEEPPCR_ASSIGN_OR_RETURN(parts_.plan.id, PlanId(parts_.key, parts_.plan));
    const PlanSource source = parts_.plan.source;
    if (source != PlanSource::kMeasured && source != PlanSource::kCache) return absl::OkStatus();
    const PlanCache cache(with_.options.plan_cache_dir);
    if (const absl::Status saved = cache.Save(parts_.key, parts_.plan); !saved.ok())
      Warn(ToStd(saved.message()));
    return absl::OkStatus();
  }

  absl::Status TakePlanOf(const PreparedSystem& nearest) {
    DEEPPCR_ASSIGN_OR_RETURN(parts_.key, Key());
    parts_.plan = RescaledPlan(nearest.plan(), nearest.num_steps(), shape_.num_steps,
                               parts_.resolve.min_shooting_interval);
    if (!UnfitChoice(parts_.plan, parts_.resolve).empty()) {
      parts_.plan.choices.clear();
      parts_.plan.candidates = {"none tried, and no choice of the nearest plan fits"};
      parts_.plan.entries = {{.max_samples = parts_.plan.entries.back().max_samples}};
    }
    parts_.plan.device = std::string(backend_.device());
    DEEPPCR_ASSIGN_OR_RETURN(parts_.plan.id, PlanId(parts_.key, parts_.plan));
    return absl::OkStatus();
  }

  // Checks the system against the first of the backend's oracles that has code for it.
  absl::Status CheckItself() const {
    for (const std::shared_ptr<const Backend>& other : with_.on.oracles) {
      const bool backward = parts_.backward != nullptr;
      const absl::StatusOr<std::unique_ptr<System>> oracle =
          other->NewSystem(spec_, {.token = with_.token, .backward = backward});
      if (absl::IsUnimplemented(oracle.status())) continue;
      DEEPPCR_RETURN_IF_ERROR(oracle.status());
      const int64_t oracle_bytes = std::max(kOracleBytes, with_.options.max_workspace_bytes);
      if (with_.make_room)
        DEEPPCR_RETURN_IF_ERROR(with_.make_room(parts_.system->memory_bytes() +
                                                parts_.runner->memory_bytes() +
                                                (*oracle)->memory_bytes() + oracle_bytes));
      Say(StrCat("checking it against the ", other->name(), " backend"));
      DEEPPCR_ASSIGN_OR_RETURN(const CalibrationInputs* const inputs, Inputs());
      absl::Status checked = RunSelfCheck({.runner = *parts_.runner,
                                           .oracle = **oracle,
                                           .plan = parts_.plan,
                                           .resolve = parts_.resolve,
                                           .inputs = *inputs,
                                           .max_batch_size = with_.model.config.max_batch_size,
                                           .max_oracle_bytes = oracle_bytes,
                                           .token = with_.token});
      if (checked.ok() && backward) {
        checked = RunGradientCheck({.system = *parts_.system,
                                    .runner = *parts_.runner,
                                    .backward = *parts_.backward,
                                    .oracle = **oracle,
                                    .shape = shape_,
                                    .inputs = *inputs,
                                    .pool = &with_.pool,
                                    .max_oracle_bytes = oracle_bytes,
                                    .token = with_.token});
      }
      if (!absl::IsDataLoss(checked)) return checked;
      return absl::DataLossError(
          StrCat("self-check of the ", backend_.name(), " backend failed: ", checked.message()));
    }
    return absl::OkStatus();
  }

  std::shared_ptr<const PreparedSystem> Take() {
    return std::make_shared<PreparedSystem>(std::move(parts_), with_.options.device_failed);
  }

 private:
  void Say(std::string_view text, LoadNews news = LoadNews::kStep) const {
    if (!with_.progress) return;
    if (with_.count == 1) return with_.progress(news, text);
    with_.progress(news, StrCat(text, " (", shape_.num_steps, " steps)"));
  }
  void Warn(std::string_view text) const { Say(text, LoadNews::kProblem); }

  MemoryBudget* budget() const { return backend_.on_gpu() ? nullptr : with_.budget.get(); }

  // Limits of workspaces, and how many there are.
  struct Workspaces {
    SpaceLimits forward;
    BackwardLimits backward;  // with gradients
    int lanes = 1;
  };

  absl::StatusOr<Workspaces> WorkspacesOf(int64_t bytes) const {
    Workspaces chosen;
    DEEPPCR_ASSIGN_OR_RETURN(chosen.forward,
                             ChooseSpaceLimits(*parts_.system, shape_.num_steps, bytes));
    if (!with_.options.gradients) return chosen;
    DEEPPCR_ASSIGN_OR_RETURN(chosen.backward,
                             ChooseBackwardLimits(*parts_.system, shape_.num_steps, bytes));
    return chosen;
  }

  // As many workspaces as there is room for. Where one is too large for what the system may take, a
  // smaller one; the smallest where none fits.
  absl::StatusOr<Workspaces> ChooseWorkspaces() const {
    int64_t bytes = with_.options.max_workspace_bytes / with_.count;
    DEEPPCR_ASSIGN_OR_RETURN(Workspaces chosen, WorkspacesOf(bytes));
    while (BytesOf(chosen) > with_.max_bytes) {
      bytes /= 2;
      const absl::StatusOr<Workspaces> smaller = WorkspacesOf(bytes);
      if (!smaller.ok()) break;
      chosen = *smaller;
    }
    const int most =
        Runner::NumLanes(parts_.system->grouping(), with_.pool, with_.options.max_concurrent_runs);
    int64_t spare = with_.spare_bytes;
    if (budget() != nullptr) {
      const int64_t fitting = shape_.affine_guess ? FittingBytes(shape_, kMaxGuessBytes) : 0;
      spare = std::min(spare, budget()->free() - fitting);
    }
    const int64_t room = std::min(with_.max_bytes, spare / 2) - BytesOf(chosen);
    if (room > 0)
      chosen.lanes = static_cast<int>(std::min<int64_t>(most, 1 + room / LaneBytes(chosen)));
    return chosen;
  }

  // Bytes of one workspace.
  int64_t LaneBytes(const Workspaces& workspaces) const {
    int64_t bytes = parts_.system->SpaceBytes(workspaces.forward);
    if (with_.options.gradients) bytes += parts_.system->BackwardSpaceBytes(workspaces.backward);
    return std::max<int64_t>(1, bytes);
  }

  // Bytes of the system with its workspaces.
  int64_t BytesOf(const Workspaces& workspaces) const {
    return parts_.system->memory_bytes() + workspaces.lanes * LaneBytes(workspaces);
  }

  // A backend without a backward pass for the system serves it all the same.
  absl::Status PrepareBackward(const Workspaces& workspaces) {
    parts_.pool = &with_.pool;
    if (!with_.options.gradients) return absl::OkStatus();
    absl::StatusOr<std::unique_ptr<BackwardRunner>> backward =
        BackwardRunner::Create(*parts_.system, shape_, workspaces.backward, &with_.pool,
                               with_.options.max_concurrent_runs, workspaces.lanes);
    if (absl::IsUnimplemented(backward.status())) return absl::OkStatus();
    DEEPPCR_ASSIGN_OR_RETURN(parts_.backward, std::move(backward));
    const Model& model = with_.model;
    if (ParameterFormOf(model) == ParameterForm::kLayers)
      parts_.layer_parameters = ParametersOf(model);
    // The model's program with parameters is that of its steps as they are.
    const bool own_steps = !key_.guided && !key_.known;
    if (own_steps && model.parameters != nullptr && parts_.system->gives_state_cotangents())
      parts_.summer = std::make_unique<const ParameterSummer>(model.parameters, spec_, &with_.pool);
    return absl::OkStatus();
  }

  // Calibration inputs of the model, or synthetic ones, once they are asked for: a plan of another
  // system makes them needless. A diffusion model has inputs of its own, the noise. Errors:
  // kResourceExhausted.
  absl::StatusOr<const CalibrationInputs*> Inputs() const {
    if (inputs_.has_value()) return &*inputs_;
    const Model& model = with_.model;
    const int64_t own = model.num_calibration;
    const int64_t count = own > 0 ? own : NumSyntheticInputs(shape_.state_dim);
    of_inputs_ = MemoryShare(with_.budget);
    DEEPPCR_RETURN_IF_ERROR(
        WithContext(of_inputs_.Set(count * shape_.input_dim * int64_t{sizeof(float)}),
                    "with inputs to calibrate on"));
    if (own > 0) {
      inputs_ = {.values = model.calibration_inputs, .count = own};
    } else {
      inputs_ = SyntheticInputs(count, shape_.input_dim);
    }
    return &*inputs_;
  }

  // Without a usable calibration the model works, from the constant guess. Errors:
  // kResourceExhausted: whether there is a guess must not depend on what else is in memory.
  absl::Status Calibrate() {
    if (!parts_.resolve.iterative || !shape_.affine_guess) return absl::OkStatus();
    Say("calibrating the initial guess");
    DEEPPCR_ASSIGN_OR_RETURN(const CalibrationInputs* const inputs, Inputs());
    const int64_t judged = NumJudged(*inputs, shape_);
    if (CheckFit(shape_, inputs->count - judged, kMaxGuessBytes).ok())
      DEEPPCR_RETURN_IF_ERROR(
          parts_.memory.Set(parts_.memory_bytes() + FittingBytes(shape_, kMaxGuessBytes)));
    const absl::StatusOr<AffineGuess> guess =
        FitAffineGuess(*parts_.runner, *inputs, kMaxGuessBytes, with_.token, judged);
    // Synthetic inputs may be too few for a wide model, which is no problem of the model's files.
    if (!guess.ok()) {
      Say(ToStd(guess.status().message()),
          with_.model.num_calibration > 0 ? LoadNews::kProblem : LoadNews::kStep);
      return absl::OkStatus();
    }
    if (const absl::Status set = parts_.system->SetAffineGuess(*guess); !set.ok()) {
      Warn(ToStd(set.message()));
      return absl::OkStatus();
    }
    parts_.resolve.calibrated_guess = true;
    return absl::OkStatus();
  }

  // Hash of the bytes; empty for no bytes.
  static absl::StatusOr<std::string> HashOf(std::string_view bytes) {
    return bytes.empty() ? std::string() : Sha256Hex(bytes);
  }

  absl::StatusOr<PlanKey> Key() const {
    const Model& model = with_.model;
    const DeviceClass device = backend_.device_class();
    PlanKey key{.device_class = device.Name(),
                .device_bits = device.bits,
                .backend = std::string(backend_.name()),
                .build = kBuildId,
                .weights_sha256 = model.weights_sha256,
                .num_steps = shape_.num_steps,
                .min_shooting_interval = parts_.resolve.min_shooting_interval,
                .iterative = parts_.resolve.iterative,
                .rtol = PlannerOptions{}.rtol};
    // The inputs that a model without its own is calibrated on belong to the build.
    const std::string_view calibration(
        reinterpret_cast<const char*>(model.calibration_inputs.data()),
        model.calibration_inputs.size() * sizeof(float));
    DEEPPCR_ASSIGN_OR_RETURN(key.config_sha256, HashOf(model.config_json));
    DEEPPCR_ASSIGN_OR_RETURN(key.scheduler_sha256, HashOf(model.scheduler_file));
    DEEPPCR_ASSIGN_OR_RETURN(key.calibration_sha256, HashOf(calibration));
    return key;
  }

  PlanSearch Search(const PlanFile* plans,
                    std::span<const std::shared_ptr<const LoadedModel>> loaded) const {
    return {.key = parts_.key,
            .mode = with_.options.plan_mode,
            .file = plans,
            .loaded = loaded,
            .cache_dir = with_.options.plan_cache_dir,
            .unfit = [this](const Plan& plan) { return UnfitChoice(plan, parts_.resolve); },
            .check = [this](Plan* plan) -> absl::Status {
              DEEPPCR_ASSIGN_OR_RETURN(const CalibrationInputs* const inputs, Inputs());
              return CheckPlan(*parts_.runner, *inputs, Planning(), plan);
            },
            .measure = [this]() -> absl::StatusOr<Plan> {
              DEEPPCR_ASSIGN_OR_RETURN(const CalibrationInputs* const inputs, Inputs());
              return MeasurePlan(*parts_.runner, *inputs, Planning());
            },
            .say = [this](LoadNews news, std::string_view text) { Say(text, news); }};
  }

  PlannerOptions Planning() const {
    const double seconds = kPlanSeconds / static_cast<double>(with_.count);
    return {.max_batch_size = with_.model.config.max_batch_size,
            .calibrated_guess = parts_.resolve.calibrated_guess,
            .rates = with_.on.rates,
            .flops_in_all = seconds * with_.on.rates.flops_per_second,
            .seconds_of_timing = seconds,
            .solves_at_once = [this](int64_t c) { return parts_.system->SolvesAtOnce(c); },
            .token = with_.token,
            .progress = [this](std::string_view text) { Say(text); }};
  }

  const SystemPreparation& with_;
  const SystemSpec& spec_;
  const SystemKey key_;
  const SystemShape shape_;
  const Backend& backend_;
  mutable MemoryShare of_inputs_;
  mutable std::optional<CalibrationInputs> inputs_;  // by Inputs
  PreparedSystem::Parts parts_;
};

}  // namespace

absl::Status Watched(absl::Status status,
                     const std::function<void(const absl::Status&)>& device_failed) {
  if (absl::IsUnavailable(status) && device_failed) device_failed(status);
  return status;
}

std::string_view AdviceOnSize(const Model& model) {
  return model.systems.size() > 1 ? "raise max_model_bytes, or name fewer num_inference_steps"
                                  : "raise max_model_bytes";
}

absl::StatusOr<SpaceLimits> ChooseSpaceLimits(const System& system, int64_t num_steps,
                                              int64_t max_bytes) {
  SpaceLimits limits;
  while (system.SpaceBytes(limits) > max_bytes && limits.min_shooting_interval < num_steps)
    limits.min_shooting_interval = std::min(2 * limits.min_shooting_interval, num_steps);
  if (system.SpaceBytes(limits) > max_bytes) limits.iterative = false;
  if (system.SpaceBytes(limits) <= max_bytes) return limits;
  return NeverFits("workspace: ", system.SpaceBytes(limits), " bytes wanted per thread, ",
                   max_bytes, " allowed (raise max_workspace_bytes)");
}

absl::StatusOr<std::vector<ComparisonRow>> PreparedSystem::Compare(
    const SampleInputs& samples, std::span<const absl::StatusOr<ResolvedOptions>> options,
    const ComparisonLimits& limits, const CancelToken* token) const {
  auto rows = CompareSolvers(*parts_.runner, samples, options, limits, token);
  DEEPPCR_RETURN_IF_ERROR(Watched(rows.status(), device_failed_));
  return rows;
}

absl::Status PreparedSystem::GoBack(const BackwardOptions& options,
                                    std::span<BackwardItem> items) const {
  if (parts_.backward == nullptr)
    return absl::UnimplementedError("the model was loaded without its backward pass");
  return Watched(parts_.backward->Run(options, items), device_failed_);
}

absl::Status PreparedSystem::AddParameterGradients(std::span<const ParameterSample> samples,
                                                   std::span<float* const> sums,
                                                   const CancelToken* token,
                                                   absl::FunctionRef<void(double)> pause) const {
  if (parts_.summer != nullptr) return parts_.summer->Add(samples, sums, token, pause);
  if (!has_parameter_gradients())
    return absl::UnimplementedError(
        StrCat("the ", resolve().backend, " backend has no gradients by parameters of this model"));
  return AddLayerGradients(samples, LayerSums(parts_.layer_parameters, sums));
}

absl::Status PreparedSystem::AddLayerGradients(std::span<const ParameterSample> samples,
                                               const ParameterSums& sums) const {
  // Layers of a piece of work: some ten microseconds.
  constexpr int64_t kLayers = 32;
  const int64_t num_steps = this->num_steps();
  std::mutex mutex;
  absl::Status status;
  auto add = [&](int64_t piece) {
    const int64_t begin = piece * kLayers;
    const absl::Status added = parts_.system->AddParameterGradients(
        samples, begin, std::min(begin + kLayers, num_steps), sums);
    if (added.ok()) return;
    std::lock_guard lock(mutex);
    status = added;
  };
  parts_.pool->ParallelFor((num_steps - 1) / kLayers + 1, add);
  return Watched(status, device_failed_);
}

absl::StatusOr<std::shared_ptr<const PreparedSystem>> PrepareSystem(
    const SystemPreparation& preparation, const SystemSpec& spec, const PackingLimits& packing,
    const PlanFile* plans, std::span<const std::shared_ptr<const LoadedModel>> loaded) {
  Preparation system(preparation, spec, ShapeOf(spec).num_steps);
  DEEPPCR_RETURN_IF_ERROR(system.Pack(packing));
  DEEPPCR_RETURN_IF_ERROR(system.FindItsPlan(plans, loaded));
  DEEPPCR_RETURN_IF_ERROR(system.CheckItself());
  return system.Take();
}

absl::StatusOr<std::shared_ptr<const PreparedSystem>> PrepareSystemLike(
    const SystemPreparation& preparation, const SystemSpec& spec, const PackingLimits& packing,
    const SystemKey& key, const PreparedSystem& nearest) {
  Preparation system(preparation, spec, key);
  PackingLimits of_request = packing;
  of_request.compiles = false;
  DEEPPCR_RETURN_IF_ERROR(system.Pack(of_request));
  DEEPPCR_RETURN_IF_ERROR(system.TakePlanOf(nearest));
  DEEPPCR_RETURN_IF_ERROR(system.CheckItself());
  return system.Take();
}

}  // namespace deeppcr
