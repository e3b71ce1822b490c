// SPDX-License-Identifier: Apache-2.0
#include "kernels/model/sigma_schedule.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/model/noise_schedule.h"
#include "kernels/model/timesteps.h"

namespace deeppcr {
namespace {

using Vector = std::vector<double>;

// How near to a half a time may be that is rounded to an integer: diffusers' float32 tables move
// times of a thousand timesteps by less.
constexpr double kNearHalf = 3e-4;

// Karras et al. 2022, equation 5.
Vector KarrasSigmas(double sigma_min, double sigma_max, double rho, int64_t count) {
  const double low = std::pow(sigma_min, 1.0 / rho), high = std::pow(sigma_max, 1.0 / rho);
  Vector sigmas = Linspace(0.0, 1.0, count);
  for (double& sigma : sigmas) sigma = std::pow(high + sigma * (low - high), rho);
  return sigmas;
}

// `first` to `last`, their logarithms evenly spaced.
Vector ExponentialSigmas(double first, double last, int64_t count) {
  Vector sigmas = Linspace(std::log(first), std::log(last), count);
  for (double& sigma : sigmas) sigma = std::exp(sigma);
  return sigmas;
}

// The number below which the beta distribution with both parameters a = 0.6 has a share p: the x of
// B_x(a, a) = p B(a, a), where up to 1/2, as for p, the incomplete beta function is the series
// x^a sum_n (1 - a)_n / n! x^n / (a + n), and the rest mirrors. Of u = x^a it is convex, so
// Newton's method falls to the root from where the first term of the series has it.
double BetaQuantile(double p) {
  constexpr double a = 0.6;
  if (p > 0.5) return 1.0 - BetaQuantile(1.0 - p);
  const auto incomplete = [](double x) {
    double sum = 0.0, power = 1.0, before = -1.0;
    for (double n = 0.0; sum != before; n += 1.0) {
      before = sum;
      sum += power / (a + n);
      power *= (n + 1.0 - a) / (n + 1.0) * x;
    }
    return std::pow(x, a) * sum;
  };
  const double want = p * 2.0 * incomplete(0.5);
  double u = a * want;
  for (double before = 2.0 * u; u < before;) {
    before = u;
    const double x = std::pow(u, 1.0 / a);
    u -= (incomplete(x) - want) * a * std::pow(1.0 - x, 1.0 - a);
  }
  return std::pow(u, 1.0 / a);
}

// Lee et al. 2024, "Beta Sampling is All You Need" (arXiv 2407.12173).
Vector BetaSigmas(double first, double last, int64_t count) {
  Vector sigmas = Linspace(0.0, 1.0, count);
  for (double& sigma : sigmas) sigma = last + BetaQuantile(1.0 - sigma) * (first - last);
  return sigmas;
}

// The key that spaces sigmas by their ends alone, or "".
std::string_view SpacingOf(const SchedulerConfig& config) {
  if (config.use_karras_sigmas) return "use_karras_sigmas";
  if (config.use_exponential_sigmas) return "use_exponential_sigmas";
  if (config.use_beta_sigmas) return "use_beta_sigmas";
  return config.use_lu_lambdas ? "use_lu_lambdas" : "";
}

// sigma_min and sigma_max of the file, which all classes read that space sigmas, or others.
double SigmaMin(const SchedulerConfig& config, double otherwise) {
  return config.sigma_min.value_or(otherwise);
}
double SigmaMax(const SchedulerConfig& config, double otherwise) {
  return config.sigma_max.value_or(otherwise);
}

// Sigmas of `first` to `last` of a config that has such a key. The file's sigma_max and sigma_min
// go before both, but for lambdas.
Vector Spaced(const SchedulerConfig& config, double first, double last, int64_t count) {
  if (config.use_lu_lambdas) return ExponentialSigmas(first, last, count);
  first = SigmaMax(config, first);
  last = SigmaMin(config, last);
  if (config.use_karras_sigmas) return KarrasSigmas(last, first, 7.0, count);
  if (config.use_beta_sigmas) return BetaSigmas(first, last, count);
  return ExponentialSigmas(first, last, count);
}

// The table of sigmas by timesteps, between which it is linear.
class SigmaTable {
 public:
  explicit SigmaTable(const Vector& alphas_cumprod) {
    for (const double a : alphas_cumprod) sigmas_.push_back(std::sqrt((1.0 - a) / a));
    for (const double sigma : sigmas_) logs_.push_back(std::log(sigma));
  }
  double first() const { return sigmas_.front(); }
  double last() const { return sigmas_.back(); }
  const Vector& logs() const { return logs_; }

  double At(double time) const {
    const auto below = static_cast<size_t>(time);
    if (below + 1 >= sigmas_.size()) return sigmas_.back();
    const double slope = sigmas_[below + 1] - sigmas_[below];
    return slope * (time - static_cast<double>(below)) + sigmas_[below];
  }

