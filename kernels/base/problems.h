// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_BASE_PROBLEMS_H_
#define DEEPPCR_KERNELS_BASE_PROBLEMS_H_

#include <cstddef>
#include <vector>

#include "absl/status/status.h"

namespace deeppcr {

// What is wrong with a model's files: the first of it, or all. Not thread-safe.
class Problems {
 public:
  // Errors beyond so many are not kept: a file may have millions of wrong tensors.
  static constexpr size_t kMost = 64;

  explicit Problems(bool keep_all) : keep_all_(keep_all) {}

  // An error comes back, for the reader to stop; but where all are kept, it is kept.
  absl::Status Add(const absl::Status& status) {
    if (status.ok() || !keep_all_) return status;
    if (all_.size() < kMost) all_.push_back(status);
    return absl::OkStatus();
  }
  bool empty() const { return all_.empty(); }
  const std::vector<absl::Status>& all() const { return all_; }
  // The first that was kept, or OK.
  absl::Status status() const { return all_.empty() ? absl::OkStatus() : all_.front(); }

 private:
  bool keep_all_;
  std::vector<absl::Status> all_;
};

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_BASE_PROBLEMS_H_
