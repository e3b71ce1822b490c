// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_CLIENT_BATCHING_H_
#define DEEPPCR_CLIENT_BATCHING_H_

// What callers share that spread many samples over several requests.

#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "client/array.h"
#include "deeppcr/v1/deeppcr.pb.h"

namespace deeppcr {

// How many samples of this size a message of 12 MiB holds: at least 1, at most max_batch_size.
int64_t FittingBatch(double bytes_per_sample, int64_t max_batch_size);

// Errors: kInvalidArgument naming `what`, both shapes in it.
absl::Status CheckShape(const Array& array, const std::vector<int64_t>& expected,
                        std::string_view what);

// Errors: kInvalidArgument for less than 0 (0: as many as fit) or more than the model takes.
absl::Status CheckBatchSize(int64_t batch_size, const v1::GetModelResponse& model);

// Appends a tensor of a reply to what the replies before brought. Errors: kInternal for another
// shape.
absl::Status CollectRows(const v1::Tensor& tensor, const std::vector<int64_t>& shape,
                         std::string_view what, Array* target);

// Errors: kInternal unless there is one sample report for each of `count` samples.
absl::Status CheckReportCount(const v1::SolveReport& report, int64_t count);

}  // namespace deeppcr

#endif  // DEEPPCR_CLIENT_BATCHING_H_
