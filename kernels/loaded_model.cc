// SPDX-License-Identifier: Apache-2.0
#include "kernels/loaded_model.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/base/sha256.h"
#include "kernels/base/status_context.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/build_id.h"
#include "kernels/comparison.h"
#include "kernels/find_plan.h"
#include "kernels/plan/calibration.h"
#include "kernels/plan/plan_file.h"
#include "kernels/plan/plan_key.h"
#include "kernels/plan/planner.h"
#include "kernels/resolve.h"
#include "kernels/solver/registry.h"
#include "kernels/solver/runner.h"

namespace deeppcr {
namespace {

constexpr int64_t kMaxGuessBytes = int64_t{32} << 20;
// Seconds of counted work on plans, and of timing, for all systems of a model.
constexpr double kPlanSeconds = 4;
// Limit on the packed systems, in sizes of the largest weights file: every number of inference
// steps has a copy of the weights and a table of its own.
constexpr int64_t kMaxCopies = 4;

// Number of inputs: twice the unknowns of the affine map per output, within reason.
int64_t NumSyntheticInputs(int64_t state_dim) {
  return std::clamp<int64_t>(2 * (state_dim + 1), 256, 2048);
}

// One system of a model, ready to run: a diffusion model has one per number of inference steps.
struct Variant {
  std::unique_ptr<System> system;
  std::unique_ptr<Runner> runner;
  PlanKey key;
  Plan plan;
  ResolveContext resolve;
};

// Tells the listener, if there is one, that the device has failed.
absl::Status Watched(absl::Status status,
                     const std::function<void(const absl::Status&)>& device_failed) {
  if (absl::IsUnavailable(status) && device_failed) device_failed(status);
  return status;
}

class LoadedModelImpl final : public LoadedModel {
 public:
  LoadedModelImpl(ModelInfo info, std::vector<Variant> variants, const EngineOptions& options)
      : info_(std::move(info)),
        variants_(std::move(variants)),
        device_failed_(options.device_failed) {}

  const ModelInfo& info() const override { return info_; }
  const Plan& plan(int64_t num_steps) const override { return Find(num_steps)->plan; }
  const Plan* PlanOf(const PlanKey& key) const override {
    const auto found = std::find_if(variants_.begin(), variants_.end(),
                                    [&](const Variant& variant) { return variant.key == key; });
    return found == variants_.end() ? nullptr : &found->plan;
  }
  std::string PlanFileText() const override {
    PlanFile file;
    for (const Variant& variant : variants_) file.Add(variant.key, variant.plan);
    return file.Text();
  }

  absl::StatusOr<ResolvedOptions> Resolve(const SolveOptions& options,
                                          int64_t num_samples) const override {
    DEEPPCR_RETURN_IF_ERROR(CheckSteps(options.num_inference_steps));
    const Variant& variant = *Find(options.num_inference_steps);
    return ResolveOptions(options, num_samples, variant.plan, variant.resolve);
  }
  absl::Status Run(const ResolvedOptions& options, std::span<RunItem> items,
                   RunTimings* timings) const override {
    DEEPPCR_ASSIGN_OR_RETURN(const Runner* const runner, RunnerOf(options.num_steps));
    return Watched(runner->Run(options, items, timings), device_failed_);
  }
  absl::StatusOr<std::vector<ComparisonRow>> Compare(
      const SampleInputs& samples, std::span<const absl::StatusOr<ResolvedOptions>> options,
      int repetitions, const CancelToken* token) const override {
    DEEPPCR_ASSIGN_OR_RETURN(const int64_t steps, CommonSteps(options));
    DEEPPCR_ASSIGN_OR_RETURN(const Runner* const runner, RunnerOf(steps));
    auto rows = CompareSolvers(*runner, samples, options, repetitions, token);
    DEEPPCR_RETURN_IF_ERROR(Watched(rows.status(), device_failed_));
    return rows;
  }

 private:
  // Variant for num_steps (0: the default); null if there is none.
  const Variant* Find(int64_t num_steps) const {
    if (num_steps == 0) return &variants_.front();
    const auto found = std::find_if(
        variants_.begin(), variants_.end(),
        [=](const Variant& variant) { return variant.resolve.shape.num_steps == num_steps; });
    return found == variants_.end() ? nullptr : &*found;
  }

