// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/model/affine_step.h"
#include "kernels/model/samplers.h"
#include "kernels/model/sigma_schedule.h"

namespace deeppcr {
namespace {

// What the network sees of x.
double ScaleAt(double sigma) { return 1.0 / std::sqrt(sigma * sigma + 1.0); }

// x and x0 of the scaled state at `sigma`.
ReverseStep At(PredictionType type, double sigma) {
  const Affine denoised = VarianceExplodingDenoised(type, sigma);
  return {.x0_z = denoised.x / ScaleAt(sigma), .x0_m = denoised.m};
}

// Euler's step to x' = x + r (x - x0), r = (next - sigma) / sigma.
ReverseStep Predictor(PredictionType type, double sigma, double next, double next_scale) {
  const double r = (next - sigma) / sigma, scale = ScaleAt(sigma);
  ReverseStep step = At(type, sigma);
  step.z_z = next_scale * (1.0 + r) / scale;
  step.z_x0 = -next_scale * r;
  return step;
}

// Half of that step for the memory, scaled as x' is.
void Remember(double sigma, double next, ReverseStep& step) {
  const double r = (next - sigma) / sigma, next_scale = ScaleAt(next);
  step.c_z = next_scale * (1.0 + 0.5 * r) / ScaleAt(sigma);
  step.c_x0 = -next_scale * 0.5 * r;
}

// The memory and the other half of the step, along the derivative at `next`.
ReverseStep Corrector(PredictionType type, double sigma, double next) {
  const double r = 0.5 * (next - sigma) / next;
  ReverseStep step = At(type, next);
  step.z_z = r;
  step.z_x0 = -ScaleAt(next) * r;
  step.z_c = 1.0;
  return step;
}

}  // namespace

absl::StatusOr<SamplerSteps> HeunSteps(const SchedulerConfig& config,
                                       const std::vector<double>& alphas_cumprod,
                                       int64_t num_inference_steps) {
  if (num_inference_steps > 0 && num_inference_steps % 2 == 0) {
    return InvalidArgument(
        "num_inference_steps: expected an odd number with ", NameOf(config.scheduler_class),
        ", the 2 n - 1 evaluations of the denoiser in n steps of diffusers, got ",
        num_inference_steps);
  }
  DEEPPCR_ASSIGN_OR_RETURN(
      const SigmaSchedule schedule,
      VarianceExplodingSigmas(config, alphas_cumprod, (num_inference_steps + 1) / 2));
  const std::vector<double>&sigmas = schedule.sigmas, &times = schedule.times;
  const PredictionType type = config.prediction_type;
  SamplerSteps sampler;
  std::vector<double> all_times;
  for (size_t i = 0; i < times.size(); ++i) {
    const double sigma = sigmas[i], next = sigmas[i + 1];
    const bool last = i + 1 == times.size();
    sampler.steps.push_back(Predictor(type, sigma, next, last ? 1.0 : ScaleAt(next)));
    all_times.push_back(times[i]);
    if (last) break;
    Remember(sigma, next, sampler.steps.back());
    sampler.steps.push_back(Corrector(type, sigma, next));
    all_times.push_back(times[i + 1]);
  }
  SetTimes(all_times, sampler.steps);
  const double largest = std::ranges::max(sigmas);
  const bool leading = config.timestep_spacing == TimestepSpacing::kLeading;
  sampler.initial_scale =
      ScaleAt(sigmas[0]) * (leading ? std::sqrt(largest * largest + 1.0) : largest);
  return sampler;
}

}  // namespace deeppcr
