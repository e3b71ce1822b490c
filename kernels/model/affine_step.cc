// SPDX-License-Identifier: Apache-2.0
#include "kernels/model/affine_step.h"

#include <cmath>

namespace deeppcr {

ReverseStep Scaled(const PlainStep& plain, double scale, double next_scale) {
  return {.x0_z = plain.denoised.x / scale,
          .x0_m = plain.denoised.m,
          .z_z = next_scale * plain.next.x / scale,
          .z_m = next_scale * plain.next.m,
          .sigma = next_scale * plain.noise};
}

Affine EulerStep(const Affine& denoised, double sigma, double next) {
  const double share = (next - sigma) / sigma;
  return {.x = 1.0 + (1.0 - denoised.x) * share, .m = -denoised.m * share};
}

void SetTimes(const std::vector<double>& times, std::vector<ReverseStep>& steps) {
  for (size_t i = 0; i < steps.size(); ++i) {
    steps[i].timestep = times[i];
    steps[i].prev_timestep = i + 1 < steps.size() ? times[i + 1] : -1.0;
  }
}

Affine VarianceExplodingDenoised(PredictionType type, double sigma) {
  switch (type) {
    case PredictionType::kSample:
      return {.x = 0.0, .m = 1.0};
    case PredictionType::kVPrediction:
      return {.x = 1.0 / (sigma * sigma + 1.0), .m = -sigma / std::sqrt(sigma * sigma + 1.0)};
    default:
      return {.x = 1.0, .m = -sigma};
  }
}

Affine Denoised(PredictionType type, double alpha, double s, double sigma) {
  switch (type) {
    case PredictionType::kSample:
      return {.x = 0.0, .m = 1.0};
    case PredictionType::kVPrediction:
      return {.x = alpha, .m = -s};
    case PredictionType::kFlowPrediction:
      return {.x = 1.0, .m = -sigma};
    default:
      return {.x = 1.0 / alpha, .m = -s / alpha};
  }
}

Affine PredictedNoise(PredictionType type, double alpha, double s) {
  switch (type) {
    case PredictionType::kSample:
      return {.x = 1.0 / s, .m = -alpha / s};
    case PredictionType::kVPrediction:
      return {.x = s, .m = alpha};
    default:
      return {.x = 0.0, .m = 1.0};
  }
}

}  // namespace deeppcr
