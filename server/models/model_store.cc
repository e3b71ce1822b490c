// SPDX-License-Identifier: Apache-2.0
#include "server/models/model_store.h"

#include <malloc.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <set>
#include <string_view>
#include <system_error>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "server/models/repository.h"
#include "server/models/serving_file.h"

namespace deeppcr {
namespace {

// The plan of every system that was made at load, which lives as long as the model.
std::vector<const Plan*> PlansOf(const LoadedModel& model) {
  std::vector<const Plan*> plans;
  for (const int64_t steps : model.info().num_inference_steps)
    plans.push_back(&model.Find(steps)->plan());
  if (plans.empty()) plans.push_back(&model.Find()->plan());
  return plans;
}

// Seconds that measuring the model's plans took; 0 if none was measured.
double MeasuringSeconds(const LoadedModel& model) {
  double seconds = 0;
  for (const Plan* plan : PlansOf(model))
    seconds += plan->source == PlanSource::kMeasured ? plan->measured_seconds : 0;
  return seconds;
}

// The sources of the plans, each once: "file", "file, measured".
std::string PlanSources(const LoadedModel& model) {
  std::set<std::string_view> sources;
  for (const Plan* plan : PlansOf(model)) sources.insert(ToString(plan->source));
  return StrJoin(sources, ", ", [](std::string_view source) { return std::string(source); });
}

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// glibc keeps freed weights and measuring buffers in the heap of whichever thread freed them, so
// that each load and unload would leave its mark on the resident size. Memory that the last request
// of a replaced model frees later is given back with the next load.
void GiveFreedMemoryBack() { malloc_trim(0); }

std::string_view WhyMissing(ModelState state) {
  return state == ModelState::kLoading ? " is being loaded" : " has failed";
}

}  // namespace

ModelStore::ModelStore(ModelStoreOptions options, const Engine& engine, Metrics& metrics,
                       Logger& logger)
    : options_(std::move(options)), engine_(engine), metrics_(metrics), logger_(logger) {}

absl::StatusOr<std::vector<std::string>> ModelStore::ScanRepository() {
  std::error_code error;
  const std::vector<std::string> entries = options_.repository.Entries(error);
  if (error) {
    return absl::NotFoundError(StrCat("model repository '", options_.repository.text(),
                                      "' cannot be read: ", error.message()));
  }
  std::vector<std::string> names;
  for (const std::string& entry : entries) {
    std::error_code ignored;
    const std::filesystem::file_status status = options_.repository.StatusOf(entry, ignored);
    // Hidden entries and files (a README, a .git) are not models.
    if (entry.front() == '.' || std::filesystem::is_regular_file(status)) continue;
    if (absl::Status valid = CheckModelName(entry); !valid.ok()) {
      // No request could name it: lost+found and its like are not failed models.
      logger_.Log(LogLevel::kWarn, "directory_ignored",
                  {{"name", entry}, {"reason", ToStd(valid.message())}});
    } else if (std::filesystem::is_symlink(status)) {
      RecordScanError(entry, absl::FailedPreconditionError("is a symbolic link"));
    } else {
      names.push_back(entry);
    }
  }
  return names;
}

absl::Status ModelStore::LoadAll() {
  absl::StatusOr<std::vector<std::string>> names = ScanRepository();
  if (!names.ok()) return names.status();
  ForgetRequired();
  std::vector<std::pair<std::string, int64_t>> found;
  for (const std::string& name : WithThoseOfRules(*std::move(names))) {
    absl::StatusOr<std::vector<int64_t>> versions = ChooseVersions(name);
    if (!versions.ok()) {
      RecordScanError(name, versions.status());
      continue;
    }
    for (auto version = versions->rbegin(); version != versions->rend(); ++version) {
      found.emplace_back(name, *version);
      Begin(name, *version, true);
    }
  }
  for (const auto& [name, version] : found) {
    if (stopped_.load()) return absl::OkStatus();
    // A failure is in the entry and in the log.
    LoadVersion(name, version, true).IgnoreError();
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    scanned_ = true;
  }
  Notify();
  return absl::OkStatus();
}

// Adds the models that --versions names, unless they were refused already: a misspelt name must not
// be passed over.
std::vector<std::string> ModelStore::WithThoseOfRules(std::vector<std::string> names) const {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const std::string& name : options_.versions.Models()) {
    if (std::ranges::count(names, name) == 0 && !scan_errors_.contains(name)) names.push_back(name);
  }
  return names;
}

