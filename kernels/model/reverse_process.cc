// SPDX-License-Identifier: Apache-2.0
#include "kernels/model/reverse_process.h"

#include <cmath>
#include <limits>
#include <utility>

#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/model/noise_schedule.h"

namespace deeppcr {
namespace {

constexpr double kMinVariance = 1e-20;

std::vector<int64_t> LeadingTimesteps(const SchedulerConfig& config, int64_t count) {
  const int64_t stride = config.num_train_timesteps / count;
  std::vector<int64_t> timesteps;
  for (int64_t i = count - 1; i >= 0; --i) timesteps.push_back(i * stride + config.steps_offset);
  return timesteps;
}

std::vector<int64_t> LinspaceTimesteps(const SchedulerConfig& config, int64_t count) {
  const double last = static_cast<double>(config.num_train_timesteps - 1);
  std::vector<int64_t> timesteps;
  for (const double value : Linspace(0.0, last, count)) timesteps.push_back(RoundHalfToEven(value));
  std::reverse(timesteps.begin(), timesteps.end());
  return timesteps;
}

// Timesteps by the floating-point operations of numpy.arange(T, 0, -T / n), in the same order:
// where a value is a half up to rounding, the operations decide to which side the value goes.
std::vector<int64_t> TrailingTimesteps(const SchedulerConfig& config, int64_t count) {
  const double start = static_cast<double>(config.num_train_timesteps);
  const double stride = start / static_cast<double>(count);
  const double delta = (start - stride) - start;
  const auto size = static_cast<int64_t>(std::ceil(start / stride));
  std::vector<int64_t> timesteps;
  for (int64_t i = 0; i < size; ++i) {
    timesteps.push_back(RoundHalfToEven(start + static_cast<double>(i) * delta) - 1);
  }
  return timesteps;
}

std::vector<int64_t> ListedTimesteps(const SchedulerConfig& config, int64_t count) {
  switch (config.timestep_spacing) {
    case TimestepSpacing::kLeading:
      return LeadingTimesteps(config, count);
    case TimestepSpacing::kLinspace:
      return LinspaceTimesteps(config, count);
    case TimestepSpacing::kTrailing:
      return TrailingTimesteps(config, count);
  }
  return {};
}

absl::Status CheckInRange(const SchedulerConfig& config, const std::vector<int64_t>& timesteps) {
  const int64_t count = static_cast<int64_t>(timesteps.size());
  if (timesteps.front() >= config.num_train_timesteps) {
    return InvalidArgument(
        "steps_offset: expected timesteps below num_train_timesteps = ", config.num_train_timesteps,
        ", got ", timesteps.front(), " with ", count, " steps and offset ", config.steps_offset);
  }
  if (timesteps.back() >= 0) return absl::OkStatus();
  return InvalidArgument(
      "num_inference_steps: expected a number for which `trailing` ends at 0 or "
      "above, got ",
      count - 1, " of ", config.num_train_timesteps, ", for which diffusers makes ", count,
      " timesteps ending in ", timesteps.back());
}

absl::Status CheckOptions(const SchedulerConfig& config, const ReverseProcessOptions& options) {
  if (!(options.eta >= 0.0 && options.eta <= 1.0)) {
    return InvalidArgument("eta: expected a number in [0, 1], got ", options.eta);
  }
  if (config.scheduler_class == SchedulerClass::kDdim) return absl::OkStatus();
  const std::string_view name = NameOf(config.scheduler_class);
  if (options.eta != 0.0) {
    return InvalidArgument("eta: expected 0 with ", name, ", which has none, got ", options.eta);
  }
  if (options.use_clipped_model_output) {
    return InvalidArgument("use_clipped_model_output: expected false with ", name,
                           ", which has no such option, got true");
  }
  return absl::OkStatus();
}

// Products that a step is made of: a and p of the header.
struct Products {
  double now;
  double prev;
};

class StepBuilder {
 public:
  StepBuilder(const SchedulerConfig& config, const ReverseProcessOptions& options,
              const std::vector<double>& alphas_cumprod)
      : config_(config), options_(options), alphas_cumprod_(alphas_cumprod) {}

