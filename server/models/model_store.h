// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_MODELS_MODEL_STORE_H_
#define DEEPPCR_SERVER_MODELS_MODEL_STORE_H_

// The store of models: reads the repository, loads and unloads, hands out shared models.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/engine.h"
#include "server/models/repository.h"  // CheckModelName, ParseVersion
#include "server/models/version_policy.h"
#include "server/observe/log.h"
#include "server/observe/metrics.h"
#include "server/schedule/batcher.h"

namespace deeppcr {

enum class ModelState : uint8_t { kLoading, kReady, kUnloading, kFailed };

struct ModelStatus {
  std::string name;
  int64_t version = 0;
  ModelState state = ModelState::kLoading;
  std::string reason;                     // why the last load failed, if it did
  std::shared_ptr<ServedModel> model;     // set while ready
  std::shared_ptr<ModelMetrics> metrics;  // null for a name that LoadAll refused
};

struct ModelStoreOptions {
  Repository repository;
  VersionPolicies versions;  // the versions that LoadAll loads
  // Readiness also where no model is ready, and where models have failed.
  bool allow_empty = false;
  bool allow_failed = false;
  // The time that Unload waits for requests in progress before it answers without them.
  std::chrono::milliseconds unload_patience{30000};
};

// Load, LoadAll and Unload are called by one thread at a time (they take seconds); everything else
// from any.
class ModelStore {
 public:
  // `engine`, `metrics` and `logger` outlive the store.
  ModelStore(ModelStoreOptions options, const Engine& engine, Metrics& metrics, Logger& logger);

  // Called after a model became ready or stopped being so, and after LoadAll. Set before the first
  // load.
  using Listener = std::function<void()>;
  void set_listener(Listener listener) { listener_ = std::move(listener); }

  // Tries a model before anybody can ask for it; an error fails the load, except that
  // kDeadlineExceeded, for want of time, is a warning. Set before the first load.
  using WarmUp = std::function<absl::Status(const std::shared_ptr<const LoadedModel>& model,
                                            const CancelToken& stop)>;
  void set_warm_up(WarmUp warm_up) { warm_up_ = std::move(warm_up); }

  // Loads the versions of every model in the repository that the policy chooses, the highest first.
  // A version that fails is logged and listed; the rest goes on. Errors: kNotFound if the
  // repository itself cannot be read.
  absl::Status LoadAll();

  // Loads a version (0: the highest on disk), or loads it again. A failed reload keeps the old one.
  // Where the policy keeps the latest versions, those below this one that it no longer keeps are
  // withdrawn; requests in progress end on them.
  // Errors: kInvalidArgument (name, version, contents), kNotFound, kFailedPrecondition (a symbolic
  // link, too large for the limits, cannot be read; with MissingBytes where the memory is others'),
  // kUnavailable (while stopping), kInternal. No error tells where the repository lies.
  absl::StatusOr<ModelStatus> Load(const std::string& name, int64_t version);

  // Withdraws a version (0: every one) and waits until the requests in progress have left it.
  // Version 0 also forgets a name that LoadAll refused. Errors: kInvalidArgument, kNotFound,
  // kFailedPrecondition (a version of a name that LoadAll refused).
  absl::Status Unload(const std::string& name, int64_t version);

  // The model to run a request on; version 0: the latest ready one.
  // Errors: kNotFound, kUnavailable (loading, unloading), kFailedPrecondition (its load failed;
  // says why).
  absl::StatusOr<std::shared_ptr<ServedModel>> Find(std::string_view name, int64_t version) const;

  // The status of a version, ready or not; version 0: the latest ready one, else the latest, else
  // (as version 0) a name that LoadAll refused.
  absl::StatusOr<ModelStatus> Describe(std::string_view name, int64_t version) const;

  // Engine::available_memory.
  int64_t available_memory() const { return engine_.available_memory(); }

  // All versions, by name, then number. Version 0: a name that LoadAll refused.
  std::vector<ModelStatus> List() const;

  // Models and versions that the last LoadAll chose and that are missing, in a few words each; not
  // those that Load has repaired or Unload has dropped since. Where the latest versions of a model
  // are wanted, one counts as there if a higher one is ready that was not chosen. A store without
  // any ready model says so.
  std::vector<std::string> Missing() const;
  bool Ready() const { return Missing().empty(); }

  // Stops loading, soon; for shutdown.
  void Stop() {
    stopped_.store(true);
    stop_.Cancel();
  }

 private:
  struct Entry {
    ModelState state = ModelState::kLoading;
    std::string reason;
    bool required = false;  // chosen by LoadAll: readiness waits for it
    std::shared_ptr<ServedModel> model;
    // Kept here so that requests for a version that failed count under its name.
    std::shared_ptr<ModelMetrics> metrics;
  };
  using Versions = std::map<int64_t, Entry>;

  absl::StatusOr<std::vector<std::string>> ScanRepository();
  std::vector<std::shared_ptr<const LoadedModel>> LoadedVersions(const std::string& name) const;
  absl::StatusOr<std::shared_ptr<ServedModel>> Read(const std::string& name, int64_t version);
  absl::StatusOr<ModelStatus> LoadVersion(const std::string& name, int64_t version, bool required);
  void Begin(const std::string& name, int64_t version, bool required);
  ModelStatus Publish(const std::string& name, int64_t version,
                      absl::StatusOr<std::shared_ptr<ServedModel>> loaded);
  std::vector<std::weak_ptr<ServedModel>> Withdraw(Versions& versions, int64_t version);
  void Erase(const std::string& name, int64_t version);
  void Retire(const std::string& name, int64_t version);
  std::vector<std::string> WithThoseOfRules(std::vector<std::string> names) const;
  absl::StatusOr<std::vector<int64_t>> ChooseVersions(const std::string& name) const;
  void ForgetRequired();
  void LogFailure(const std::string& name, int64_t version, const absl::Status& status) const;
  void RecordScanError(const std::string& name, const absl::Status& status);
  void Notify() const;
  const Entry* FindEntry(std::string_view name, int64_t version, int64_t* found) const;
  absl::Status NotFound(std::string_view name, int64_t version) const;

  const ModelStoreOptions options_;
  const Engine& engine_;
  Metrics& metrics_;
  Logger& logger_;
  Listener listener_;
  WarmUp warm_up_;
  std::atomic<bool> stopped_{false};
  CancelToken stop_;  // stops loads

  mutable std::mutex mutex_;
  std::map<std::string, Versions, std::less<>> models_;
  // The reasons why LoadAll made no entry for a name of the repository, by name.
  std::map<std::string, std::string, std::less<>> scan_errors_;
  bool scanned_ = false;
};

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_MODELS_MODEL_STORE_H_
