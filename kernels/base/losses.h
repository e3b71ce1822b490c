// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_BASE_LOSSES_H_
#define DEEPPCR_KERNELS_BASE_LOSSES_H_

#include <cstdint>
#include <span>

namespace deeppcr {

struct SampleLoss {
  double loss = 0;
  bool correct = false;  // cross entropy: the label has the largest output, the only one
};

// Losses of one sample, in double, and `scale` times their gradients by the outputs; an empty
// gradient is not wanted. 0 <= label < outputs.size() = gradient.size(); as many targets as
// outputs. Thread-safe.
//
// log(sum_j exp(y_j)) - y_label.
SampleLoss CrossEntropy(std::span<const float> outputs, int32_t label, double scale,
                        std::span<float> gradient);
// The mean of (y_j - t_j)^2.
SampleLoss MeanSquaredError(std::span<const float> outputs, std::span<const float> targets,
                            double scale, std::span<float> gradient);

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_BASE_LOSSES_H_