  absl::StatusOr<ReverseStep> Build(int64_t timestep, int64_t next_in_list) const {
    ReverseStep step;
    step.timestep = timestep;
    step.prev_timestep = PrevTimestep(timestep, next_in_list);
    const Products products = {At(timestep), Previous(step.prev_timestep)};
    DEEPPCR_RETURN_IF_ERROR(CheckDivisors(step, products));
    SetPrediction(products, step);
    if (config_.scheduler_class == SchedulerClass::kDdpm) {
      SetDdpm(products, step);
    } else {
      SetDdim(products, step);
    }
    DEEPPCR_RETURN_IF_ERROR(CheckFinite(step, products));
    return step;
  }

 private:
  double At(int64_t timestep) const { return alphas_cumprod_[static_cast<size_t>(timestep)]; }

  double Previous(int64_t prev_timestep) const {
    if (prev_timestep >= 0) return At(prev_timestep);
    const bool ddim = config_.scheduler_class == SchedulerClass::kDdim;
    return ddim && !config_.set_alpha_to_one ? alphas_cumprod_.front() : 1.0;
  }

  int64_t PrevTimestep(int64_t timestep, int64_t next_in_list) const {
    const bool by_formula =
        options_.diffusers_compatible && config_.scheduler_class == SchedulerClass::kDdim;
    if (!by_formula) return next_in_list;
    const int64_t stride = config_.num_train_timesteps / options_.num_inference_steps;
    return std::max<int64_t>(timestep - stride, -1);
  }

  absl::Status CheckDivisors(const ReverseStep& step, const Products& products) const {
    if (products.prev <= 0.0) {
      return InvalidArgument("betas: expected alphas_cumprod above 0 at timestep ",
                             step.prev_timestep, ", which follows ", step.timestep, ", got ",
                             products.prev);
    }
    if (products.now >= 1.0) {
      return InvalidArgument("betas: expected alphas_cumprod below 1 at timestep ", step.timestep,
                             ", got ", products.now);
    }
    if (products.now > 0.0 || config_.prediction_type != PredictionType::kEpsilon) {
      return absl::OkStatus();
    }
    return InvalidArgument(
        "prediction_type: expected sample or v_prediction where alphas_cumprod is 0 (timestep ",
        step.timestep, "; rescale_betas_zero_snr), got epsilon, which divides by it");
  }

  void SetPrediction(const Products& products, ReverseStep& step) const {
    const double signal = std::sqrt(products.now);
    const double noise = std::sqrt(1.0 - products.now);
    switch (config_.prediction_type) {
      case PredictionType::kEpsilon:
        step.x0_z = 1.0 / signal;
        step.x0_m = -noise / signal;
        break;
      case PredictionType::kSample:
        step.x0_m = 1.0;
        break;
      case PredictionType::kVPrediction:
        step.x0_z = signal;
        step.x0_m = -noise;
        break;
    }
  }

  void SetDdpm(const Products& products, ReverseStep& step) const {
    const double alpha = products.now / products.prev;
    const double beta = 1.0 - alpha;
    const double noise_share = (1.0 - products.prev) / (1.0 - products.now);
    step.z_x0 = std::sqrt(products.prev) * beta / (1.0 - products.now);
    step.z_z = std::sqrt(alpha) * noise_share;
    if (step.timestep == 0) return;
    const bool small = config_.variance_type == VarianceType::kFixedSmall;
    step.sigma = std::sqrt(small ? std::max(noise_share * beta, kMinVariance) : beta);
  }

