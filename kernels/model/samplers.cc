// SPDX-License-Identifier: Apache-2.0
#include "kernels/model/samplers.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/model/sigma_schedule.h"
#include "kernels/model/timesteps.h"

namespace deeppcr {
namespace {

// a x + b m.
struct Affine {
  double x = 0.0, m = 0.0;
};

// The sample after a step as an Affine and the factor of the noise, and the denoised sample.
struct PlainStep {
  Affine denoised, next;
  double noise = 0.0;
};

// A step on x as a step on the scaled state: `scale` is c, `next_scale` c' of the header.
ReverseStep Scaled(const PlainStep& plain, double scale, double next_scale) {
  return {.x0_z = plain.denoised.x / scale,
          .x0_m = plain.denoised.m,
          .z_z = next_scale * plain.next.x / scale,
          .z_m = next_scale * plain.next.m,
          .sigma = next_scale * plain.noise};
}

// Euler's step from sigma to `next` along the derivative (x - denoised) / sigma.
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

Affine EulerDenoised(PredictionType type, double sigma) {
  switch (type) {
    case PredictionType::kSample:
      return {.x = 0.0, .m = 1.0};
    case PredictionType::kVPrediction:
      return {.x = 1.0 / (sigma * sigma + 1.0), .m = -sigma / std::sqrt(sigma * sigma + 1.0)};
    default:
      return {.x = 1.0, .m = -sigma};
  }
}

// The denoised sample from the state and the prediction, at alpha and s of the header.
Affine DpmDenoised(PredictionType type, double alpha, double s, double sigma) {
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

Affine DpmNoise(PredictionType type, double alpha, double s) {
  switch (type) {
    case PredictionType::kSample:
      return {.x = 1.0 / s, .m = -alpha / s};
    case PredictionType::kVPrediction:
      return {.x = s, .m = alpha};
    default:
      return {.x = 0.0, .m = 1.0};
  }
}

struct DpmLevel {
  double alpha, s, sigma;
};

DpmLevel LevelOf(const SchedulerConfig& config, double sigma) {
  if (config.use_flow_sigmas) return {1.0 - sigma, sigma, sigma};
  const double alpha = 1.0 / std::sqrt(sigma * sigma + 1.0);
  return {alpha, sigma * alpha, sigma};
}

PlainStep DpmStep(const SchedulerConfig& config, const DpmLevel& from, const DpmLevel& to) {
  const PredictionType type = config.prediction_type;
  PlainStep step;
  step.denoised = DpmDenoised(type, from.alpha, from.s, from.sigma);
  const Affine eps = DpmNoise(type, from.alpha, from.s);
  // e^-h, 0 after the last step of sigma 0.
  const double decay = (to.s / to.alpha) * (from.alpha / from.s);
  double keep = 0.0, of_denoised = 0.0, of_eps = 0.0;
  switch (config.algorithm_type) {
    case DpmAlgorithm::kDpmPlusPlus:
      keep = to.s / from.s;
      of_denoised = to.alpha * (1.0 - decay);
      break;
    case DpmAlgorithm::kSdeDpmPlusPlus:
      keep = to.s / from.s * decay;
      of_denoised = to.alpha * (1.0 - decay * decay);
      step.noise = to.s * std::sqrt(1.0 - decay * decay);
      break;
    case DpmAlgorithm::kDpm:
      keep = to.alpha / from.alpha;
      of_eps = -to.s * (1.0 / decay - 1.0);
      break;
    case DpmAlgorithm::kSdeDpm:
      keep = to.alpha / from.alpha;
      of_eps = -2.0 * to.s * (1.0 / decay - 1.0);
      step.noise = to.s * std::sqrt(1.0 / (decay * decay) - 1.0);
      break;
  }
  step.next = {.x = keep + of_denoised * step.denoised.x + of_eps * eps.x,
               .m = of_denoised * step.denoised.m + of_eps * eps.m};
  return step;
}

}  // namespace

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
    step.denoised = EulerDenoised(config.prediction_type, from);
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

absl::StatusOr<SamplerSteps> DpmSolverSteps(const SchedulerConfig& config,
                                            const std::vector<double>& alphas_cumprod,
                                            int64_t num_inference_steps) {
  DEEPPCR_ASSIGN_OR_RETURN(const SigmaSchedule schedule,
                           VarianceExplodingSigmas(config, alphas_cumprod, num_inference_steps));
  SamplerSteps sampler;
  for (size_t i = 0; i < schedule.times.size(); ++i) {
    const DpmLevel from = LevelOf(config, schedule.sigmas[i]);
    const DpmLevel to = LevelOf(config, schedule.sigmas[i + 1]);
    sampler.steps.push_back(Scaled(DpmStep(config, from, to), 1.0, 1.0));
  }
  SetTimes(schedule.times, sampler.steps);
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
    const Affine denoised =
        DpmDenoised(config.prediction_type, std::sqrt(a), std::sqrt(1.0 - a), 0.0);
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