absl::StatusOr<std::vector<int64_t>> ModelStore::ChooseVersions(const std::string& name) const {
  const VersionPolicy& policy = options_.versions.For(name);
  const auto on_disk = options_.repository.VersionsOf(name);
  // The load of each version says that it is not there.
  if (absl::IsNotFound(on_disk.status()) && !policy.specific.empty()) return policy.specific;
  DEEPPCR_RETURN_IF_ERROR(on_disk.status());
  return policy.Choose(*on_disk);
}

void ModelStore::ForgetRequired() {
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto& [name, versions] : models_) {
    for (auto& [version, entry] : versions) entry.required = false;
  }
}

void ModelStore::RecordScanError(const std::string& name, const absl::Status& status) {
  logger_.Log(LogLevel::kError, "model_refused",
              {{"model", name}, {"reason", ToStd(status.message())}});
  std::lock_guard<std::mutex> lock(mutex_);
  scan_errors_[name] = std::string(status.message());
}

// The loaded versions, whose plans a load of the same weights takes over.
std::vector<std::shared_ptr<const LoadedModel>> ModelStore::LoadedVersions(
    const std::string& name) const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<std::shared_ptr<const LoadedModel>> loaded;
  const auto found = models_.find(name);
  if (found == models_.end()) return loaded;
  for (const auto& [version, entry] : found->second) {
    if (entry.model != nullptr) loaded.push_back(entry.model->model);
  }
  return loaded;
}

absl::StatusOr<std::shared_ptr<ServedModel>> ModelStore::Read(const std::string& name,
                                                              int64_t version) {
  DEEPPCR_RETURN_IF_ERROR(options_.repository.CheckVersion(name, version));
  DEEPPCR_ASSIGN_OR_RETURN(const ServingSettings serving,
                           ReadServingFile(options_.repository.FolderOf(name), name));
  const std::string place = StrCat(name, "/", version);
  const std::string directory = options_.repository.FolderOf(name, version).string();
  const Clock::time_point start = Clock::now();
  const auto progress = [&](LoadNews news, std::string_view text) {
    const bool problem = news == LoadNews::kProblem;
    logger_.Log(problem ? LogLevel::kWarn : LogLevel::kInfo,
                problem ? "model_load_problem" : "model_loading",
                {{"model", name}, {"version", version}, {problem ? "reason" : "step", text}});
  };
  auto loaded = engine_.LoadModel(directory, progress, &stop_, LoadedVersions(name));
  if (absl::IsCancelled(loaded.status()))
    return absl::UnavailableError("the server is shutting down");
  DEEPPCR_RETURN_IF_ERROR(AsLoadError(loaded.status(), directory, place));
  DEEPPCR_ASSIGN_OR_RETURN(std::shared_ptr<const LoadedModel> model, std::move(loaded));
  if (warm_up_) {
    progress(LoadNews::kStep, "warming up");
    const absl::Status warm = warm_up_(model, stop_);
    if (stopped_.load()) return absl::UnavailableError("the server is shutting down");
    if (absl::IsDeadlineExceeded(warm)) {
      progress(LoadNews::kProblem, ToStd(warm.message()));
    } else {
      DEEPPCR_RETURN_IF_ERROR(AsLoadError(warm, directory, place));
    }
  }
  std::shared_ptr<ModelMetrics> metrics = metrics_.ForModel(name, version);
  ObserveFinite(*metrics->load_seconds, SecondsSince(start));
  ObserveFinite(*metrics->plan_seconds, MeasuringSeconds(*model));
  return std::make_shared<ServedModel>(name, version, std::move(model), std::move(metrics),
                                       serving);
}

