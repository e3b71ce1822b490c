// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_SCHEDULE_SERVING_SETTINGS_H_
#define DEEPPCR_SERVER_SCHEDULE_SERVING_SETTINGS_H_

#include <chrono>
#include <cstdint>
#include <optional>

namespace deeppcr {

// What one model asks of the server for itself. What it leaves out is as the server's flags say.
struct ServingSettings {
  std::optional<int64_t> max_queue;         // samples that may wait
  std::optional<double> max_queue_seconds;  // that they may wait; 0: as long as they have to
  std::optional<std::chrono::microseconds> max_delay;  // of a batch that is not full
  std::optional<int> max_instances;                    // batches at a time; 0: one per worker
  std::optional<double> shadow_rate;                   // share of requests
  double weight = 1;  // its part of the workers' time, beside the weights of others
};

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_SCHEDULE_SERVING_SETTINGS_H_