  absl::StatusOr<const Runner*> RunnerOf(int64_t num_steps) const {
    const Variant* variant = Find(num_steps);
    if (variant == nullptr) return InvalidArgument("run: no system of ", num_steps, " steps");
    return variant->runner.get();
  }

  // The number of steps of all rows that can run; 0 where there is none.
  static absl::StatusOr<int64_t> CommonSteps(
      std::span<const absl::StatusOr<ResolvedOptions>> options) {
    std::optional<int64_t> steps;
    for (const absl::StatusOr<ResolvedOptions>& row : options) {
      if (!row.ok()) continue;
      if (steps.value_or(row->num_steps) != row->num_steps)
        return InvalidArgument(
            "num_inference_steps: expected the same for all rows of a comparison");
      steps = row->num_steps;
    }
    return steps.value_or(0);
  }

  absl::Status CheckSteps(int64_t num_steps) const {
    if (num_steps == 0) return absl::OkStatus();
    if (!info_.generates())
      return InvalidArgument("num_inference_steps: only diffusion models take them, got ",
                             num_steps);
    if (Find(num_steps) != nullptr) return absl::OkStatus();
    const std::string known =
        StrJoin(info_.num_inference_steps, ", ", [](int64_t steps) { return StrCat(steps); });
    return InvalidArgument("num_inference_steps: expected one of ", known,
                           " (num_inference_steps of the model's config.json), got ", num_steps);
  }

  const ModelInfo info_;
  const std::vector<Variant> variants_;
  const std::function<void(const absl::Status&)> device_failed_;
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

// Calibration inputs of the model, or synthetic ones. A diffusion model has inputs of its own, the
// noise.
CalibrationInputs CalibrationInputsOf(const Model& model, const SystemShape& shape) {
  if (model.num_calibration > 0)
    return {.values = model.calibration_inputs, .count = model.num_calibration};
  return SyntheticInputs(NumSyntheticInputs(shape.state_dim), shape.input_dim);
}

// Inputs that an initial guess is fitted on: not the inputs that the planner judges the guess by,
// unless there would be too few.
CalibrationInputs FittedInputs(const CalibrationInputs& all, const SystemShape& shape) {
  const int64_t left = all.count - kJudgedSamples;
  if (left < shape.state_dim + 2) return all;
  return {.values = {all.values.begin() + kJudgedSamples * shape.input_dim, all.values.end()},
          .count = left};
}

// Loads one system of a model, step by step.
class VariantPreparation {
 public:
  // Prepares a system that may take max_bytes.
  VariantPreparation(const Model& model, const SystemSpec& spec, int64_t max_bytes,
                     const PlanFile* plans, const SelectedBackend& on, const LoadContext& context)
      : model_(model),
        spec_(spec),
        shape_(ShapeOf(spec)),
        max_bytes_(max_bytes),
        plans_(plans),
        backend_(*on.backend),
        rates_(on.rates),
        context_(context),
        inputs_(CalibrationInputsOf(model, shape_)) {}

  absl::StatusOr<Variant> Run() {
    DEEPPCR_RETURN_IF_ERROR(MakeRunner());
    Calibrate();
    if (Fired(context_.token)) return absl::CancelledError("stopped during calibration");
    DEEPPCR_ASSIGN_OR_RETURN(variant_.key, Key());
    DEEPPCR_ASSIGN_OR_RETURN(variant_.plan, FindPlan(Search()));
    variant_.plan.device = std::string(backend_.device());
    return std::move(variant_);
  }

 private:
  void Say(std::string_view text, LoadNews news = LoadNews::kStep) const {
    if (!context_.progress) return;
    if (model_.systems.size() == 1) return context_.progress(news, text);
    context_.progress(news, StrCat(text, " (", shape_.num_steps, " steps)"));
  }
  void Warn(std::string_view text) const { Say(text, LoadNews::kProblem); }

  // Share of a system in a limit of the whole model.
  int64_t Share(int64_t whole) const { return whole / static_cast<int64_t>(model_.systems.size()); }

