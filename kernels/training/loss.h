// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_TRAINING_LOSS_H_
#define DEEPPCR_KERNELS_TRAINING_LOSS_H_

#include <cstdint>
#include <span>
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

struct SampleLoss {
  double loss = 0;
  bool correct = false;  // cross_entropy: the label has the largest output, the only one
};

// Loss of one sample, in double, and `scale` times its gradient by the outputs; an empty gradient
// is not wanted. 0 <= label < outputs.size() = gradient.size(); as many targets as outputs.
SampleLoss CrossEntropy(std::span<const float> outputs, int32_t label, double scale,
                        std::span<float> gradient);
SampleLoss MeanSquaredError(std::span<const float> outputs, std::span<const float> targets,
                            double scale, std::span<float> gradient);

}  // namespace deeppcr::training

#endif  // DEEPPCR_KERNELS_TRAINING_LOSS_H_
