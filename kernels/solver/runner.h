// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_SOLVER_RUNNER_H_
#define DEEPPCR_KERNELS_SOLVER_RUNNER_H_

#include <climits>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend/backend.h"
#include "kernels/base/thread_pool.h"
#include "kernels/solver/lane_pool.h"
#include "kernels/solver/options.h"
#include "kernels/solver/run_item.h"
#include "kernels/solver/sample_inputs.h"
#include "kernels/solver/solver.h"

namespace deeppcr {

// Runs batches of samples of one system: splits them into groups, gives each group to a thread with
// a space of its own, encodes, solves, falls back, decodes. All memory is allocated by Create. Run
// is thread-safe for up to `max_concurrent_runs` callers; further callers wait.
class Runner {
 public:
  // `system` and `pool` must outlive the runner. With fewer spaces than its callers' threads use at
  // a time, `max_lanes`, threads wait for one another.
  static absl::StatusOr<std::unique_ptr<Runner>> Create(const System& system,
                                                        const SystemShape& shape,
                                                        const SpaceLimits& limits, ThreadPool* pool,
                                                        int max_concurrent_runs,
                                                        int max_lanes = INT_MAX);

  // Spaces that up to max_concurrent_runs callers with the threads of the pool use at a time.
  static int NumLanes(const Grouping& grouping, const ThreadPool& pool, int max_concurrent_runs);

  const SystemShape& shape() const { return shape_; }
  const SpaceLimits& limits() const { return limits_; }
  int64_t memory_bytes() const { return memory_bytes_; }

  // See LoadedSystem::Run. timings may be null.
  absl::Status Run(const ResolvedOptions& options, std::span<RunItem> items,
                   RunTimings* timings) const;

 private:
  // One sample of a batch.
  struct SampleRequest {
    SampleInput input;
    float* outputs;
    float* final_state;  // may be null
    GroupSample sample;
  };
  // Space of a thread, with the memory of its solver.
  struct Lane {
    Lane(std::unique_ptr<SolveSpace> s, int32_t capacity)
        : space(std::move(s)),
          scratch(capacity),
          samples(capacity),
          requests(capacity),
          failed(capacity) {}
    std::unique_ptr<SolveSpace> space;
    GroupScratch scratch;
    std::vector<GroupSample> samples;
    std::vector<SampleRequest> requests;
    std::vector<SampleReport> failed;  // reports of samples that the sequential solver takes over
  };
  class Batch;
  class SharedBatch;

  Runner(const SystemShape& shape, const SpaceLimits& limits, const Grouping& grouping,
         ThreadPool* pool)
      : shape_(shape), limits_(limits), grouping_(grouping), pool_(pool) {}

  absl::Status Check(const ResolvedOptions& options, const RunItem& item) const;

  const SystemShape shape_;
  const SpaceLimits limits_;
  const Grouping grouping_;
  ThreadPool* const pool_;
  int64_t memory_bytes_ = 0;
  mutable LanePool<Lane> lanes_;
};

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_SOLVER_RUNNER_H_
