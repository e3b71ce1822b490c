// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "kernels/base/status_macros.h"
#include "kernels/model/affine_step.h"
#include "kernels/model/samplers.h"
#include "kernels/model/sigma_schedule.h"

namespace deeppcr {
namespace {

// Steps from which on diffusers' lower_order_final has no effect.
constexpr size_t kManySteps = 15;

struct Level {
  double alpha, s, sigma;

  double lambda() const { return std::log(alpha / s); }
};

Level LevelOf(const SchedulerConfig& config, double sigma) {
  if (config.use_flow_sigmas) return {1.0 - sigma, sigma, sigma};
  const double alpha = 1.0 / std::sqrt(sigma * sigma + 1.0);
  return {alpha, sigma * alpha, sigma};
}

// What a step of order 1 takes of the two things that algorithms find at a state.
struct FirstOrder {
  double keep = 0.0, of_denoised = 0.0, of_eps = 0.0, noise = 0.0;
};

// Of a variance that may be rounded to a little less than 0 where two sigmas are one. NaN where
// sigmas ascend: such a step has none.
double RootOfVariance(double variance) {
  constexpr double kRounding = 1e-12;
  return std::sqrt(variance > -kRounding ? std::max(variance, 0.0) : variance);
}

FirstOrder FirstOrderOf(DpmAlgorithm algorithm, const Level& from, const Level& to) {
  // e^-h, 0 after the last step of sigma 0.
  const double decay = (to.s / to.alpha) * (from.alpha / from.s);
  switch (algorithm) {
    case DpmAlgorithm::kDpmPlusPlus:
      return {.keep = to.s / from.s, .of_denoised = to.alpha * (1.0 - decay)};
    case DpmAlgorithm::kSdeDpmPlusPlus:
      return {.keep = to.s / from.s * decay,
              .of_denoised = to.alpha * (1.0 - decay * decay),
              .noise = to.s * RootOfVariance(1.0 - decay * decay)};
    case DpmAlgorithm::kDpm:
      return {.keep = to.alpha / from.alpha, .of_eps = -to.s * (1.0 / decay - 1.0)};
    case DpmAlgorithm::kSdeDpm:
      return {.keep = to.alpha / from.alpha,
              .of_eps = -2.0 * to.s * (1.0 / decay - 1.0),
              .noise = to.s * RootOfVariance(1.0 / (decay * decay) - 1.0)};
  }
  return {};
}

bool FindsDenoised(const SchedulerConfig& config) {
  return config.algorithm_type == DpmAlgorithm::kDpmPlusPlus ||
         config.algorithm_type == DpmAlgorithm::kSdeDpmPlusPlus;
}

// The factor of the difference D1 of order 2, of which the midpoint takes half of what D0 has.
double SecondOrderOf(const SchedulerConfig& config, const FirstOrder& first, double h,
                     const Level& to) {
  if (config.solver_type == DpmSolverType::kMidpoint)
    return 0.5 * (FindsDenoised(config) ? first.of_denoised : first.of_eps);
  switch (config.algorithm_type) {
    case DpmAlgorithm::kDpmPlusPlus:
      return to.alpha * (std::expm1(-h) / h + 1.0);
    case DpmAlgorithm::kSdeDpmPlusPlus:
      return to.alpha * (std::expm1(-2.0 * h) / (2.0 * h) + 1.0);
    case DpmAlgorithm::kDpm:
      return -to.s * (std::expm1(h) / h - 1.0);
    case DpmAlgorithm::kSdeDpm:
      return -2.0 * to.s * (std::expm1(h) / h - 1.0);
  }
  return 0.0;
}

class Solver {
 public:
  Solver(const SchedulerConfig& config, const SigmaSchedule& schedule, size_t first_step)
      : config_(config), first_step_(first_step) {
    for (const double sigma : schedule.sigmas) levels_.push_back(LevelOf(config, sigma));
  }

  ReverseStep Step(size_t i) const {
    const Level &from = levels_[i], &to = levels_[i + 1];
    const PredictionType type = config_.prediction_type;
    const FirstOrder first = FirstOrderOf(config_.algorithm_type, from, to);
    const Affine eps = PredictedNoise(type, from.alpha, from.s);
    PlainStep plain;
    plain.denoised = Denoised(type, from.alpha, from.s, from.sigma);
    plain.next = {.x = first.keep + first.of_denoised * plain.denoised.x + first.of_eps * eps.x,
                  .m = first.of_denoised * plain.denoised.m + first.of_eps * eps.m};
    plain.noise = first.noise;
    ReverseStep step = Scaled(plain, 1.0, 1.0);
    if (config_.solver_order == 1) return step;
    const Affine found = FindsDenoised(config_) ? plain.denoised : eps;
    if (i + 2 < levels_.size()) {
      step.c_z = UnitAt(to) * found.x;
      step.c_m = UnitAt(to) * found.m;
    }
    if (IsFirstOrder(i)) return step;
    const double h = to.lambda() - from.lambda();
    const double of_difference =
        SecondOrderOf(config_, first, h, to) * h / (from.lambda() - levels_[i - 1].lambda());
    step.z_z += of_difference * found.x;
    step.z_m += of_difference * found.m;
    step.z_c = -of_difference / UnitAt(from);
    return step;
  }

 private:
  // The memory is kept as large as its part of z, so that a norm of both sees both.
  double UnitAt(const Level& level) const { return FindsDenoised(config_) ? level.alpha : level.s; }

  // The step that a process begins with knows of none before it.
  bool IsFirstOrder(size_t i) const {
    const size_t n = levels_.size() - 1;
    if (i <= first_step_) return true;
    return i + 1 == n && (config_.euler_at_final || (config_.lower_order_final && n < kManySteps) ||
                          config_.final_sigmas_type == FinalSigmas::kZero);
  }

  const SchedulerConfig& config_;
  const size_t first_step_;
  std::vector<Level> levels_;
};

}  // namespace

absl::StatusOr<SamplerSteps> DpmSolverSteps(const SchedulerConfig& config,
                                            const std::vector<double>& alphas_cumprod,
                                            int64_t num_inference_steps, int64_t first_step) {
  DEEPPCR_ASSIGN_OR_RETURN(const SigmaSchedule schedule,
                           VarianceExplodingSigmas(config, alphas_cumprod, num_inference_steps));
  const Solver solver(config, schedule, static_cast<size_t>(first_step));
  SamplerSteps sampler;
  for (size_t i = 0; i < schedule.times.size(); ++i) sampler.steps.push_back(solver.Step(i));
  SetTimes(schedule.times, sampler.steps);
  return sampler;
}

}  // namespace deeppcr
