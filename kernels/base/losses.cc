// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/losses.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/finite.h"

namespace deeppcr {

SampleLoss CrossEntropy(std::span<const float> outputs, int32_t label, double scale,
                        std::span<float> gradient) {
  const double largest = *std::ranges::max_element(outputs);
  double sum = 0;
  bool correct = true;
  for (size_t i = 0; i < outputs.size(); ++i) {
    sum += std::exp(double{outputs[i]} - largest);
    correct = correct && (static_cast<int32_t>(i) == label || outputs[i] < outputs[label]);
  }
  for (size_t i = 0; i < gradient.size(); ++i) {
    const double share = std::exp(double{outputs[i]} - largest) / sum;
    const double wanted = static_cast<int32_t>(i) == label ? 1 : 0;
    gradient[i] = static_cast<float>(scale * (share - wanted));
  }
  return {.loss = std::log(sum) - (double{outputs[label]} - largest), .correct = correct};
}

SampleLoss MeanSquaredError(std::span<const float> outputs, std::span<const float> targets,
                            double scale, std::span<float> gradient) {
  const auto count = static_cast<double>(outputs.size());
  double squares = 0;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const double difference = double{outputs[i]} - targets[i];
    squares += difference * difference;
    if (!gradient.empty()) gradient[i] = NarrowToFloat(scale * 2 * difference / count);
  }
  return {.loss = squares / count};
}

}  // namespace deeppcr
