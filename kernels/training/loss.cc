// SPDX-License-Identifier: Apache-2.0
#include "kernels/training/loss.h"

#include "kernels/base/strings.h"

namespace deeppcr::training {

std::string_view ToString(LossKind kind) {
  return kind == LossKind::kMse ? "mse" : "cross_entropy";
}

absl::StatusOr<LossKind> ParseLossKind(std::string_view name) {
  if (name == "cross_entropy") return LossKind::kCrossEntropy;
  if (name == "mse") return LossKind::kMse;
  return InvalidArgument("loss: expected cross_entropy or mse, got ", Quoted(name));
}

}  // namespace deeppcr::training
