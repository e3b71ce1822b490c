// SPDX-License-Identifier: Apache-2.0
#include "kernels/model/samplers.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/model/affine_step.h"
#include "kernels/model/sigma_schedule.h"
#include "kernels/model/timesteps.h"

namespace deeppcr {

absl::StatusOr<SamplerSteps> EulerSteps(const SchedulerConfig& config,
                                        const std::vector<double>& alphas_cumprod,
                                        int64_t num_inference_steps) {
  DEEPPCR_ASSIGN_OR_RETURN(const SigmaSchedule schedule,
                           VarianceExplodingSigmas(config, alphas_cumprod, num_inference_steps));
  const std::vector<double>& sigmas = schedule.sigmas;
  const bool ancestral = config.scheduler_class == SchedulerClass::kEulerAncestral;
  const size_t n = schedule.times.size();
  const auto scale = [&](size_t i) {
    return i < n ? 1.0 / std::sqrt(sigmas[i] * sigmas[i] + 1.0) : 1.0;
  };
  SamplerSteps sampler;
  for (size_t i = 0; i < n; ++i) {
    const double from = sigmas[i], to = sigmas[i + 1];
    PlainStep step;
    step.denoised = VarianceExplodingDenoised(config.prediction_type, from);
    double down = to;
    if (ancestral) {
      step.noise = std::sqrt(to * to * (from * from - to * to) / (from * from));
      down = std::sqrt(to * to - step.noise * step.noise);
    }
    step.next = EulerStep(step.denoised, from, down);
    sampler.steps.push_back(Scaled(step, scale(i), scale(i + 1)));
  }
  SetTimes(schedule.times, sampler.steps);
  const double largest = std::ranges::max(sigmas);
  const bool leading = config.timestep_spacing == TimestepSpacing::kLeading;
  sampler.initial_scale = scale(0) * (leading ? std::sqrt(largest * largest + 1.0) : largest);
  return sampler;
}

absl::StatusOr<SamplerSteps> EdmEulerSteps(const SchedulerConfig& config,
                                           int64_t num_inference_steps) {
  DEEPPCR_ASSIGN_OR_RETURN(const SigmaSchedule schedule, EdmSigmas(config, num_inference_steps));
  const double data = config.sigma_data;
  const double sign = config.prediction_type == PredictionType::kVPrediction ? -1.0 : 1.0;
  const size_t n = schedule.times.size();
  const auto scale = [&](size_t i) {
    const double sigma = schedule.sigmas[i];
    return i < n ? 1.0 / std::sqrt(sigma * sigma + data * data) : 1.0;
  };
  SamplerSteps sampler;
  for (size_t i = 0; i < n; ++i) {
    const double sigma = schedule.sigmas[i], c = scale(i);
    PlainStep step;
    step.denoised = {.x = data * data * c * c, .m = sign * sigma * data * c};
    step.next = EulerStep(step.denoised, sigma, schedule.sigmas[i + 1]);
    sampler.steps.push_back(Scaled(step, c, scale(i + 1)));
  }
  SetTimes(schedule.times, sampler.steps);
  const double largest = config.sigma_max.value_or(80.0);
  sampler.initial_scale = scale(0) * std::sqrt(largest * largest + 1.0);
  return sampler;
}

absl::StatusOr<SamplerSteps> LcmSteps(const SchedulerConfig& config,
                                      const std::vector<double>& alphas_cumprod,
                                      int64_t num_inference_steps) {
  DEEPPCR_ASSIGN_OR_RETURN(const std::vector<int64_t> timesteps,
                           LcmTimesteps(config, num_inference_steps));
  const std::vector<double> times(timesteps.begin(), timesteps.end());
  const auto product = [&](size_t i) { return alphas_cumprod[static_cast<size_t>(timesteps[i])]; };
  SamplerSteps sampler;
  for (size_t i = 0; i < times.size(); ++i) {
    const bool last = i + 1 == times.size();
    const double a = product(i), p = last ? 1.0 : product(i + 1);
    const double t = config.timestep_scaling * times[i];
    const Affine denoised = Denoised(config.prediction_type, std::sqrt(a), std::sqrt(1.0 - a), 0.0);
    sampler.steps.push_back({.x0_z = denoised.x,
                             .x0_m = denoised.m,
                             .z_z = std::sqrt(p) * 0.25 / (t * t + 0.25),
                             .z_x0 = std::sqrt(p) * t / std::sqrt(t * t + 0.25),
                             .sigma = std::sqrt(1.0 - p)});
  }
  SetTimes(times, sampler.steps);
  return sampler;
}

absl::StatusOr<SamplerSteps> FlowMatchSteps(const SchedulerConfig& config,
                                            int64_t num_inference_steps) {
  DEEPPCR_ASSIGN_OR_RETURN(const SigmaSchedule schedule,
                           FlowMatchSigmas(config, num_inference_steps));
  SamplerSteps sampler;
  for (size_t i = 0; i < schedule.times.size(); ++i) {
    const double from = schedule.sigmas[i], to = schedule.sigmas[i + 1];
    // The straight way to the end of the sigmas leads to the denoised sample.
    PlainStep step = {.denoised = {.x = 1.0, .m = schedule.sigmas.back() - from},
                      .next = {.x = 1.0, .m = to - from}};
    if (config.stochastic_sampling) {
      step = {.denoised = {.x = 1.0, .m = -from},
              .next = {.x = 1.0 - to, .m = -(1.0 - to) * from},
              .noise = to};
    }
    sampler.steps.push_back(Scaled(step, 1.0, 1.0));
  }
  SetTimes(schedule.times, sampler.steps);
  return sampler;
}

}  // namespace deeppcr
