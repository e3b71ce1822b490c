// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_WARM_UP_H_
#define DEEPPCR_SERVER_WARM_UP_H_

#include "absl/status/status.h"
#include "server/batcher.h"

namespace deeppcr {

// Computes batches of one sample and of max_batch_size with a model that nobody can name yet, as
// requests are computed: through the queue, on a worker, with default options. So the first request
// finds memory touched and code loaded, and a model that cannot answer is found before it is ready.
// Inputs are zero. Counts in no statistics. Waits for the result; ends early, with OK, when `stop`
// fires.
// Errors: of LoadedModel::Resolve and Run; kUnavailable while the batcher stops.
absl::Status WarmUp(Batcher& batcher, const std::shared_ptr<const LoadedModel>& model,
                    const CancelToken& stop);

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_WARM_UP_H_
