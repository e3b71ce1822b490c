// SPDX-License-Identifier: Apache-2.0
#include "kernels/loaded_model.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/base/never_fits.h"
#include "kernels/base/status_context.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/model_parameters.h"
#include "kernels/plan/candidates.h"
#include "kernels/plan/plan_file.h"
#include "kernels/plan/rescaled_plan.h"
#include "kernels/prepared_system.h"
#include "kernels/resolve.h"
#include "kernels/system_cache.h"

namespace deeppcr {
namespace {

using Systems = std::vector<std::shared_ptr<const PreparedSystem>>;

int64_t PackedBytes(const Systems& systems) {
  int64_t bytes = 0;
  for (const auto& system : systems) bytes += system->packed_bytes();
  return bytes;
}

// See EngineOptions::max_unplanned_bytes.
int64_t UnplannedBytes(const Model& model, const EngineOptions& options) {
  if (options.max_unplanned_bytes >= 0) return options.max_unplanned_bytes;
  return std::max(kLeastUnplannedBytes, kUnplannedCopies * MemoryBytes(model));
}

// What a system made on demand is called in errors.
std::string NameOf(const SystemKey& key) {
  const std::string steps = StrCat(key.num_steps, " steps");
  const bool varied = key.guided || key.known || key.first_step > 0;
  return varied ? StrCat(steps, " with guidance, a beginning or known elements") : steps;
}

// Maker of systems that a load has made no plans for, and the systems that it made. Thread-safe.
class UnplannedSystems {
 public:
  // `backends`: the one that runs the model, and those that it leaves systems to.
  UnplannedSystems(Model model, std::span<const SelectedBackend> backends,
                   const LoadContext& context)
      : model_(Trimmed(std::move(model))),
        backends_(backends),
        options_(*context.options),
        pool_(*context.pool),
        budget_(context.budget),
        cache_(UnplannedBytes(model_, options_) - MemoryBytes(model_), budget_) {}

  std::shared_ptr<const PreparedSystem> Find(const SystemKey& key) const {
    return cache_.Find(key);
  }
  int64_t model_bytes() const { return MemoryBytes(model_); }
  int64_t memory_bytes() const { return model_bytes() + cache_.memory_bytes(); }

  // The system of this name with a plan made from that of the nearest of `planned`, or where
  // another backend runs it of `others`. One call at a time makes a system; the others wait, and
  // may find the system that they want then.
  absl::StatusOr<std::shared_ptr<const PreparedSystem>> Prepare(const SystemKey& key,
                                                                const Systems& planned,
                                                                const Systems& others,
                                                                const CancelToken* token) const {
    std::lock_guard lock(making_);
    if (auto made = cache_.Find(key)) return made;
    DEEPPCR_ASSIGN_OR_RETURN(
        const OwnedSystem owned,
        SystemOf(model_, key, {.max_weights_bytes = options_.max_model_bytes, .token = token}));
    const auto system = PrepareOnOne(key, owned.spec, planned, others, token);
    const absl::Status status = system.ok() ? cache_.Add(*system) : system.status();
    if (absl::IsResourceExhausted(status)) return WithContext(status, NameOf(key));
    DEEPPCR_RETURN_IF_ERROR(Watched(status, options_.device_failed));
    return system;
  }

 private:
  // The system on the first backend that has code for it, and what the key wants.
  absl::StatusOr<std::shared_ptr<const PreparedSystem>> PrepareOnOne(
      const SystemKey& key, const SystemSpec& spec, const Systems& planned, const Systems& others,
      const CancelToken* token) const {
    std::vector<int64_t> planned_steps;
    for (const auto& system : planned) planned_steps.push_back(system->num_steps());
    const size_t nearest = NearestSteps(planned_steps, ShapeOf(spec).num_steps);
    for (const SelectedBackend& on : backends_) {
      const bool last = &on == &backends_.back();
      // The first backend has a backward pass for all systems of the model, or for none.
      const bool first = &on == &backends_.front();
      if (key.backward && first && !last) continue;
      auto system = PrepareSystemLike(
          {.model = model_,
           .on = on,
           .options = options_,
           .pool = pool_,
           .token = token,
           .count = std::ssize(planned),
           .max_bytes = cache_.max_bytes(),
           .spare_bytes = cache_.spare_bytes(),
           .make_room = [&](int64_t bytes) { return cache_.MakeRoom(bytes); },
           .budget = budget_},
          spec,
          {.max_bytes = cache_.max_bytes(), .token = token, .advice = "raise max_unplanned_bytes"},
          key, first || others.empty() ? *planned[nearest] : *others[nearest]);
      if (last || !absl::IsUnimplemented(system.status())) return system;
    }
    return Internal("a model without a backend");
  }