  void SetDdim(const Products& products, ReverseStep& step) const {
    const double noise_share = (1.0 - products.prev) / (1.0 - products.now);
    const double variance = noise_share * (1.0 - products.now / products.prev);
    step.sigma = options_.eta * std::sqrt(std::max(variance, 0.0));
    // Rounding may take the difference below 0.
    const double left = std::max(1.0 - products.prev - step.sigma * step.sigma, 0.0);
    const double direction = std::sqrt(left);
    step.z_x0 = std::sqrt(products.prev);
    if (options_.use_clipped_model_output) {
      // eps of the clipped x0: (z - sqrt(a) x0) / sqrt(1-a).
      step.z_z = direction / std::sqrt(1.0 - products.now);
      step.z_x0 -= step.z_z * std::sqrt(products.now);
      return;
    }
    SetDirection(products, direction, step);
  }

  void SetDirection(const Products& products, double direction, ReverseStep& step) const {
    const double signal = std::sqrt(products.now);
    const double noise = std::sqrt(1.0 - products.now);
    switch (config_.prediction_type) {
      case PredictionType::kEpsilon:
        step.z_m = direction;
        break;
      case PredictionType::kSample:
        step.z_z = direction / noise;
        step.z_m = -direction * signal / noise;
        break;
      case PredictionType::kVPrediction:
        step.z_z = direction * noise;
        step.z_m = direction * signal;
        break;
    }
  }

  // The backends hold float32: a product that nearly underflows must not become an infinity there.
  static absl::Status CheckFinite(const ReverseStep& step, const Products& products) {
    for (const double value : {step.x0_z, step.x0_m, step.z_z, step.z_m, step.z_x0, step.sigma}) {
      if (std::abs(value) <= std::numeric_limits<float>::max()) continue;
      return InvalidArgument("betas: expected coefficients that are finite as float32, got ", value,
                             " at timestep ", step.timestep, ", where alphas_cumprod is ",
                             products.now);
    }
    return absl::OkStatus();
  }

  const SchedulerConfig& config_;
  const ReverseProcessOptions& options_;
  const std::vector<double>& alphas_cumprod_;
};

}  // namespace

absl::StatusOr<std::vector<int64_t>> Timesteps(const SchedulerConfig& config,
                                               int64_t num_inference_steps,
                                               bool diffusers_compatible) {
  if (num_inference_steps < 1 || num_inference_steps > config.num_train_timesteps) {
    return InvalidArgument("num_inference_steps: expected an integer in [1, num_train_timesteps = ",
                           config.num_train_timesteps, "], got ", num_inference_steps);
  }
  std::vector<int64_t> timesteps = ListedTimesteps(config, num_inference_steps);
  if (timesteps.back() < 0 && !diffusers_compatible) timesteps.pop_back();
  DEEPPCR_RETURN_IF_ERROR(CheckInRange(config, timesteps));
  return timesteps;
}

absl::StatusOr<ReverseProcess> BuildReverseProcess(const SchedulerConfig& config,
                                                   const ReverseProcessOptions& options) {
  DEEPPCR_RETURN_IF_ERROR(CheckOptions(config, options));
  DEEPPCR_ASSIGN_OR_RETURN(
      const std::vector<int64_t> timesteps,
      Timesteps(config, options.num_inference_steps, options.diffusers_compatible));
  ReverseProcess process;
  DEEPPCR_ASSIGN_OR_RETURN(process.betas, Betas(config));
  process.alphas_cumprod = CumulativeProduct(process.betas);
  process.clip_range =
      config.clip_sample ? config.clip_sample_range : std::numeric_limits<double>::infinity();
  const StepBuilder builder(config, options, process.alphas_cumprod);
  for (size_t i = 0; i < timesteps.size(); ++i) {
    const int64_t next = i + 1 < timesteps.size() ? timesteps[i + 1] : -1;
    DEEPPCR_ASSIGN_OR_RETURN(ReverseStep step, builder.Build(timesteps[i], next));
    process.steps.push_back(std::move(step));
  }
  return process;
}

}  // namespace deeppcr
