// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_SYSTEM_CACHE_H_
#define DEEPPCR_KERNELS_SYSTEM_CACHE_H_

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/base/memory_budget.h"
#include "kernels/prepared_system.h"
#include "kernels/problem/system_key.h"

namespace deeppcr {

// Systems of a model that were made on demand. A system that somebody holds is never dropped, so
// that what is in memory is what the limit counts; of the others the least recently used goes
// first, to systems of other models too. Thread-safe.
class SystemCache final : public MemoryBudget::Cache {
 public:
  static constexpr int64_t kMaxSystems = 64;

  // At most max_bytes bytes of systems and their workspaces, and at most kMaxSystems. `budget`:
  // where the systems are counted too; may be null.
  explicit SystemCache(int64_t max_bytes, std::shared_ptr<MemoryBudget> budget = nullptr);
  ~SystemCache() override;
  SystemCache(const SystemCache&) = delete;
  SystemCache& operator=(const SystemCache&) = delete;

  // The system of this name, or null.
  std::shared_ptr<const PreparedSystem> Find(const SystemKey& key);

  // Adds a system, in the place of others where they do not fit together. Drops nothing if it
  // fails. Errors: kResourceExhausted if the system alone exceeds the limit, or while those in use
  // leave no room.
  absl::Status Add(std::shared_ptr<const PreparedSystem> system);

  // Drops what stands in the way of a system of so many bytes, before it takes them. Drops nothing
  // if it fails. Errors: those of Add.
  absl::Status MakeRoom(int64_t bytes);

  int64_t max_bytes() const { return max_bytes_; }
  // The bytes that a system could take without any other being dropped.
  int64_t spare_bytes() const { return max_bytes_ - memory_bytes(); }
  int64_t memory_bytes() const;

  int64_t UnusedBytes() const override;
  void Drop(int64_t bytes) override;

 private:
  using Systems = std::list<std::shared_ptr<const PreparedSystem>>;

  absl::Status CheckRoomLocked(int64_t bytes) const;
  // The systems that it drops, for their destruction outside the lock.
  absl::StatusOr<Systems> MakeRoomLocked(int64_t bytes);
  // The least recently used that nobody holds, while `more` is true of the bytes dropped so far.
  Systems DropWhileLocked(absl::FunctionRef<bool(int64_t dropped)> more);
  int64_t BytesLocked() const;

  const int64_t max_bytes_;
  const std::shared_ptr<MemoryBudget> budget_;
  mutable std::mutex mutex_;
  Systems systems_;  // the most recently used first
};

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_SYSTEM_CACHE_H_
