// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_SOLVER_BACKWARD_RUNNER_H_
#define DEEPPCR_KERNELS_SOLVER_BACKWARD_RUNNER_H_

#include <climits>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend/backend.h"
#include "kernels/base/thread_pool.h"
#include "kernels/solver/backward_item.h"
#include "kernels/solver/lane_pool.h"

namespace deeppcr {

// Largest limits whose space takes no more than `max_bytes`: a space for one cotangent of one
// sample by the sequential way, where nothing else fits. Errors: kResourceExhausted where that
// takes more too.
absl::StatusOr<BackwardLimits> ChooseBackwardLimits(const System& system, int64_t num_steps,
                                                    int64_t max_bytes);

// Runs backward passes of one system: splits the samples and columns of a request into groups, and
// gives each group to a thread with a space of its own. All memory is allocated by Create. Run is
// thread-safe for up to `max_concurrent_runs` callers; further callers wait.
class BackwardRunner {
 public:
  // `system`, packed with its backward pass, and `pool` must outlive the runner. `max_lanes`: as of
  // Runner.
  static absl::StatusOr<std::unique_ptr<BackwardRunner>> Create(
      const System& system, const SystemShape& shape, const BackwardLimits& limits,
      ThreadPool* pool, int max_concurrent_runs, int max_lanes = INT_MAX);

  const BackwardLimits& limits() const { return limits_; }
  int64_t memory_bytes() const { return memory_bytes_; }

  // See LoadedSystem::GoBack.
  absl::Status Run(const BackwardOptions& options, std::span<BackwardItem> items) const;

 private:
  struct Lane {
    Lane(std::unique_ptr<BackwardSpace> s, int32_t samples)
        : space(std::move(s)), inputs(samples), tokens(samples) {}
    std::unique_ptr<BackwardSpace> space;
    std::vector<SampleInput> inputs;
    std::vector<const CancelToken*> tokens;
  };
  class Batch;

  BackwardRunner(const SystemShape& shape, const BackwardLimits& limits,
                 bool gives_state_cotangents, ThreadPool* pool)
      : shape_(shape),
        limits_(limits),
        gives_state_cotangents_(gives_state_cotangents),
        pool_(pool) {}

  absl::Status Check(const BackwardOptions& options, const BackwardItem& item) const;

  const SystemShape shape_;
  const BackwardLimits limits_;
  const bool gives_state_cotangents_;
  ThreadPool* const pool_;
  int64_t memory_bytes_ = 0;
  mutable LanePool<Lane> lanes_;
};

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_SOLVER_BACKWARD_RUNNER_H_
