// SPDX-License-Identifier: Apache-2.0
#include "kernels/system_cache.h"

#include <algorithm>
#include <utility>

#include "kernels/base/never_fits.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"

namespace deeppcr {
namespace {

// True if the cache alone holds the system. Another holder can only come from Find, under the lock
// of the caller.
bool Unused(const std::shared_ptr<const PreparedSystem>& system) { return system.use_count() == 1; }

}  // namespace

SystemCache::SystemCache(int64_t max_bytes, std::shared_ptr<MemoryBudget> budget)
    : max_bytes_(max_bytes), budget_(std::move(budget)) {
  if (budget_ != nullptr) budget_->Add(this);
}

SystemCache::~SystemCache() {
  if (budget_ != nullptr) budget_->Remove(this);
}

std::shared_ptr<const PreparedSystem> SystemCache::Find(const SystemKey& key) {
  std::lock_guard lock(mutex_);
  const auto found = std::ranges::find_if(
      systems_, [&](const auto& system) { return system->resolve().system == key; });
  if (found == systems_.end()) return nullptr;
  systems_.splice(systems_.begin(), systems_, found);
  return systems_.front();
}

absl::Status SystemCache::MakeRoom(int64_t bytes) {
  absl::StatusOr<Systems> dropped;  // destroyed outside the lock
  std::lock_guard lock(mutex_);
  dropped = MakeRoomLocked(bytes);
  return dropped.status();
}

absl::Status SystemCache::CheckRoomLocked(int64_t bytes) const {
  if (bytes > max_bytes_)
    return NeverFits("expected at most ", max_bytes_,
                     " bytes, which are left of max_unplanned_bytes, got ", bytes, "; raise it");
  int64_t in_use = 0, bytes_in_use = 0;
  for (const auto& other : systems_) {
    if (Unused(other)) continue;
    ++in_use;
    bytes_in_use += other->memory_bytes();
  }
  if (in_use < kMaxSystems && bytes_in_use + bytes <= max_bytes_) return absl::OkStatus();
  return ResourceExhausted("requests in progress use ", in_use, " others with ", bytes_in_use,
                           " bytes; this one needs ", bytes, ", the limit is ", max_bytes_,
                           ". Try again later");
}

absl::StatusOr<SystemCache::Systems> SystemCache::MakeRoomLocked(int64_t bytes) {
  DEEPPCR_RETURN_IF_ERROR(CheckRoomLocked(bytes));
  const int64_t all = bytes + BytesLocked();
  return DropWhileLocked([&](int64_t dropped) {
    return all - dropped > max_bytes_ || std::ssize(systems_) >= kMaxSystems;
  });
}

SystemCache::Systems SystemCache::DropWhileLocked(absl::FunctionRef<bool(int64_t)> more) {
  Systems dropped;
  int64_t bytes = 0;
  for (auto oldest = systems_.end(); oldest != systems_.begin() && more(bytes);) {
    --oldest;
    if (!Unused(*oldest)) continue;
    bytes += (*oldest)->memory_bytes();
    const auto next = std::next(oldest);
    dropped.splice(dropped.end(), systems_, oldest);
    oldest = next;
  }
  return dropped;
}

int64_t SystemCache::UnusedBytes() const {
  std::lock_guard lock(mutex_);
  int64_t bytes = 0;
  for (const auto& system : systems_) bytes += Unused(system) ? system->memory_bytes() : 0;
  return bytes;
}

void SystemCache::Drop(int64_t bytes) {
  Systems dropped;  // destroyed outside the lock
  std::lock_guard lock(mutex_);
  dropped = DropWhileLocked([&](int64_t so_far) { return so_far < bytes; });
}

absl::Status SystemCache::Add(std::shared_ptr<const PreparedSystem> system) {
  absl::StatusOr<Systems> dropped;  // destroyed outside the lock
  std::lock_guard lock(mutex_);
  dropped = MakeRoomLocked(system->memory_bytes());
  DEEPPCR_RETURN_IF_ERROR(dropped.status());
  systems_.push_front(std::move(system));
  return absl::OkStatus();
}

int64_t SystemCache::memory_bytes() const {
  std::lock_guard lock(mutex_);
  return BytesLocked();
}

int64_t SystemCache::BytesLocked() const {
  int64_t bytes = 0;
  for (const auto& system : systems_) bytes += system->memory_bytes();
  return bytes;
}

}  // namespace deeppcr