  // The model without the tables that its systems were packed from.
  static Model Trimmed(Model model) {
    model.systems = {};
    model.diffusion.tables = {};
    return model;
  }

  const Model model_;
  const std::span<const SelectedBackend> backends_;
  const EngineOptions& options_;
  ThreadPool& pool_;
  const std::shared_ptr<MemoryBudget> budget_;
  mutable std::mutex making_;
  mutable SystemCache cache_;
};

class LoadedModelImpl final : public LoadedModel {
 public:
  // `others`: the same systems on another backend, or none. `unplanned` may be null: the model has
  // the planned systems and no others.
  LoadedModelImpl(ModelInfo info, Systems planned, Systems others,
                  std::unique_ptr<UnplannedSystems> unplanned,
                  std::shared_ptr<const ParameterModel> parameters, MemoryShare kept)
      : kept_(std::move(kept)),
        info_(std::move(info)),
        planned_(std::move(planned)),
        others_(std::move(others)),
        unplanned_(std::move(unplanned)),
        parameters_(std::move(parameters)) {}

  const ModelInfo& info() const override { return info_; }
  int64_t memory_bytes() const override {
    int64_t bytes = unplanned_ != nullptr ? unplanned_->memory_bytes() : 0;
    if (parameters_ != nullptr) bytes += MemoryBytes(*parameters_);
    for (const Systems* systems : {&planned_, &others_})
      for (const auto& system : *systems) bytes += system->memory_bytes();
    return bytes;
  }
  const Plan* PlanOf(const PlanKey& key) const override {
    for (const Systems* systems : {&planned_, &others_})
      for (const auto& system : *systems)
        if (system->key() == key) return &system->plan();
    return nullptr;
  }
  std::string PlanFileText() const override {
    PlanFile file;
    for (const Systems* systems : {&planned_, &others_})
      for (const auto& system : *systems) file.Add(system->key(), system->plan());
    return file.Text();
  }

  std::shared_ptr<const LoadedSystem> Find(const SystemKey& wanted, int64_t num_samples,
                                           std::string_view backend) const override {
    const SystemKey key = KeyOf(wanted);
    const auto found = std::ranges::find_if(planned_, [&](const auto& system) {
      return system->resolve().system == SystemKey(key.num_steps);
    });
    if (found != planned_.end() && SystemKey(key.num_steps) == WithoutBackward(key))
      return Choose(static_cast<size_t>(found - planned_.begin()), num_samples, backend);
    return unplanned_ != nullptr ? unplanned_->Find(key) : nullptr;
  }

  absl::StatusOr<std::shared_ptr<const LoadedSystem>> Prepare(
      const SystemKey& key, const CancelToken* token) const override {
    if (auto found = Find(key, 1, {})) return found;
    if (unplanned_ != nullptr) return unplanned_->Prepare(KeyOf(key), planned_, others_, token);
    if (!WithoutBackward(key).plain())
      return NeverFits(
          "the model leaves no memory for a system of guided or shortened "
          "steps; raise max_unplanned_bytes");
    const std::string known =
        StrJoin(planned_, ", ", [](const auto& system) { return StrCat(system->num_steps()); });
    return InvalidArgument("num_inference_steps: expected one of ", known, ", got ", key.num_steps);
  }

 private:
  static SystemKey WithoutBackward(SystemKey key) {
    key.backward = false;
    return key;
  }
  // The name with its number of steps, and without a wish that the first backend fulfils anyway.
  SystemKey KeyOf(SystemKey key) const {
    if (key.num_steps == 0) key.num_steps = planned_.front()->num_steps();
    if (planned_.front()->backward_limits() != nullptr) key.backward = false;
    return key;
  }

  // Of the systems of one number of steps, the one on this backend, or the one that is clearly
  // faster by its plan: clocks of a load decide no less. What is not measured is not faster.
  std::shared_ptr<const LoadedSystem> Choose(size_t i, int64_t num_samples,
                                             std::string_view backend) const {
    if (others_.empty()) return planned_[i];
    const auto seconds = [=](const PreparedSystem& of) {
      return of.plan().Lookup(num_samples).seconds();
    };
    const PreparedSystem &first = *planned_[i], &other = *others_[i];
    const bool faster = seconds(other) > 0 && kClearlyFaster * seconds(other) < seconds(first);
    const bool takes_other = backend.empty() ? faster : backend == other.resolve().backend;
    return takes_other ? others_[i] : planned_[i];
  }

