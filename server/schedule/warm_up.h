// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_SCHEDULE_WARM_UP_H_
#define DEEPPCR_SERVER_SCHEDULE_WARM_UP_H_

#include <chrono>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "server/schedule/batcher.h"

namespace deeppcr {

// Computes a batch of one sample and a full one with a model that nobody can name yet, as requests
// are computed: through the queue, on a worker, with default options. So the first requests of that
// kind find memory touched and code loaded, and a model that cannot be run is found before it is
// ready (answers need not converge: their reports say so). Inputs are zero. Counts in no
// statistics. Waits for the result; ends early, with OK, when `stop` fires. A full batch has
// max_batch_size samples, but inputs and outputs of no more than kWarmUpBytes.
// Errors: those of LoadedSystem::Resolve and Run; kDeadlineExceeded after kWarmUpSeconds, waiting
// for a worker included: a warm-up must not hold up loading, or a worker, for longer; kUnavailable
// while the batcher stops.
inline constexpr std::chrono::seconds kWarmUpSeconds{3};  // for each of the two batches
inline constexpr int64_t kWarmUpBytes = int64_t{16} << 20;
absl::Status WarmUp(Batcher& batcher, const std::shared_ptr<const LoadedModel>& model,
                    const CancelToken& stop);

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_SCHEDULE_WARM_UP_H_
