// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_TRAINING_LOSS_H_
#define DEEPPCR_KERNELS_TRAINING_LOSS_H_

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"

namespace deeppcr::training {

enum class LossKind : uint8_t {
  kCrossEntropy,  // -log softmax(y)_label
  kMse,           // mean over the outputs of (y - target)^2
};
// "cross_entropy", "mse".
std::string_view ToString(LossKind kind);
// Errors: kInvalidArgument with the names that there are.
absl::StatusOr<LossKind> ParseLossKind(std::string_view name);

}  // namespace deeppcr::training

#endif  // DEEPPCR_KERNELS_TRAINING_LOSS_H_
