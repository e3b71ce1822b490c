// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_BASE_MEMORY_BUDGET_H_
#define DEEPPCR_KERNELS_BASE_MEMORY_BUDGET_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace deeppcr {

// Bytes that all models of a process share. What is taken is counted before it is allocated, so
// that what does not fit is an error and not the end of the process. Thread-safe.
class MemoryBudget {
 public:
  // Keeper of what can be made anew, which gives it up to who needs the memory.
  class Cache {
   public:
    virtual ~Cache() = default;
    // Bytes that it could give up now.
    virtual int64_t UnusedBytes() const = 0;
    // Gives up so many bytes, or all that it can.
    virtual void Drop(int64_t bytes) = 0;
  };

  explicit MemoryBudget(int64_t limit) : limit_(limit) {}
  MemoryBudget(const MemoryBudget&) = delete;
  MemoryBudget& operator=(const MemoryBudget&) = delete;

  // Takes the bytes, at least 0, if need be from caches, which give up nothing where that would not
  // be enough. `own`: what the caller has already. Errors: kResourceExhausted with the sum; it
  // never fits where the limit is less.
  absl::Status Take(int64_t bytes, int64_t own = 0);
  void Return(int64_t bytes) { used_.fetch_sub(bytes); }

  int64_t limit() const { return limit_; }
  int64_t used() const { return used_.load(); }
  int64_t free() const { return limit_ - used(); }
  // What is free or could be taken from caches.
  int64_t Available() const;

  // A cache is removed before it ends. No cache may call these, or Take, while it holds a lock that
  // its own functions take.
  void Add(Cache* cache);
  void Remove(Cache* cache);

 private:
  bool TakeFree(int64_t bytes);

  const int64_t limit_;
  std::atomic<int64_t> used_{0};
  mutable std::mutex mutex_;
  std::vector<Cache*> caches_;
};

// How many bytes more would have to be free, of an error of Take that is over once they are; 0 of
// any other.
int64_t MissingBytes(const absl::Status& status);

// One holder's part of a budget, which it returns at its end. Without a budget, anything. Not
// thread-safe.
class MemoryShare {
 public:
  MemoryShare() = default;
  explicit MemoryShare(std::shared_ptr<MemoryBudget> budget) : budget_(std::move(budget)) {}
  MemoryShare(MemoryShare&& other) noexcept
      : budget_(std::move(other.budget_)), bytes_(std::exchange(other.bytes_, 0)) {}
  MemoryShare& operator=(MemoryShare&& other) noexcept {
    std::swap(budget_, other.budget_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~MemoryShare() {
    if (budget_ != nullptr) budget_->Return(bytes_);
  }

  // Makes it so many bytes. Errors: those of MemoryBudget::Take; it is what it was then.
  absl::Status Set(int64_t bytes);
  // Makes it at least so many. Errors: those of Set.
  absl::Status Raise(int64_t bytes) { return Set(std::max(bytes, bytes_)); }
  // Makes it so many more. Errors: those of Set.
  absl::Status Add(int64_t bytes) { return Set(bytes_ + bytes); }
  int64_t bytes() const { return bytes_; }
  // An empty one of the same budget.
  MemoryShare Another() const { return MemoryShare(budget_); }

 private:
  std::shared_ptr<MemoryBudget> budget_;
  int64_t bytes_ = 0;
};

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_BASE_MEMORY_BUDGET_H_
