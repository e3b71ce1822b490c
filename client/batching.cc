// SPDX-License-Identifier: Apache-2.0
#include "client/batching.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"

namespace deeppcr {
namespace {

constexpr int64_t kMaxMessageBytes = 12 << 20;

}  // namespace

int64_t FittingBatch(double bytes_per_sample, int64_t max_batch_size) {
  const double fits = static_cast<double>(kMaxMessageBytes) / std::max(bytes_per_sample, 1.0);
  const bool fewer = fits < static_cast<double>(max_batch_size);
  return std::max<int64_t>(1, fewer ? static_cast<int64_t>(fits) : max_batch_size);
}

absl::Status CheckShape(const Array& array, const std::vector<int64_t>& expected,
                        std::string_view what) {
  if (array.shape == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(std::string(what), ": expected shape ",
                                                 ShapeToString(expected), ", got ",
                                                 ShapeToString(array.shape)));
}

absl::Status CheckBatchSize(int64_t batch_size, const v1::GetModelResponse& model) {
  if (batch_size >= 0 && batch_size <= model.max_batch_size()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("batch_size: expected 0 to ",
                                                 model.max_batch_size(),
                                                 ", the model's limit, got ", batch_size));
}

absl::Status CollectRows(const v1::Tensor& tensor, const std::vector<int64_t>& shape,
                         std::string_view what, Array* target) {
  const absl::StatusOr<Array> array = TensorToArray(tensor, what);
  if (!array.ok()) return array.status();
  if (absl::Status status = CheckShape(*array, shape, what); !status.ok()) {
    return absl::InternalError(absl::StrCat("bad reply: ", status.message()));
  }
  return AppendRows(*array, target);
}

absl::Status CheckReportCount(const v1::SolveReport& report, int64_t count) {
  if (report.samples_size() == count) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("bad reply: expected ", count, " sample reports, got ", report.samples_size()));
}

}  // namespace deeppcr
