// SPDX-License-Identifier: Apache-2.0
#include "client/batching.h"

#include <algorithm>
#include <string>

#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"

namespace deeppcr {
namespace {

constexpr int64_t kMaxMessageBytes = 12 << 20;

}  // namespace

int64_t FittingBatch(double bytes_per_sample, int64_t max_batch_size) {
  const double fits = static_cast<double>(kMaxMessageBytes) / std::max(bytes_per_sample, 1.0);
  const bool fewer = fits < static_cast<double>(max_batch_size);
  return std::max<int64_t>(1, fewer ? static_cast<int64_t>(fits) : max_batch_size);
}

int64_t SampleDim(const v1::GetModelResponse& model) {
  const int64_t state = model.summary().state_dim();
  return state - std::clamp<int64_t>(model.summary().memory_dim(), 0, std::max<int64_t>(state, 0));
}

absl::Status CheckShape(const Array& array, const std::vector<int64_t>& expected,
                        std::string_view what) {
  if (array.shape == expected) return absl::OkStatus();
  return InvalidArgument(what, ": expected shape ", ShapeToString(expected), ", got ",
                         ShapeToString(array.shape));
}

absl::Status CheckBatchSize(int64_t batch_size, const v1::GetModelResponse& model) {
  if (batch_size >= 0 && batch_size <= model.max_batch_size()) return absl::OkStatus();
  return InvalidArgument("batch_size: expected 0 to ", model.max_batch_size(),
                         ", the model's limit, got ", batch_size);
}

absl::Status CollectRows(const v1::Tensor& tensor, const std::vector<int64_t>& shape,
                         std::string_view what, Array* target) {
  DEEPPCR_ASSIGN_OR_RETURN(const Array array, TensorToArray(tensor, what));
  if (absl::Status status = CheckShape(array, shape, what); !status.ok()) {
    return Internal("bad reply: ", status.message());
  }
  return AppendRows(array, target);
}

absl::Status CheckReportCount(const v1::SolveReport& report, int64_t count) {
  if (report.samples_size() == count) return absl::OkStatus();
  return Internal("bad reply: expected ", count, " sample reports, got ", report.samples_size());
}

}  // namespace deeppcr