  // The time of a sigma, whose logarithm is linear between timesteps here: _sigma_to_t of
  // diffusers. All but the last logarithm ascend, as alphas_cumprod falls.
  double TimeOf(double sigma) const {
    const double log = std::log(std::max(sigma, 1e-10));
    const auto end = logs_.end() - 1;
    const auto above = std::upper_bound(logs_.begin(), end, log);
    auto below = above == logs_.begin() ? above : above - 1;
    if (logs_.back() <= log) below = end - 1;
    const auto low = static_cast<double>(below - logs_.begin());
    const double share = std::clamp((*below - log) / (*below - *(below + 1)), 0.0, 1.0);
    return (1.0 - share) * low + share * (low + 1.0);
  }

 private:
  Vector sigmas_, logs_;
};

absl::Status CheckTable(const Vector& alphas_cumprod) {
  for (size_t t = 0; t < alphas_cumprod.size(); ++t) {
    if (alphas_cumprod[t] > 0.0 && alphas_cumprod[t] < 1.0) continue;
    return InvalidArgument("betas: expected alphas_cumprod above 0 and below 1 at timestep ", t,
                           ", got ", alphas_cumprod[t]);
  }
  return absl::OkStatus();
}

absl::Status CheckTimesOf(const SchedulerConfig& config) {
  if (config.num_train_timesteps >= 2) return absl::OkStatus();
  return InvalidArgument(SpacingOf(config),
                         ": expected false with num_train_timesteps 1, got true");
}

absl::StatusOr<Vector> EulerTimes(const SchedulerConfig& config, int64_t count) {
  if (config.timestep_spacing == TimestepSpacing::kLinspace) {
    Vector times = Linspace(0.0, static_cast<double>(config.num_train_timesteps - 1), count);
    std::ranges::reverse(times);
    return times;
  }
  DEEPPCR_ASSIGN_OR_RETURN(const std::vector<int64_t> timesteps, Timesteps(config, count));
  return Vector(timesteps.begin(), timesteps.end());
}

absl::StatusOr<SigmaSchedule> EulerSigmas(const SchedulerConfig& config, const SigmaTable& table,
                                          int64_t n) {
  SigmaSchedule schedule;
  DEEPPCR_ASSIGN_OR_RETURN(schedule.times, EulerTimes(config, n));
  Vector& sigmas = schedule.sigmas;
  if (config.interpolation_type == InterpolationType::kLogLinear) {
    sigmas = ExponentialSigmas(table.last(), table.first(), n + 1);
  } else {
    for (const double time : schedule.times) sigmas.push_back(table.At(time));
  }
  if (!SpacingOf(config).empty()) {
    DEEPPCR_RETURN_IF_ERROR(CheckTimesOf(config));
    sigmas = Spaced(config, sigmas.front(), sigmas.back(), n);
    for (int64_t i = 0; i < n; ++i)
      schedule.times[static_cast<size_t>(i)] = table.TimeOf(sigmas[static_cast<size_t>(i)]);
  }
  // log_linear made the last sigma itself.
  if (std::ssize(sigmas) == n)
    sigmas.push_back(config.final_sigmas_type == FinalSigmas::kZero ? 0.0 : table.first());
  if (config.timestep_type == TimestepType::kContinuous &&
      config.prediction_type == PredictionType::kVPrediction) {
    for (int64_t i = 0; i < n; ++i)
      schedule.times[static_cast<size_t>(i)] = 0.25 * std::log(sigmas[static_cast<size_t>(i)]);
  }
  return schedule;
}

// Timesteps up to which lambda = log(alpha / sigma) is not below lambda_min_clipped.
int64_t LastTimestep(const SchedulerConfig& config, const SigmaTable& table) {
  return std::ranges::count_if(
      table.logs(), [&](double log_sigma) { return -log_sigma >= config.lambda_min_clipped; });
}

absl::Status RoundTimes(const SchedulerConfig& config, Vector& times) {
  for (double& time : times) {
    const double rounded = std::nearbyint(time);
    if (std::abs(std::abs(time - rounded) - 0.5) >= kNearHalf) {
      time = rounded;
      continue;
    }
    return InvalidArgument(
        "num_inference_steps: expected a number for which every time is clearly "
        "on one side of a half with ",
        SpacingOf(config), ", got ", times.size(), " with the time ", time,
        ", which diffusers rounds as its float32 happens to be");
  }
  return absl::OkStatus();
}

// Evenly spaced for the rectified flow, and times cut off to integers, by the floating-point
// operations of diffusers in the same order.
SigmaSchedule DpmFlowSigmas(const SchedulerConfig& config, int64_t n) {
  const double T = static_cast<double>(config.num_train_timesteps), shift = config.flow_shift;
  const Vector alphas = Linspace(1.0, 1.0 / T, n + 1);
  SigmaSchedule schedule;
  for (int64_t i = n; i > 0; --i) {
    const double sigma = 1.0 - alphas[static_cast<size_t>(i)];
    schedule.sigmas.push_back(shift * sigma / (1.0 + (shift - 1.0) * sigma));
    schedule.times.push_back(std::trunc(schedule.sigmas.back() * T));
  }
  return schedule;
}

absl::StatusOr<SigmaSchedule> DpmSigmas(const SchedulerConfig& config, const SigmaTable& table,
                                        int64_t n) {
  const int64_t last = LastTimestep(config, table);
  if (last < 1) {
    return InvalidArgument("lambda_min_clipped: expected a number that leaves a timestep, got ",
                           config.lambda_min_clipped);
  }
  SigmaSchedule schedule;
  if (config.use_flow_sigmas) {
    schedule = DpmFlowSigmas(config, n);
  } else if (!SpacingOf(config).empty()) {
    DEEPPCR_RETURN_IF_ERROR(CheckTimesOf(config));
    schedule.sigmas = Spaced(config, table.last(), table.first(), n);
    for (const double sigma : schedule.sigmas) schedule.times.push_back(table.TimeOf(sigma));
    DEEPPCR_RETURN_IF_ERROR(RoundTimes(config, schedule.times));
  } else {
    DEEPPCR_ASSIGN_OR_RETURN(const std::vector<int64_t> timesteps, DpmTimesteps(config, last, n));
    schedule.times.assign(timesteps.begin(), timesteps.end());
    for (const double time : schedule.times) schedule.sigmas.push_back(table.At(time));
  }
  schedule.sigmas.push_back(config.final_sigmas_type == FinalSigmas::kZero ? 0.0 : table.first());
  return schedule;
}

}  // namespace

absl::StatusOr<SigmaSchedule> VarianceExplodingSigmas(const SchedulerConfig& config,
                                                      const std::vector<double>& alphas_cumprod,
                                                      int64_t num_inference_steps) {
  DEEPPCR_RETURN_IF_ERROR(CheckNumSteps(config, num_inference_steps));
  DEEPPCR_RETURN_IF_ERROR(CheckTable(alphas_cumprod));
  const SigmaTable table(alphas_cumprod);
  return config.scheduler_class == SchedulerClass::kDpmSolverMultistep
             ? DpmSigmas(config, table, num_inference_steps)
             : EulerSigmas(config, table, num_inference_steps);
}

absl::StatusOr<SigmaSchedule> FlowMatchSigmas(const SchedulerConfig& config,
                                              int64_t num_inference_steps) {
  DEEPPCR_RETURN_IF_ERROR(CheckNumSteps(config, num_inference_steps));
  const double T = static_cast<double>(config.num_train_timesteps);
  const auto shifted = [&](double sigma) {
    return config.shift * sigma / (1.0 + (config.shift - 1.0) * sigma);
  };
  // Shifted twice: the ends, unless the shift is dynamic, and all that lies between them.
  const auto end = [&](double sigma) {
    return T * (config.use_dynamic_shifting ? sigma : shifted(sigma));
  };
  SigmaSchedule schedule;
  Vector& sigmas = schedule.sigmas;
  sigmas = Linspace(end(1.0), end(1.0 / T), num_inference_steps);
  for (double& sigma : sigmas) sigma = shifted(sigma / T);
  if (config.shift_terminal > 0.0) {
    const double scale = (1.0 - sigmas.back()) / (1.0 - config.shift_terminal);
    if (!(scale > 0.0)) {
      return InvalidArgument("shift_terminal: expected null or 0 where the last sigma is 1 (",
                             num_inference_steps, " steps), got ", config.shift_terminal);
    }
    for (double& sigma : sigmas) sigma = 1.0 - (1.0 - sigma) / scale;
  }
  if (!SpacingOf(config).empty())
    sigmas = Spaced(config, sigmas.front(), sigmas.back(), num_inference_steps);
  for (double& sigma : sigmas) {
    if (config.invert_sigmas) sigma = 1.0 - sigma;
    schedule.times.push_back(sigma * T);
  }
  sigmas.push_back(config.invert_sigmas ? 1.0 : 0.0);
  return schedule;
}

absl::StatusOr<SigmaSchedule> EdmSigmas(const SchedulerConfig& config,
                                        int64_t num_inference_steps) {
  DEEPPCR_RETURN_IF_ERROR(CheckNumSteps(config, num_inference_steps));
  const double low = SigmaMin(config, 0.002), high = SigmaMax(config, 80.0);
  SigmaSchedule schedule;
  if (config.sigma_schedule == EdmSpacing::kKarras) {
    schedule.sigmas = KarrasSigmas(low, high, config.rho, num_inference_steps);
  } else {
    // From the smallest on, which is the only one of a single step.
    schedule.sigmas = ExponentialSigmas(low, high, num_inference_steps);
    std::ranges::reverse(schedule.sigmas);
  }
  for (const double sigma : schedule.sigmas) schedule.times.push_back(0.25 * std::log(sigma));
  schedule.sigmas.push_back(
      config.final_sigmas_type == FinalSigmas::kZero ? 0.0 : schedule.sigmas.back());
  return schedule;
}

}  // namespace deeppcr