  absl::Status MakeRunner() {
    Say("packing weights");
    DEEPPCR_ASSIGN_OR_RETURN(variant_.system,
                             backend_.NewSystem(spec_, {max_bytes_, context_.token}));
    DEEPPCR_ASSIGN_OR_RETURN(const SpaceLimits limits,
                             ChooseLimits(*variant_.system, shape_.num_steps,
                                          Share(context_.options->max_workspace_bytes)));
    absl::StatusOr<std::unique_ptr<Runner>> runner = Runner::Create(
        *variant_.system, shape_, limits, context_.pool, context_.options->max_concurrent_runs);
    // A library that is missing is for the operator to install, and not for another backend.
    if (absl::IsUnimplemented(runner.status()))
      return absl::FailedPreconditionError(runner.status().message());
    DEEPPCR_ASSIGN_OR_RETURN(variant_.runner, std::move(runner));
    variant_.resolve = {.shape = shape_,
                        .min_shooting_interval = limits.min_shooting_interval,
                        .iterative = limits.iterative};
    return absl::OkStatus();
  }

  // Without a usable calibration the model works, from the constant guess.
  void Calibrate() {
    if (!variant_.resolve.iterative || !shape_.affine_guess) return;
    Say("calibrating the initial guess");
    const absl::StatusOr<AffineGuess> guess = FitAffineGuess(
        *variant_.runner, FittedInputs(inputs_, shape_), kMaxGuessBytes, context_.token);
    // Synthetic inputs may be too few for a wide model, which is no problem of the model's files.
    if (!guess.ok())
      return Say(ToStd(guess.status().message()),
                 model_.num_calibration > 0 ? LoadNews::kProblem : LoadNews::kStep);
    if (const absl::Status set = variant_.system->SetAffineGuess(*guess); !set.ok())
      return Warn(ToStd(set.message()));
    variant_.resolve.calibrated_guess = true;
  }

  // Hash of the bytes; empty for no bytes.
  static absl::StatusOr<std::string> HashOf(std::string_view bytes) {
    return bytes.empty() ? std::string() : Sha256Hex(bytes);
  }

  absl::StatusOr<PlanKey> Key() const {
    const DeviceClass device = backend_.device_class();
    PlanKey key{.device_class = device.Name(),
                .device_bits = device.bits,
                .backend = std::string(backend_.name()),
                .build = kBuildId,
                .weights_sha256 = model_.weights_sha256,
                .num_steps = shape_.num_steps,
                .min_shooting_interval = variant_.resolve.min_shooting_interval,
                .iterative = variant_.resolve.iterative,
                .rtol = PlannerOptions{}.rtol};
    // The inputs that a model without its own is calibrated on belong to the build.
    const std::string_view calibration(
        reinterpret_cast<const char*>(model_.calibration_inputs.data()),
        model_.calibration_inputs.size() * sizeof(float));
    DEEPPCR_ASSIGN_OR_RETURN(key.config_sha256, HashOf(model_.config_json));
    DEEPPCR_ASSIGN_OR_RETURN(key.scheduler_sha256, HashOf(model_.scheduler_json));
    DEEPPCR_ASSIGN_OR_RETURN(key.calibration_sha256, HashOf(calibration));
    return key;
  }

  PlanSearch Search() const {
    return {
        .key = variant_.key,
        .mode = context_.options->plan_mode,
        .file = plans_,
        .loaded = context_.loaded,
        .cache_dir = context_.options->plan_cache_dir,
        .unfit = [this](const Plan& plan) { return UnfitChoice(plan, variant_.resolve); },
        .check =
            [this](Plan* plan) { return CheckPlan(*variant_.runner, inputs_, Planning(), plan); },
        .measure = [this] { return MeasurePlan(*variant_.runner, inputs_, Planning()); },
        .say = [this](LoadNews news, std::string_view text) { Say(text, news); }};
  }

  PlannerOptions Planning() const {
    const double seconds = kPlanSeconds / static_cast<double>(model_.systems.size());
    return {.max_batch_size = model_.config.max_batch_size,
            .calibrated_guess = variant_.resolve.calibrated_guess,
            .rates = rates_,
            .flops_in_all = seconds * rates_.flops_per_second,
            .seconds_of_timing = seconds,
            .token = context_.token,
            .progress = [this](std::string_view text) { Say(text); }};
  }

