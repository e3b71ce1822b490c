// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_SOLVER_LANE_POOL_H_
#define DEEPPCR_KERNELS_SOLVER_LANE_POOL_H_

#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace deeppcr {

// Workspaces that threads lease for the time of a group. Add before any lease; leases are
// thread-safe, wait where all lanes are leased, and allocate nothing.
template <class Lane>
class LanePool {
 public:
  void Add(std::unique_ptr<Lane> lane) {
    free_.push_back(lane.get());
    lanes_.push_back(std::move(lane));
  }

  class Lease {
   public:
    explicit Lease(LanePool& pool) : pool_(pool) {
      std::unique_lock lock(pool.mutex_);
      pool.returned_.wait(lock, [&] { return !pool.free_.empty(); });
      lane_ = pool.free_.back();
      pool.free_.pop_back();
    }
    ~Lease() {
      {
        std::lock_guard lock(pool_.mutex_);
        pool_.free_.push_back(lane_);
      }
      pool_.returned_.notify_one();
    }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    Lane& operator*() const { return *lane_; }

   private:
    LanePool& pool_;
    Lane* lane_;
  };

 private:
  std::mutex mutex_;
  std::condition_variable returned_;
  std::vector<Lane*> free_;
  std::vector<std::unique_ptr<Lane>> lanes_;
};

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_SOLVER_LANE_POOL_H_