void ModelStore::Begin(const std::string& name, int64_t version, bool required) {
  std::shared_ptr<ModelMetrics> metrics = metrics_.ForModel(name, version);
  std::lock_guard<std::mutex> lock(mutex_);
  Entry& entry = models_[name][version];
  entry.metrics = std::move(metrics);
  entry.required = entry.required || required;
  if (entry.model != nullptr) return;  // the old model serves on
  entry.state = ModelState::kLoading;
  entry.reason.clear();
}

ModelStatus ModelStore::Publish(const std::string& name, int64_t version,
                                absl::StatusOr<std::shared_ptr<ServedModel>> loaded) {
  std::shared_ptr<ServedModel> replaced;  // destroyed outside the lock
  std::lock_guard<std::mutex> lock(mutex_);
  Entry& entry = models_[name][version];
  if (loaded.ok()) {
    replaced = std::exchange(entry.model, *std::move(loaded));
    entry.state = ModelState::kReady;
    entry.reason.clear();
    scan_errors_.erase(name);
    const LoadedModel& model = *entry.model->model;
    entry.model->metrics->memory_bytes->Set(static_cast<double>(model.memory_bytes()));
    entry.model->metrics->SetBackend(model.info().backend, ToString(model.info().backend_choice));
  } else if (entry.model != nullptr) {
    entry.reason = StrCat("reload failed, the older load serves on: ", loaded.status().message());
  } else {
    entry.state = ModelState::kFailed;
    entry.reason = std::string(loaded.status().message());
  }
  return ModelStatus{name, version, entry.state, entry.reason, entry.model, entry.metrics};
}

void ModelStore::LogFailure(const std::string& name, int64_t version,
                            const absl::Status& status) const {
  logger_.Log(LogLevel::kError, "model_load_failed",
              {{"model", name}, {"version", version}, {"reason", ToStd(status.message())}});
}

absl::StatusOr<ModelStatus> ModelStore::LoadVersion(const std::string& name, int64_t version,
                                                    bool required) {
  Begin(name, version, required);
  const Clock::time_point start = Clock::now();
  absl::StatusOr<std::shared_ptr<ServedModel>> loaded = Read(name, version);
  const absl::Status status = loaded.status();
  ModelStatus result = Publish(name, version, std::move(loaded));
  Notify();
  GiveFreedMemoryBack();
  if (!status.ok()) {
    if (!stopped_.load()) metrics_.CountLoadFailure();
    LogFailure(name, version, status);
    return status;
  }
  const Plan& plan = result.model->model->Find()->plan();
  const ModelInfo& info = result.model->model->info();
  logger_.Log(LogLevel::kInfo, "model_ready",
              {{"model", name},
               {"version", version},
               {"seconds", SecondsSince(start)},
               {"backend", info.backend},
               {"backend_reason", info.backend_reason},
               {"device", plan.device},
               {"plan", plan.id},
               {"plan_source", PlanSources(*result.model->model)}});
  return result;
}

absl::StatusOr<ModelStatus> ModelStore::Load(const std::string& name, int64_t version) {
  DEEPPCR_RETURN_IF_ERROR(CheckModelName(name));
  if (version < 0) {
    return InvalidArgument("version: expected 0 (the highest) or a positive integer, got ",
                           version);
  }
  if (version == 0) {
    DEEPPCR_ASSIGN_OR_RETURN(version, options_.repository.LatestVersion(name));
  }
  // The check comes before an entry is made: a name that is nowhere must not leave a trace.
  if (const absl::Status there = options_.repository.CheckVersion(name, version); !there.ok()) {
    LogFailure(name, version, there);
    return there;
  }
  absl::StatusOr<ModelStatus> loaded = LoadVersion(name, version, false);
  if (loaded.ok()) Retire(name, version);
  return loaded;
}

