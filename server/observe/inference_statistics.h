// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_OBSERVE_INFERENCE_STATISTICS_H_
#define DEEPPCR_SERVER_OBSERVE_INFERENCE_STATISTICS_H_

// Statistics of a model version, as ModelStatistics of the v2 protocol has them: counts and times
// that only grow, also over reloads.

#include <cstdint>
#include <map>
#include <mutex>

#include "kernels/engine.h"

namespace deeppcr {

// Scales the seconds of a batch's stages to add up to its wall time: the engine counts the seconds
// of several threads.
RunTimings ScaleToWall(const RunTimings& timings);

// A number of events, and the time that they took in all.
struct DurationCount {
  uint64_t count = 0;
  uint64_t nanoseconds = 0;

  void Add(double seconds);
};

// The stages of a solve: encoder, recurrence, decoder.
struct StageCounts {
  DurationCount input, infer, output;

  void Add(const RunTimings& timings);
};

// Thread-safe.
class InferenceStatistics {
 public:
  struct Snapshot {
    uint64_t last_inference_ms = 0;  // since the epoch; 0: none yet
    uint64_t inference_count = 0;    // samples of requests that were answered
    uint64_t execution_count = 0;    // batches
    DurationCount success, fail, queue;
    StageCounts stages;                      // as every request saw them
    std::map<int64_t, StageCounts> batches;  // by their number of samples
  };

  // timings: by ScaleToWall.
  void AddBatch(int64_t samples, const RunTimings& timings);
  // seconds: from arrival to reply, so no less than waiting and computing took.
  void AddSuccess(int64_t samples, double seconds, double queue_seconds, const RunTimings& timings);
  void AddFailure(double seconds);

  Snapshot Read() const;

 private:
  mutable std::mutex mutex_;
  Snapshot total_;
};

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_OBSERVE_INFERENCE_STATISTICS_H_
