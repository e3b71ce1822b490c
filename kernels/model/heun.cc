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

// What the network says at a sigma.
class Denoiser {
 public:
  explicit Denoiser(const SchedulerConfig& config)
      : type_(config.prediction_type),
        says_derivative_(type_ == PredictionType::kEpsilon && !config.clip_sample) {}

  // x and x0 of the scaled state at `sigma`.
  ReverseStep At(double sigma) const {
    const Affine denoised = VarianceExplodingDenoised(type_, sigma);
    return {.x0_z = denoised.x / ScaleAt(sigma), .x0_m = denoised.m};
  }

  // `share` x + h dx / dsigma of the scaled state, h (x - x0) / sigma. An epsilon that is not
  // clipped is that derivative itself, and x - x0 would only lose its digits.
  struct Part {
    double z, m, x0;
  };
  Part Along(double sigma, double share, double h) const {
    if (says_derivative_) return {share / ScaleAt(sigma), h, 0.0};
    const double r = h / sigma;
    return {(share + r) / ScaleAt(sigma), 0.0, -r};
  }

 private:
  PredictionType type_;
  bool says_derivative_;
};

// Euler's step to x' = x + h dx / dsigma.
ReverseStep Predictor(const Denoiser& denoiser, double sigma, double next, double next_scale) {
  const Denoiser::Part part = denoiser.Along(sigma, 1.0, next - sigma);
  ReverseStep step = denoiser.At(sigma);
  step.z_z = next_scale * part.z;
  step.z_m = next_scale * part.m;
  step.z_x0 = next_scale * part.x0;
  return step;
}

// Half of that step for the memory, scaled as x' is.
void Remember(const Denoiser& denoiser, double sigma, double next, ReverseStep& step) {
  const Denoiser::Part part = denoiser.Along(sigma, 1.0, 0.5 * (next - sigma));
  step.c_z = ScaleAt(next) * part.z;
  step.c_m = ScaleAt(next) * part.m;
  step.c_x0 = ScaleAt(next) * part.x0;
}

// The memory and the other half of the step, along the derivative at `next`.
ReverseStep Corrector(const Denoiser& denoiser, double sigma, double next) {
  const Denoiser::Part part = denoiser.Along(next, 0.0, 0.5 * (next - sigma));
  ReverseStep step = denoiser.At(next);
  step.z_z = ScaleAt(next) * part.z;
  step.z_m = ScaleAt(next) * part.m;
  step.z_x0 = ScaleAt(next) * part.x0;
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
  const Denoiser denoiser(config);
  SamplerSteps sampler;
  std::vector<double> all_times;
  for (size_t i = 0; i < times.size(); ++i) {
    const double sigma = sigmas[i], next = sigmas[i + 1];
    const bool last = i + 1 == times.size();
    sampler.steps.push_back(Predictor(denoiser, sigma, next, last ? 1.0 : ScaleAt(next)));
    all_times.push_back(times[i]);
    if (last) break;
    Remember(denoiser, sigma, next, sampler.steps.back());
    sampler.steps.push_back(Corrector(denoiser, sigma, next));
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