// Withdraws versions that this one has superseded. Its own count, and not higher ones: who loads an
// older version again wants it beside the newer.
void ModelStore::Retire(const std::string& name, int64_t version) {
  const VersionPolicy& policy = options_.versions.For(name);
  if (!policy.of_latest()) return;
  std::vector<int64_t> superseded;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    Versions& versions = models_[name];
    int64_t kept = 0;
    for (auto each = std::make_reverse_iterator(versions.upper_bound(version));
         each != versions.rend(); ++each) {
      if (kept >= policy.latest) superseded.push_back(each->first);
      kept += each->second.model != nullptr ? 1 : 0;
    }
    for (const int64_t each : superseded) Withdraw(versions, each);
  }
  if (superseded.empty()) return;
  Notify();
  for (const int64_t each : superseded) {
    Erase(name, each);
    logger_.Log(LogLevel::kInfo, "model_retired",
                {{"model", name}, {"version", each}, {"superseded_by", version}});
  }
  GiveFreedMemoryBack();
}

std::vector<std::weak_ptr<ServedModel>> ModelStore::Withdraw(Versions& versions, int64_t version) {
  std::vector<std::weak_ptr<ServedModel>> withdrawn;
  for (auto& [each, entry] : versions) {
    if (version != 0 && each != version) continue;
    entry.state = ModelState::kUnloading;
    entry.required = false;
    if (entry.model == nullptr) continue;
    entry.model->metrics->memory_bytes->Set(0);
    withdrawn.emplace_back(std::exchange(entry.model, nullptr));
  }
  return withdrawn;
}

void ModelStore::Erase(const std::string& name, int64_t version) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = models_.find(name);
  if (found == models_.end()) return;
  std::erase_if(found->second, [&](const auto& entry) {
    return entry.second.state == ModelState::kUnloading && (version == 0 || entry.first == version);
  });
  if (found->second.empty()) models_.erase(found);
}

absl::Status ModelStore::Unload(const std::string& name, int64_t version) {
  DEEPPCR_RETURN_IF_ERROR(CheckModelName(name));
  std::vector<std::weak_ptr<ServedModel>> withdrawn;
  std::vector<int64_t> versions;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    // A name that the scan refused holds nothing but its place in the list.
    const bool refused = version == 0 && scan_errors_.erase(name) > 0;
    const auto found = models_.find(name);
    const bool known = found != models_.end() && (version == 0 || found->second.contains(version));
    if (!known && !refused) return NotFound(name, version);
    if (known) {
      for (const auto& [each, entry] : found->second)
        if (version == 0 || each == version) versions.push_back(each);
      withdrawn = Withdraw(found->second, version);
    }
  }
  Notify();
  const Clock::time_point patience = Clock::now() + options_.unload_patience;
  const auto in_use = [](const std::weak_ptr<ServedModel>& model) { return !model.expired(); };
  while (std::any_of(withdrawn.begin(), withdrawn.end(), in_use) && Clock::now() < patience &&
         !stopped_.load()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  Erase(name, version);
  Notify();
  GiveFreedMemoryBack();
  for (const int64_t each : versions)
    logger_.Log(LogLevel::kInfo, "model_unloaded", {{"model", name}, {"version", each}});
  return absl::OkStatus();
}

void ModelStore::Notify() const {
  if (listener_) listener_();
}

// Says why there is no entry for this name or version. The caller holds mutex_.
absl::Status ModelStore::NotFound(std::string_view name, int64_t version) const {
  if (const auto refused = scan_errors_.find(name); refused != scan_errors_.end()) {
    return absl::FailedPreconditionError(
        StrCat("model '", name, "' failed to load: ", refused->second));
  }
  if (version == 0) return absl::NotFoundError(StrCat("model '", name, "' is not loaded"));
  return absl::NotFoundError(StrCat("model '", name, "' version ", version, " is not loaded"));
}

