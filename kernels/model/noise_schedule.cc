// SPDX-License-Identifier: Apache-2.0
#include "kernels/model/noise_schedule.h"

#include <cmath>
#include <numbers>

#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"

namespace deeppcr {
namespace {

constexpr double kMaxBeta = 0.999;

// Nichol and Dhariwal 2021, equation 17.
double CosineAlphaBar(double time) {
  const double cosine = std::cos((time + 0.008) / 1.008 * std::numbers::pi / 2.0);
  return cosine * cosine;
}
double ExponentialAlphaBar(double time) { return std::exp(-12.0 * time); }

// diffusers' betas_for_alpha_bar.
std::vector<double> BetasFor(double (*alpha_bar)(double), int64_t num_train_timesteps) {
  const double count = static_cast<double>(num_train_timesteps);
  std::vector<double> betas;
  betas.reserve(static_cast<size_t>(num_train_timesteps));
  for (int64_t i = 0; i < num_train_timesteps; ++i) {
    const double now = alpha_bar(static_cast<double>(i) / count);
    const double next = alpha_bar(static_cast<double>(i + 1) / count);
    betas.push_back(std::min(1.0 - next / now, kMaxBeta));
  }
  return betas;
}

std::vector<double> ScaledLinearBetas(const SchedulerConfig& config) {
  std::vector<double> betas = Linspace(std::sqrt(config.beta_start), std::sqrt(config.beta_end),
                                       config.num_train_timesteps);
  for (double& beta : betas) beta *= beta;
  return betas;
}

std::vector<double> SigmoidBetas(const SchedulerConfig& config) {
  std::vector<double> betas = Linspace(-6.0, 6.0, config.num_train_timesteps);
  for (double& beta : betas) {
    const double share = 1.0 / (1.0 + std::exp(-beta));
    beta = share * (config.beta_end - config.beta_start) + config.beta_start;
  }
  return betas;
}

std::vector<double> ScheduledBetas(const SchedulerConfig& config) {
  if (!config.trained_betas.empty()) return config.trained_betas;
  switch (config.beta_schedule) {
    case BetaSchedule::kLinear:
      return Linspace(config.beta_start, config.beta_end, config.num_train_timesteps);
    case BetaSchedule::kScaledLinear:
      return ScaledLinearBetas(config);
    case BetaSchedule::kSquaredcosCapV2:
      return BetasFor(&CosineAlphaBar, config.num_train_timesteps);
    case BetaSchedule::kExp:
      return BetasFor(&ExponentialAlphaBar, config.num_train_timesteps);
    case BetaSchedule::kSigmoid:
      return SigmoidBetas(config);
  }
  return {};
}

// Lin et al. 2023, algorithm 1: shifts sqrt(alphas_cumprod) to end at 0 and keeps its beginning.
absl::Status RescaleToZeroSnr(std::vector<double>& betas) {
  std::vector<double> roots = CumulativeProduct(betas);
  for (double& root : roots) root = std::sqrt(root);
  const double first = roots.front();
  const double last = roots.back();
  for (double& root : roots) root = (root - last) * (first / (first - last));
  betas.front() = 1.0 - roots.front() * roots.front();
  for (size_t i = 1; i < betas.size(); ++i) {
    betas[i] = 1.0 - (roots[i] * roots[i]) / (roots[i - 1] * roots[i - 1]);
    if (std::isfinite(betas[i])) continue;
    return InvalidArgument(
        "rescale_betas_zero_snr: expected alphas_cumprod to stay above 0 "
        "before the last timestep, got 0 at timestep ",
        i - 1);
  }
  if (std::isfinite(betas.front())) return absl::OkStatus();
  return InvalidArgument(
      "rescale_betas_zero_snr: expected alphas_cumprod to fall over at least 2 "
      "timesteps, got ",
      betas.size(), " from ", first * first, " to ", last * last);
}

}  // namespace

int64_t RoundHalfToEven(double value) { return static_cast<int64_t>(std::nearbyint(value)); }

std::vector<double> Linspace(double first, double last, int64_t count) {
  std::vector<double> values(static_cast<size_t>(count), first);
  if (count == 1) return values;
  const double step = (last - first) / static_cast<double>(count - 1);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i) * step + first;
  values.back() = last;
  return values;
}

std::vector<double> CumulativeProduct(const std::vector<double>& betas) {
  std::vector<double> alphas_cumprod;
  alphas_cumprod.reserve(betas.size());
  double product = 1.0;
  for (const double beta : betas) alphas_cumprod.push_back(product *= 1.0 - beta);
  return alphas_cumprod;
}

absl::StatusOr<std::vector<double>> Betas(const SchedulerConfig& config) {
  std::vector<double> betas = ScheduledBetas(config);
  if (config.rescale_betas_zero_snr) DEEPPCR_RETURN_IF_ERROR(RescaleToZeroSnr(betas));
  return betas;
}

}  // namespace deeppcr