  const Model& model_;
  const SystemSpec& spec_;
  const SystemShape shape_;
  const int64_t max_bytes_;
  const PlanFile* const plans_;  // null: there is none
  const Backend& backend_;
  const CostRates& rates_;
  const LoadContext& context_;
  const CalibrationInputs inputs_;
  Variant variant_;
};

ModelInfo InfoOf(const Model& model, const Backend& backend, const std::vector<Variant>& variants) {
  const SystemShape shape = ShapeOf(model.systems.front());
  const ResolveContext& resolve = variants.front().resolve;
  ModelInfo info{.model_type = model.config.model_type,
                 .backend = std::string(backend.name()),
                 .on_gpu = backend.on_gpu(),
                 .input_dim = shape.input_dim,
                 .output_dim = shape.output_dim,
                 .state_dim = shape.state_dim,
                 .num_layers = shape.num_steps,
                 .max_batch_size = model.config.max_batch_size,
                 .min_shooting_interval = static_cast<int32_t>(resolve.min_shooting_interval),
                 .config_json = model.config_json,
                 .weights_sha256 = model.weights_sha256,
                 .labels = model.config.labels,
                 .num_classes = shape.num_classes};
  info.image_shape = model.config.image_shape;
  if (const auto* diffusion = std::get_if<DiffusionSpec>(&model.systems.front()))
    info.has_decoder = !diffusion->decoder.empty();
  for (const Variant& variant : variants) {
    info.memory_bytes += variant.system->memory_bytes() + variant.runner->memory_bytes();
    if (shape.draws_noise) info.num_inference_steps.push_back(variant.resolve.shape.num_steps);
  }
  for (const std::string_view name : SolverNames()) {
    if (SolverFits(name, resolve)) info.solvers.emplace_back(name);
  }
  return info;
}

// Plans of plan.json, if there is such a file and it can be read. A file that cannot be read is a
// problem, and an error where a plan is required.
absl::StatusOr<std::optional<PlanFile>> ParsePlans(const LoadContext& context) {
  if (!context.plan_json.has_value()) return std::nullopt;
  absl::StatusOr<PlanFile> file = PlanFile::Parse(*context.plan_json);
  if (file.ok()) return *std::move(file);
  const absl::Status status = WithContext(file.status(), kPlanFileName);
  if (context.options->plan_mode == PlanMode::kRequire) return status;
  if (context.progress) context.progress(LoadNews::kProblem, ToStd(status.message()));
  return std::nullopt;
}

absl::StatusOr<std::vector<Variant>> PrepareVariants(const Model& model, const PlanFile* plans,
                                                     const SelectedBackend& on,
                                                     const LoadContext& context) {
  std::vector<Variant> variants;
  int64_t left = kMaxCopies * context.options->max_model_bytes;
  for (const SystemSpec& spec : model.systems) {
    DEEPPCR_ASSIGN_OR_RETURN(Variant variant,
                             VariantPreparation(model, spec, left, plans, on, context).Run());
    left -= variant.system->memory_bytes();
    if (left < 0)
      return ResourceExhausted("the packed model takes more than ",
                               kMaxCopies * context.options->max_model_bytes,
                               " bytes; raise max_model_bytes, or name fewer num_inference_steps");
    variants.push_back(std::move(variant));
  }
  return variants;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const LoadedModel>> PrepareModel(const Model& model,
                                                                const LoadContext& context) {
  DEEPPCR_ASSIGN_OR_RETURN(const std::optional<PlanFile> plans, ParsePlans(context));
  absl::Status unfit = absl::UnimplementedError("there is no backend");
  for (const SelectedBackend& on : context.backends) {
    absl::StatusOr<std::vector<Variant>> variants =
        PrepareVariants(model, plans.has_value() ? &*plans : nullptr, on, context);
    if (absl::IsUnimplemented(variants.status())) {
      const std::string why =
          StrCat("the ", on.backend->name(),
                 " backend cannot run this model: ", ToStd(variants.status().message()));
      const bool last = &on == &context.backends.back();
      if (!last && context.progress) context.progress(LoadNews::kProblem, why);
      unfit = absl::UnimplementedError(why);
      continue;
    }
    DEEPPCR_RETURN_IF_ERROR(Watched(variants.status(), context.options->device_failed));
    ModelInfo info = InfoOf(model, *on.backend, *variants);
    return std::shared_ptr<const LoadedModel>(
        std::make_shared<LoadedModelImpl>(std::move(info), *std::move(variants), *context.options));
  }
  return unfit;
}

}  // namespace deeppcr