// Finds the entry of a version; 0: the latest ready one, else the latest. The caller holds mutex_.
const ModelStore::Entry* ModelStore::FindEntry(std::string_view name, int64_t version,
                                               int64_t* found) const {
  const auto model = models_.find(name);
  if (model == models_.end() || model->second.empty()) return nullptr;
  const Versions& versions = model->second;
  auto best = versions.end();
  if (version != 0) {
    best = versions.find(version);
    if (best == versions.end()) return nullptr;
  } else {
    for (auto it = versions.begin(); it != versions.end(); ++it) {
      const bool ready = it->second.model != nullptr;
      if (best == versions.end() || ready || best->second.model == nullptr) best = it;
    }
  }
  *found = best->first;
  return &best->second;
}

absl::StatusOr<std::shared_ptr<ServedModel>> ModelStore::Find(std::string_view name,
                                                              int64_t version) const {
  std::lock_guard<std::mutex> lock(mutex_);
  int64_t found = 0;
  const Entry* entry = FindEntry(name, version, &found);
  if (entry == nullptr) return NotFound(name, version);
  if (entry->model != nullptr) return entry->model;
  const std::string what = StrCat("model '", name, "' version ", found);
  if (entry->state == ModelState::kFailed) {
    return absl::FailedPreconditionError(StrCat(what, " failed to load: ", entry->reason));
  }
  return absl::UnavailableError(StrCat(
      what, entry->state == ModelState::kLoading ? " is being loaded" : " is being unloaded"));
}

absl::StatusOr<ModelStatus> ModelStore::Describe(std::string_view name, int64_t version) const {
  std::lock_guard<std::mutex> lock(mutex_);
  int64_t found = 0;
  const Entry* entry = FindEntry(name, version, &found);
  if (entry == nullptr && version == 0 && scan_errors_.contains(name)) {
    return ModelStatus{.name = std::string(name),
                       .state = ModelState::kFailed,
                       .reason = scan_errors_.find(name)->second};
  }
  if (entry == nullptr) return NotFound(name, version);
  return ModelStatus{std::string(name), found,        entry->state,
                     entry->reason,     entry->model, entry->metrics};
}

std::vector<ModelStatus> ModelStore::List() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<ModelStatus> list;
  for (const auto& [name, versions] : models_) {
    for (const auto& [version, entry] : versions) {
      list.push_back({name, version, entry.state, entry.reason, entry.model, entry.metrics});
    }
  }
  for (const auto& [name, reason] : scan_errors_) {
    list.push_back({.name = name, .state = ModelState::kFailed, .reason = reason});
  }
  std::sort(list.begin(), list.end(), [](const ModelStatus& a, const ModelStatus& b) {
    return std::tie(a.name, a.version) < std::tie(b.name, b.version);
  });
  return list;
}

std::vector<std::string> ModelStore::Missing() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<std::string> missing;
  bool any = options_.allow_empty;
  if (!scanned_) missing.emplace_back("the models have not all been looked at yet");
  for (const auto& [name, reason] : scan_errors_) {
    if (!options_.allow_failed) missing.push_back(StrCat(name, " was refused"));
  }
  for (const auto& [name, versions] : models_) {
    any = any || std::ranges::any_of(
                     versions, [](const auto& entry) { return entry.second.model != nullptr; });
    const bool latest = options_.versions.For(name).of_latest();
    // Highest first: a ready version that came later makes up for the failed ones below it.
    for (auto it = versions.rbegin(); it != versions.rend(); ++it) {
      const auto& [version, entry] = *it;
      if (latest && entry.model != nullptr && !entry.required) break;
      const bool wanted =
          entry.required && !(options_.allow_failed && entry.state == ModelState::kFailed);
      if (entry.model == nullptr && wanted)
        missing.push_back(StrCat(name, "/", version, WhyMissing(entry.state)));
    }
  }
  if (!any && missing.empty()) missing.emplace_back("no model is ready");
  return missing;
}

}  // namespace deeppcr
