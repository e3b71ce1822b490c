// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_MODEL_AFFINE_STEP_H_
#define DEEPPCR_KERNELS_MODEL_AFFINE_STEP_H_

// Pieces that the steps of samplers.h are made of. Thread-safe.

#include <vector>

#include "kernels/model/scheduler_config.h"
#include "kernels/problem/reverse_step.h"

namespace deeppcr {

// a x + b m.
struct Affine {
  double x = 0.0, m = 0.0;
};

// The sample after a step as an Affine and the factor of the noise, and the denoised sample.
struct PlainStep {
  Affine denoised, next;
  double noise = 0.0;
};

// A step on x as a step on the scaled state: `scale` is c, `next_scale` c' of samplers.h.
ReverseStep Scaled(const PlainStep& plain, double scale, double next_scale);

// Euler's step from sigma to `next` along the derivative (x - denoised) / sigma.
Affine EulerStep(const Affine& denoised, double sigma, double next);

// The denoised sample of x = x0 + sigma noise, of which the network sees x / sqrt(sigma^2 + 1).
Affine VarianceExplodingDenoised(PredictionType type, double sigma);

// The denoised sample of z = alpha x0 + s noise, and the noise; `sigma` is that of flow_prediction.
Affine Denoised(PredictionType type, double alpha, double s, double sigma);
Affine PredictedNoise(PredictionType type, double alpha, double s);

// Sets what the network sees, and the times after the steps.
void SetTimes(const std::vector<double>& times, std::vector<ReverseStep>& steps);

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_MODEL_AFFINE_STEP_H_