  const MemoryShare kept_;  // of the weights as they were read
  const ModelInfo info_;
  const Systems planned_;  // the default first
  const Systems others_;   // in the same order; or empty
  const std::unique_ptr<UnplannedSystems> unplanned_;
  const std::shared_ptr<const ParameterModel> parameters_;  // which all systems share; may be null
};

// True if a packed system fits beside the weights that are kept for it.
bool MayAddSystems(const Model& model, const Systems& planned, const EngineOptions& options) {
  int64_t least = INT64_MAX;
  for (const auto& system : planned) least = std::min(least, system->packed_bytes());
  return UnplannedBytes(model, options) - MemoryBytes(model) > least;
}

// Why a model whose steps are a program has no parameters; empty where it has.
std::string WhyNoParameters(const Model& model, const EngineOptions& options) {
  if (options.gradients || ParameterFormOf(model) != ParameterForm::kNone)
    return model.no_parameters;
  return "it was loaded without its backward pass";
}

// Whether steps add noise, for some number of steps: the last step of a process seldom does, so
// that a process of one step says nothing.
bool MayDrawNoise(const Model& model) {
  const auto draws = [](const ReverseStep& step) { return step.sigma != 0; };
  return std::ranges::any_of(model.diffusion.tables, [&](const StepTables& tables) {
    return tables.steps.size() == 1 || std::ranges::any_of(tables.steps, draws);
  });
}

ModelInfo InfoOf(const Model& model, const Backend& backend, const Systems& systems,
                 const EngineOptions& options) {
  const SystemShape shape = ShapeOf(model.systems.front());
  const ResolveContext& resolve = systems.front()->resolve();
  ModelInfo info{.model_type = model.config.model_type,
                 .backend = std::string(backend.name()),
                 .on_gpu = backend.on_gpu(),
                 .input_dim = shape.input_dim,
                 .output_dim = shape.output_dim,
                 .state_dim = shape.state_dim,
                 .memory_dim = shape.memory_dim,
                 .num_layers = shape.num_steps,
                 .max_batch_size = model.config.max_batch_size,
                 .min_shooting_interval = static_cast<int32_t>(resolve.min_shooting_interval),
                 .config_json = model.config_json,
                 .weights_sha256 = model.weights_sha256,
                 .labels = model.config.labels,
                 .num_classes = shape.num_classes,
                 .has_null_class = model.config.null_class.has_value(),
                 .null_condition = model.config.null_condition,
                 .draws_step_noise = MayDrawNoise(model),
                 .has_decoder = shape.has_decoder,
                 .parameters = ParametersOf(model),
                 .parameter_form = ParameterFormOf(model),
                 .no_parameters = WhyNoParameters(model, options),
                 .parameter_bytes = systems.front()->parameter_bytes(),
                 .has_input_layer = shape.has_input_layer,
                 .image_shape = model.config.image_shape};
  if (model.max_num_steps > 0) {
    for (const auto& system : systems) info.num_inference_steps.push_back(system->num_steps());
    if (MayAddSystems(model, systems, options)) info.max_inference_steps = model.max_num_steps;
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

absl::StatusOr<Systems> PreparePlanned(const Model& model, const PlanFile* plans,
                                       const SelectedBackend& on, const LoadContext& context) {
  const SystemPreparation preparation{.model = model,
                                      .on = on,
                                      .options = *context.options,
                                      .pool = *context.pool,
                                      .progress = context.progress,
                                      .token = context.token,
                                      .count = std::ssize(model.systems),
                                      .budget = context.budget};
  Systems systems;
  const int64_t most = kMaxPackedCopies * context.options->max_model_bytes;
  for (const SystemSpec& spec : model.systems) {
    DEEPPCR_ASSIGN_OR_RETURN(auto system, PrepareSystem(preparation, spec,
                                                        {.max_bytes = most - PackedBytes(systems),
                                                         .token = context.token,
                                                         .advice = AdviceOnSize(model)},
                                                        plans, context.loaded));
    systems.push_back(std::move(system));
    if (PackedBytes(systems) > most)
      return ResourceExhausted("the packed model takes more than ", most, " bytes; ",
                               AdviceOnSize(model));
  }
  return systems;
}

// Why the backends before the one that runs a model do not.
struct PassedOver {
  BackendChoice choice = BackendChoice::kFirst;  // by the last of them
  std::string reason;
};

absl::StatusOr<std::shared_ptr<const LoadedModel>> Loaded(Model model, Systems planned,
                                                          Systems others, const SelectedBackend& on,
                                                          PassedOver passed_over,
                                                          const LoadContext& context) {
  ModelInfo info = InfoOf(model, *on.backend, planned, *context.options);
  if (!others.empty()) {
    info.other_backend = std::string(others.front()->resolve().backend);
    info.parameter_bytes = std::max(info.parameter_bytes, others.front()->parameter_bytes());
  }
  info.backend_choice = passed_over.choice;
  info.backend_reason = std::move(passed_over.reason);
  std::shared_ptr<const ParameterModel> parameters = model.parameters;
  std::unique_ptr<UnplannedSystems> unplanned;
  if (info.max_inference_steps > 0)
    unplanned = std::make_unique<UnplannedSystems>(
        std::move(model), context.backends.subspan(static_cast<size_t>(&on - &context.backends[0])),
        context);
  MemoryShare kept;
  if (context.reading != nullptr) {
    kept = std::move(*context.reading);
    int64_t bytes = unplanned == nullptr ? 0 : unplanned->model_bytes();
    if (parameters != nullptr) bytes += MemoryBytes(*parameters);
    DEEPPCR_RETURN_IF_ERROR(kept.Set(bytes));
  }
  return std::make_shared<const LoadedModelImpl>(std::move(info), std::move(planned),
                                                 std::move(others), std::move(unplanned),
                                                 std::move(parameters), std::move(kept));
}

// Why another backend has to run the model; nothing if the load has succeeded, or is over.
std::optional<PassedOver> WhyNot(const Backend& backend, const absl::Status& status) {
  const std::string_view message = ToStd(status.message());
  if (absl::IsDataLoss(status)) return PassedOver{BackendChoice::kSelfCheck, std::string(message)};
  if (absl::IsUnavailable(status))
    return PassedOver{BackendChoice::kSelfCheck,
                      StrCat("the device of the ", backend.name(), " backend failed: ", message)};
  if (!absl::IsUnimplemented(status)) return std::nullopt;
  return PassedOver{BackendChoice::kNoCode,
                    StrCat("the ", backend.name(), " backend cannot run this model: ", message)};
}

// The systems of a model on the next backend too, where it runs on a device that a small call may
// not be worth: its launches take longer than a small model takes on a CPU. None where there is no
// next one, or it has no code for the model.
absl::StatusOr<Systems> PrepareOthers(const Model& model, const PlanFile* plans,
                                      const SelectedBackend& on, const LoadContext& context) {
  const SelectedBackend* const next = &on + 1;
  if (on.oracles.empty() || next == context.backends.data() + context.backends.size())
    return Systems();
  absl::StatusOr<Systems> systems = PreparePlanned(model, plans, *next, context);
  if (systems.ok() || absl::IsCancelled(systems.status())) return systems;
  // The model is served, by the first alone.
  if (!absl::IsUnimplemented(systems.status()) && context.progress)
    context.progress(LoadNews::kProblem,
                     StrCat("not on the ", next->backend->name(),
                            " backend too: ", ToStd(systems.status().message())));
  return Systems();
}

}  // namespace

absl::StatusOr<std::shared_ptr<const LoadedModel>> PrepareModel(Model model,
                                                                const LoadContext& context) {
  DEEPPCR_ASSIGN_OR_RETURN(const std::optional<PlanFile> plans, ParsePlans(context));
  absl::Status unfit = absl::UnimplementedError("there is no backend");
  PassedOver passed_over;
  for (const SelectedBackend& on : context.backends) {
    absl::StatusOr<Systems> systems =
        PreparePlanned(model, plans.has_value() ? &*plans : nullptr, on, context);
    const bool last = &on == &context.backends.back();
    // Where no other backend can serve, a device that has failed is the server's business.
    if (last && absl::IsUnavailable(systems.status()))
      return Watched(systems.status(), context.options->device_failed);
    if (std::optional<PassedOver> why = WhyNot(*on.backend, systems.status())) {
      if (!last && context.progress) context.progress(LoadNews::kProblem, why->reason);
      unfit = absl::Status(systems.status().code(), why->reason);
      passed_over = {why->choice, StrCat(passed_over.reason, passed_over.reason.empty() ? "" : "; ",
                                         why->reason)};
      continue;
    }
    DEEPPCR_RETURN_IF_ERROR(Watched(systems.status(), context.options->device_failed));
    DEEPPCR_ASSIGN_OR_RETURN(
        Systems others, PrepareOthers(model, plans.has_value() ? &*plans : nullptr, on, context));
    return Loaded(std::move(model), *std::move(systems), std::move(others), on,
                  std::move(passed_over), context);
  }
  return unfit;
}

}  // namespace deeppcr
