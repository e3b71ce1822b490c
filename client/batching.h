// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_CLIENT_BATCHING_H_
#define DEEPPCR_CLIENT_BATCHING_H_

// Helpers for callers that spread many samples over several requests.

#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "client/array.h"
#include "deeppcr/v1/deeppcr.pb.h"

namespace deeppcr {

// The number of samples of this size that fit a message of 12 MiB: at least 1, at most
// max_batch_size.
int64_t FittingBatch(double bytes_per_sample, int64_t max_batch_size);

// Elements of a row of noise: those of the state, without the memory of a sampler.
int64_t SampleDim(const v1::GetModelResponse& model);

// Errors: kInvalidArgument naming `what` and both shapes, if the shapes differ.
absl::Status CheckShape(const Array& array, const std::vector<int64_t>& expected,
                        std::string_view what);

// Errors: kInvalidArgument for a size below 0 (0: as many as fit) or above the model's limit.
absl::Status CheckBatchSize(int64_t batch_size, const v1::GetModelResponse& model);

// Appends the rows of a reply's tensor to `target`. Errors: kInternal if the tensor's shape is not
// `shape`.
absl::Status CollectRows(const v1::Tensor& tensor, const std::vector<int64_t>& shape,
                         std::string_view what, Array* target);

// Errors: kInternal unless there is one sample report for each of `count` samples.
absl::Status CheckReportCount(const v1::SolveReport& report, int64_t count);

}  // namespace deeppcr

#endif  // DEEPPCR_CLIENT_BATCHING_H_
