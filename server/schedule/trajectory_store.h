// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_SCHEDULE_TRAJECTORY_STORE_H_
#define DEEPPCR_SERVER_SCHEDULE_TRAJECTORY_STORE_H_

// Trajectories that stay on the server between a solve and requests for gradients along it.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/engine.h"
#include "server/observe/metrics.h"
#include "server/schedule/served_model.h"

namespace deeppcr {

// The states of a solve, with all that says whose they are.
struct KeptTrajectory {
  std::string model;
  int64_t version = 0;
  std::weak_ptr<ServedModel> served;  // does not keep the model
  std::string owner;                  // the caller's identity; empty where callers have none
  SystemKey system;                   // that solved it, which a way back goes through
  OwnedSampleInputs samples;
  std::vector<float> states;  // [n, L + 1, D]
};

struct TrajectoryStoreOptions {
  int64_t max_bytes = 0;  // of all that are kept; 0: none are
  std::chrono::milliseconds life{60000};
};

// Thread-safe. The oldest trajectories go where a new one finds no room. One that a request uses
// stays in memory until that is done: its bytes are the request's then.
class TrajectoryStore {
 public:
  // `metrics` outlives the store.
  TrajectoryStore(const TrajectoryStoreOptions& options, Metrics& metrics);
  ~TrajectoryStore();

  int64_t max_bytes() const { return options_.max_bytes; }

  // What a trajectory of these samples counts as: its states [n, L + 1, D], the samples themselves
  // and kEntryBytes.
  static int64_t BytesOf(const SampleInputs& samples, int64_t state_values);
  static constexpr int64_t kEntryBytes = 1024;
  static constexpr size_t kHandleDigits = 32;  // hexadecimal, of 128 random bits

  // Keeps a trajectory and returns its handle, of nothing where the model is gone already. Errors:
  // kResourceExhausted if it is larger than max_bytes; kInternal if the system has no random
  // numbers.
  absl::StatusOr<std::string> Keep(KeptTrajectory trajectory);

  // The trajectory with this handle, if this owner's, for a request to this model. Errors, without
  // the field's name: kInvalidArgument for no handle, or one of another model or version; kNotFound
  // if none is kept.
  absl::StatusOr<std::shared_ptr<const KeptTrajectory>> Find(
      std::string_view handle, const std::shared_ptr<ServedModel>& model,
      std::string_view owner) const;

  // Drops the trajectories of all models but these, and those of solves that still run on a model
  // of an earlier call as they come.
  void KeepOnly(std::span<const std::shared_ptr<ServedModel>> served);

 private:
  using Clock = std::chrono::steady_clock;
  struct Entry {
    std::string digest;  // of the handle
    std::shared_ptr<const KeptTrajectory> trajectory;
    int64_t bytes = 0;
    Clock::time_point end;
  };
  using Entries = std::list<Entry>;

  absl::Status Missing() const;
  void Take(Entries::iterator entry, TrajectoryDrop reason, Entries* dropped);
  void Sweep();

  const TrajectoryStoreOptions options_;
  Metrics& metrics_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  // The members below are guarded by mutex_.
  Entries entries_;  // the oldest first
  // By the SHA-256 of the handle: how long a comparison takes tells nothing about a handle.
  std::map<std::string, Entries::iterator, std::less<>> by_digest_;
  int64_t bytes_ = 0;
  std::vector<std::weak_ptr<ServedModel>> served_, gone_;  // gone_: of these, with solves at most
  bool stopping_ = false;
  std::thread sweeper_;
};

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_SCHEDULE_TRAJECTORY_STORE_H_
