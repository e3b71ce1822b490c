// SPDX-License-Identifier: Apache-2.0
#include "server/observe/inference_statistics.h"

#include <chrono>

namespace deeppcr {

RunTimings ScaleToWall(const RunTimings& timings) {
  const double sum = timings.encode_seconds + timings.solve_seconds + timings.decode_seconds;
  if (!(sum > 0)) return {0, timings.wall_seconds, 0, timings.wall_seconds};
  const double scale = timings.wall_seconds / sum;
  return {timings.encode_seconds * scale, timings.solve_seconds * scale,
          timings.decode_seconds * scale, timings.wall_seconds};
}

void DurationCount::Add(double seconds) {
  ++count;
  if (seconds > 0) nanoseconds += static_cast<uint64_t>(seconds * 1e9);
}

void StageCounts::Add(const RunTimings& timings) {
  input.Add(timings.encode_seconds);
  infer.Add(timings.solve_seconds);
  output.Add(timings.decode_seconds);
}

void InferenceStatistics::AddBatch(int64_t samples, const RunTimings& timings) {
  const std::lock_guard lock(mutex_);
  ++total_.execution_count;
  total_.batches[samples].Add(timings);
}

void InferenceStatistics::AddSuccess(int64_t samples, double seconds, double queue_seconds,
                                     const RunTimings& timings) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const std::lock_guard lock(mutex_);
  total_.last_inference_ms =
      static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(now).count());
  total_.inference_count += static_cast<uint64_t>(samples);
  total_.success.Add(seconds);
  total_.queue.Add(queue_seconds);
  total_.stages.Add(timings);
}

void InferenceStatistics::AddFailure(double seconds) {
  const std::lock_guard lock(mutex_);
  total_.fail.Add(seconds);
}

InferenceStatistics::Snapshot InferenceStatistics::Read() const {
  const std::lock_guard lock(mutex_);
  return total_;
}

}  // namespace deeppcr
