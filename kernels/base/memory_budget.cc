// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/memory_budget.h"

#include <algorithm>
#include <functional>
#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "kernels/base/never_fits.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"

namespace deeppcr {
namespace {

constexpr char kMissingUrl[] = "deeppcr/missing_bytes";

}  // namespace

bool MemoryBudget::TakeFree(int64_t bytes) {
  int64_t used = used_.load();
  while (bytes <= limit_ - used) {
    if (used_.compare_exchange_weak(used, used + bytes)) return true;
  }
  return false;
}

absl::Status MemoryBudget::Take(int64_t bytes, int64_t own) {
  if (TakeFree(bytes)) return absl::OkStatus();
  const int64_t all = own + bytes;
  if (all > limit_)
    return NeverFits("takes ", all, " bytes; the memory of this process leaves ", limit_,
                     " to models");
  std::lock_guard lock(mutex_);
  // Systems come into use and out of it meanwhile: each cache is asked once.
  std::vector<std::pair<int64_t, Cache*>> unused;
  int64_t could_be_free = free();
  for (Cache* cache : caches_) {
    unused.emplace_back(cache->UnusedBytes(), cache);
    could_be_free += unused.back().first;
  }
  // Who has most gives most, and nobody where all is not enough.
  if (bytes <= could_be_free) {
    std::ranges::sort(unused, std::greater());
    for (const auto& [unused_bytes, cache] : unused) {
      cache->Drop(bytes - std::max<int64_t>(0, free()));
      if (TakeFree(bytes)) return absl::OkStatus();
    }
  }
  absl::Status status = ResourceExhausted("takes ", all, " bytes beside ", used() - own,
                                          " that are in use; the memory of this process leaves ",
                                          limit_, " to models");
  const int64_t missing = std::max<int64_t>(1, bytes - could_be_free);
  status.SetPayload(kMissingUrl, absl::Cord(StrCat(missing)));
  return status;
}

int64_t MemoryBudget::Available() const {
  std::lock_guard lock(mutex_);
  int64_t bytes = free();
  for (const Cache* cache : caches_) bytes += cache->UnusedBytes();
  return std::max<int64_t>(0, bytes);
}

void MemoryBudget::Add(Cache* cache) {
  std::lock_guard lock(mutex_);
  caches_.push_back(cache);
}

void MemoryBudget::Remove(Cache* cache) {
  std::lock_guard lock(mutex_);
  std::erase(caches_, cache);
}

int64_t MissingBytes(const absl::Status& status) {
  const auto payload = status.GetPayload(kMissingUrl);
  int64_t bytes = 0;
  return payload.has_value() && absl::SimpleAtoi(std::string(*payload), &bytes) ? bytes : 0;
}

absl::Status MemoryShare::Set(int64_t bytes) {
  if (budget_ == nullptr) return absl::OkStatus();
  if (bytes > bytes_) {
    DEEPPCR_RETURN_IF_ERROR(budget_->Take(bytes - bytes_, bytes_));
  } else {
    budget_->Return(bytes_ - bytes);
  }
  bytes_ = bytes;
  return absl::OkStatus();
}

}  // namespace deeppcr
