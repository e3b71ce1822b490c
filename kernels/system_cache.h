// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_SYSTEM_CACHE_H_
#define DEEPPCR_KERNELS_SYSTEM_CACHE_H_

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>

#include "absl/status/status.h"
#include "kernels/prepared_system.h"
#include "kernels/problem/system_key.h"

namespace deeppcr {

// Systems of a model that were made on demand. A system that somebody holds is never dropped, so
// that what is in memory is what the limit counts; of the others the least recently used goes
// first. Thread-safe.
class SystemCache {
 public:
  static constexpr int64_t kMaxSystems = 64;

  // At most max_bytes bytes of systems and their workspaces, and at most kMaxSystems.
  explicit SystemCache(int64_t max_bytes) : max_bytes_(max_bytes) {}

  // The system of this name, or null.
  std::shared_ptr<const PreparedSystem> Find(const SystemKey& key);

  // Adds a system, in the place of others where they do not fit together. Drops nothing if it
  // fails. Errors: kResourceExhausted if the system alone exceeds the limit, or while those in use
  // leave no room.
  absl::Status Add(std::shared_ptr<const PreparedSystem> system);

  // The error that Add would give for a system of so many bytes now.
  absl::Status CheckRoom(int64_t bytes) const;

  int64_t max_bytes() const { return max_bytes_; }
  int64_t memory_bytes() const;

 private:
  absl::Status CheckRoomLocked(int64_t bytes) const;

  const int64_t max_bytes_;
  mutable std::mutex mutex_;
  std::list<std::shared_ptr<const PreparedSystem>> systems_;  // the most recently used first
};

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_SYSTEM_CACHE_H_
