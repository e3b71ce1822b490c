// SPDX-License-Identifier: Apache-2.0
#include "kernels/engine.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "kernels/backend/registry.h"
#include "kernels/base/control_group.h"
#include "kernels/base/file.h"
#include "kernels/base/memory_budget.h"
#include "kernels/base/status_context.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/base/thread_pool.h"
#include "kernels/loaded_model.h"
#include "kernels/model/model.h"
#include "kernels/model_check.h"
#include "kernels/plan/plan_file.h"
#include "kernels/plan/plan_json.h"
#include "kernels/problem/philox.h"
#include "kernels/solver/registry.h"

namespace deeppcr {
namespace {

int NumThreads(int wanted) { return wanted > 0 ? wanted : AvailableCores(); }

// Finds a cache that cannot be written at start; otherwise the plan would be measured anew every
// time.
absl::Status MakePlanCache(const std::string& directory) {
  if (directory.empty()) return absl::OkStatus();
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (!error && ::access(directory.c_str(), W_OK) != 0)
    error = std::error_code(errno, std::generic_category());
  if (!error) return absl::OkStatus();
  return InvalidArgument("plan_cache_dir: expected a directory that can be written, got ",
                         Quoted(directory), ": ", error.message());
}

template <class Rows>
std::vector<std::string_view> AutoAndNamesOf(const Rows& rows) {
  std::vector<std::string_view> names = {"auto"};
  for (const auto& row : rows) names.push_back(row.name);
  return names;
}

class EngineImpl final : public Engine {
 public:
  EngineImpl(EngineOptions options, SelectedBackends selected)
      : options_(std::move(options)),
        selected_(std::move(selected)),
        budget_(std::make_shared<MemoryBudget>(options_.max_memory_bytes)),
        pool_(NumThreads(options_.num_threads)) {}

  std::string_view backend() const override { return First().name(); }
  std::string_view device() const override { return First().device(); }
  std::string_view backend_reason() const override { return selected_.reason; }
  int64_t available_memory() const override { return budget_->Available(); }

  absl::StatusOr<std::shared_ptr<const LoadedModel>> LoadModel(
      const std::string& directory, const LoadProgress& progress, const CancelToken* token,
      std::span<const std::shared_ptr<const LoadedModel>> loaded) const override {
    if (progress) progress(LoadNews::kStep, "reading");
    MemoryShare reading(budget_);
    std::vector<std::string> notes;
    DEEPPCR_ASSIGN_OR_RETURN(Model model,
                             ReadModel(directory, {.max_weights_bytes = options_.max_model_bytes,
                                                   .token = token,
                                                   .memory = &reading,
                                                   .parameters = options_.gradients,
                                                   .notes = &notes}));
    int64_t bytes = MemoryBytes(model);
    if (model.parameters != nullptr) bytes += MemoryBytes(*model.parameters);
    DEEPPCR_RETURN_IF_ERROR(WithContext(reading.Set(bytes), directory));
    if (!model.no_parameters.empty())
      notes.push_back(StrCat("no gradients by parameters: ", model.no_parameters));
    for (const std::string& note : notes)
      if (progress) progress(LoadNews::kProblem, note);
    DEEPPCR_ASSIGN_OR_RETURN(std::optional<std::string> plan_json,
                             ReadPlanFile(directory, progress));
    return PrepareModel(std::move(model), {.backends = selected_.backends,
                                           .pool = &pool_,
                                           .options = &options_,
                                           .budget = budget_,
                                           .reading = &reading,
                                           .progress = progress,
                                           .token = token,
                                           .plan_json = std::move(plan_json),
                                           .loaded = loaded});
  }

 private:
  const Backend& First() const { return *selected_.backends.front().backend; }

  // Text of plan.json; nothing if there is no such file, or if it is not wanted. A file that cannot
  // be read is a problem like a plan that does not fit.
  absl::StatusOr<std::optional<std::string>> ReadPlanFile(const std::string& directory,
                                                          const LoadProgress& progress) const {
    if (options_.plan_mode == PlanMode::kMeasure) return std::nullopt;
    absl::StatusOr<std::string> text =
        ReadFile(StrCat(directory, "/", kPlanFileName), kMaxPlanBytes);
    if (absl::IsNotFound(text.status())) return std::nullopt;
    if (text.ok()) return *std::move(text);
    if (options_.plan_mode == PlanMode::kRequire) return text.status();
    if (progress) progress(LoadNews::kProblem, ToStd(text.status().message()));
    return std::nullopt;
  }

  const EngineOptions options_;
  const SelectedBackends selected_;
  const std::shared_ptr<MemoryBudget> budget_;
  mutable ThreadPool pool_;
};

}  // namespace

std::shared_ptr<const LoadedSystem> LoadedModel::FindFor(const SolveOptions& options,
                                                         const SystemKey& key,
                                                         int64_t num_samples) const {
  const bool open = options.solver == "auto" && options.shooting_interval == 0 &&
                    options.initial_guess == InitialGuess::kFromPlan;
  return Find(key, num_samples, open ? std::string_view() : info().backend);
}

std::shared_ptr<const LoadedSystem> LoadedModel::FindForGradients(const SolveOptions& options,
                                                                  const SystemKey& wanted,
                                                                  int64_t num_samples,
                                                                  bool by_parameters) const {
  SystemKey key = wanted;
  key.backward = true;
  const auto fits = [&](const LoadedSystem& system) {
    return by_parameters ? system.has_parameter_gradients() : system.backward_limits() != nullptr;
  };
  std::shared_ptr<const LoadedSystem> found = FindFor(options, key, num_samples);
  if (found == nullptr || fits(*found)) return found;
  for (const std::string_view backend : {info().backend, info().other_backend}) {
    if (backend.empty()) continue;
    std::shared_ptr<const LoadedSystem> other = Find(key, num_samples, backend);
    if (other != nullptr && fits(*other)) return other;
  }
  return found;
}

void DrawInitialNoise(uint64_t seed, uint64_t sample, std::span<float> noise) {
  FillNormals(seed, sample, kInitialNoiseStep, std::ssize(noise), noise.data());
}

void DrawStepNoise(uint64_t seed, uint64_t sample, int64_t step, std::span<float> noise) {
  FillNormals(seed, sample, static_cast<uint32_t>(step), std::ssize(noise), noise.data());
}

std::string_view ToString(BackendChoice choice) {
  switch (choice) {
    case BackendChoice::kFirst:
      return "first";
    case BackendChoice::kNoCode:
      return "no_code";
    case BackendChoice::kSelfCheck:
      return "self_check";
  }
  return "";
}

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(const EngineOptions& options) {
  DEEPPCR_RETURN_IF_ERROR(MakePlanCache(options.plan_cache_dir));
  DEEPPCR_ASSIGN_OR_RETURN(SelectedBackends selected, SelectBackends(options.backend));
  return std::unique_ptr<Engine>(std::make_unique<EngineImpl>(options, std::move(selected)));
}

std::span<const std::string_view> BackendNames() {
  static const auto names = AutoAndNamesOf(Backends());
  return names;
}

std::span<const std::string_view> SolverNames() {
  static const auto names = AutoAndNamesOf(Solvers());
  return names;
}

ModelCheck CheckModel(const std::string& directory, const EngineOptions& options) {
  ModelFilesReport report =
      CheckModelFiles(directory, {.max_weights_bytes = options.max_model_bytes});
  ModelCheck check = {std::move(report.problems), std::move(report.listing),
                      std::move(report.notes)};
  if (check.problems.empty()) check.problems = ProblemsOfSystems(report.model, options);
  return check;
}

}  // namespace deeppcr
