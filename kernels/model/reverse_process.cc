// SPDX-License-Identifier: Apache-2.0
#include "kernels/model/reverse_process.h"

#include <cmath>
#include <limits>
#include <tuple>
#include <utility>

#include "kernels/base/status_context.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/model/noise_schedule.h"
#include "kernels/model/samplers.h"
#include "kernels/model/timesteps.h"

namespace deeppcr {
namespace {

constexpr double kMinVariance = 1e-20;
constexpr double kSmallestProduct = 0x1p-24;

// The factor sigma -> shift sigma / (1 + (shift - 1) sigma): diffusers' e^mu / (e^mu + 1/sigma -
// 1).
double ShiftOf(const SchedulerConfig& config, double mu) {
  return config.time_shift_type == TimeShift::kExponential ? std::exp(mu) : mu;
}

bool IsFlowMatch(const SchedulerConfig& config) {
  return config.scheduler_class == SchedulerClass::kFlowMatchEuler;
}

// Errors where mu says nothing, and where it is missing.
absl::Status CheckMu(const SchedulerConfig& config, std::optional<double> mu) {
  if (!config.use_dynamic_shifting) {
    if (!mu.has_value()) return absl::OkStatus();
    return InvalidArgument("mu: expected none with ", NameOf(config.scheduler_class),
                           " without use_dynamic_shifting, got ", *mu);
  }
  if (!mu.has_value()) {
    if (!IsFlowMatch(config)) return absl::OkStatus();
    return absl::InvalidArgumentError(
        "mu: missing; expected the number that the pipeline passes to set_timesteps, as "
        "scheduler_config.json has use_dynamic_shifting");
  }
  if (!IsFlowMatch(config) && config.time_shift_type != TimeShift::kExponential) {
    return InvalidArgument("time_shift_type: expected \"exponential\" with ",
                           NameOf(config.scheduler_class), " and mu, got \"linear\"");
  }
  const double shift = ShiftOf(config, *mu);
  if (std::isfinite(shift) && shift > 0.0) return absl::OkStatus();
  return InvalidArgument("mu: expected a number that makes a finite shift above 0, got ", *mu,
                         ", which makes ", shift);
}

absl::Status CheckOptions(const SchedulerConfig& config, const ReverseProcessOptions& options) {
  if (!(options.eta >= 0.0 && options.eta <= 1.0)) {
    return InvalidArgument("eta: expected a number in [0, 1], got ", options.eta);
  }
  DEEPPCR_RETURN_IF_ERROR(CheckMu(config, options.mu));
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

// The config with the shift that mu makes.
SchedulerConfig Shifted(SchedulerConfig config, double mu) {
  (IsFlowMatch(config) ? config.shift : config.flow_shift) = ShiftOf(config, mu);
  return config;
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
      case PredictionType::kFlowPrediction:
        break;  // DDPM and DDIM do not take it
    }
  }

  void SetDdpm(const Products& products, ReverseStep& step) const {
    const double alpha = products.now / products.prev;
    const double beta = 1.0 - alpha;
    const double noise_share = (1.0 - products.prev) / (1.0 - products.now);
    step.z_x0 = std::sqrt(products.prev) * beta / (1.0 - products.now);
    step.z_z = std::sqrt(alpha) * noise_share;
    if (step.timestep == 0) return;
    SetNoise(std::max(noise_share * beta, kMinVariance), beta, step);
  }

  // Of the variances of fixed_small and fixed_large.
  void SetNoise(double small, double large, ReverseStep& step) const {
    switch (config_.variance_type) {
      case VarianceType::kFixedSmall:
        step.sigma = std::sqrt(small);
        break;
      case VarianceType::kFixedLarge:
        step.sigma = std::sqrt(large);
        break;
      case VarianceType::kLearned:
        step.sigma = 1.0;
        break;
      case VarianceType::kLearnedRange:
        step.sigma = std::exp(0.25 * (std::log(large) + std::log(small)));
        step.sigma_v = 0.25 * (std::log(large) - std::log(small));
        break;
    }
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
      case PredictionType::kFlowPrediction:
        break;
    }
  }

  // The backends hold float32: a product that nearly underflows must not become an infinity there.
  static absl::Status CheckFinite(const ReverseStep& step, const Products& products) {
    for (const double value :
         {step.x0_z, step.x0_m, step.z_z, step.z_m, step.z_x0, step.sigma, step.sigma_v}) {
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

bool HasBetas(SchedulerClass scheduler_class) {
  return scheduler_class != SchedulerClass::kFlowMatchEuler &&
         scheduler_class != SchedulerClass::kEdmEuler;
}

// Where diffusers keeps the last product off 0, so that no sigma is infinite.
bool HasFiniteSigmas(SchedulerClass scheduler_class) {
  return scheduler_class == SchedulerClass::kEuler ||
         scheduler_class == SchedulerClass::kEulerAncestral ||
         scheduler_class == SchedulerClass::kDpmSolverMultistep;
}

bool Clips(SchedulerClass scheduler_class) {
  return scheduler_class == SchedulerClass::kDdpm || scheduler_class == SchedulerClass::kDdim ||
         scheduler_class == SchedulerClass::kLcm || scheduler_class == SchedulerClass::kHeun;
}

absl::StatusOr<ReverseProcess> Schedule(const SchedulerConfig& config) {
  ReverseProcess process;
  process.form = FormOf(config);
  const bool clips = config.clip_sample && Clips(config.scheduler_class);
  process.clip_range = clips ? config.clip_sample_range : std::numeric_limits<double>::infinity();
  if (!HasBetas(config.scheduler_class)) return process;
  DEEPPCR_ASSIGN_OR_RETURN(process.betas, Betas(config));
  process.alphas_cumprod = CumulativeProduct(process.betas);
  if (config.rescale_betas_zero_snr && HasFiniteSigmas(config.scheduler_class))
    process.alphas_cumprod.back() = kSmallestProduct;
  return process;
}

// DDPM and DDIM.
absl::StatusOr<SamplerSteps> VarianceStepsOf(const SchedulerConfig& config,
                                             const ReverseProcessOptions& options,
                                             const std::vector<double>& alphas_cumprod) {
  DEEPPCR_ASSIGN_OR_RETURN(const std::vector<int64_t> timesteps,
                           Timesteps(config, options.num_inference_steps));
  const StepBuilder builder(config, options, alphas_cumprod);
  SamplerSteps sampler;
  for (size_t i = 0; i < timesteps.size(); ++i) {
    const int64_t next = i + 1 < timesteps.size() ? timesteps[i + 1] : -1;
    DEEPPCR_ASSIGN_OR_RETURN(ReverseStep step, builder.Build(timesteps[i], next));
    sampler.steps.push_back(std::move(step));
  }
  return sampler;
}

absl::StatusOr<SamplerSteps> StepsOf(const SchedulerConfig& config,
                                     const ReverseProcessOptions& options,
                                     const std::vector<double>& alphas_cumprod) {
  const int64_t n = options.num_inference_steps;
  switch (config.scheduler_class) {
    case SchedulerClass::kDdpm:
    case SchedulerClass::kDdim:
      return VarianceStepsOf(config, options, alphas_cumprod);
    case SchedulerClass::kEuler:
    case SchedulerClass::kEulerAncestral:
      return EulerSteps(config, alphas_cumprod, n);
    case SchedulerClass::kDpmSolverMultistep:
      return DpmSolverSteps(config, alphas_cumprod, n, options.first_step);
    case SchedulerClass::kLcm:
      return LcmSteps(config, alphas_cumprod, n);
    case SchedulerClass::kFlowMatchEuler:
      return FlowMatchSteps(config, n);
    case SchedulerClass::kEdmEuler:
      return EdmEulerSteps(config, n);
    case SchedulerClass::kHeun:
      return HeunSteps(config, alphas_cumprod, n);
  }
  return Internal("a scheduler without steps");
}

}  // namespace

int64_t MostInferenceSteps(const SchedulerConfig& config) {
  switch (config.scheduler_class) {
    case SchedulerClass::kLcm:
      return config.original_inference_steps;
    case SchedulerClass::kHeun:
      return 2 * config.num_train_timesteps - 1;
    default:
      return config.num_train_timesteps;
  }
}

bool ScalesStates(const SchedulerConfig& config) {
  switch (config.scheduler_class) {
    case SchedulerClass::kEuler:
    case SchedulerClass::kEulerAncestral:
    case SchedulerClass::kEdmEuler:
    case SchedulerClass::kHeun:
      return true;
    default:
      return false;
  }
}

SamplerForm FormOf(const SchedulerConfig& config) {
  SamplerForm form;
  form.carries =
      config.scheduler_class == SchedulerClass::kHeun ||
      (config.scheduler_class == SchedulerClass::kDpmSolverMultistep && config.solver_order == 2);
  if (config.scheduler_class != SchedulerClass::kDdpm) return form;
  if (config.variance_type == VarianceType::kLearned) form.noise_scale = NoiseScale::kLearned;
  if (config.variance_type == VarianceType::kLearnedRange)
    form.noise_scale = NoiseScale::kLearnedRange;
  return form;
}

absl::Status CheckSteps(std::span<const ReverseStep> steps, double initial_scale) {
  const auto fits = [](double value) {
    return std::abs(value) <= std::numeric_limits<float>::max();
  };
  const auto expected = [](std::string_view what, size_t i, std::string_view column, double value) {
    return InvalidArgument("step ", i, ": expected ", what, " for ", column, ", got ", value);
  };
  for (size_t i = 0; i < steps.size(); ++i) {
    const ReverseStep& step = steps[i];
    for (const auto& [column, value] : {std::pair{"x0_z", step.x0_z},
                                        {"x0_m", step.x0_m},
                                        {"z_z", step.z_z},
                                        {"z_m", step.z_m},
                                        {"z_x0", step.z_x0},
                                        {"sigma", step.sigma},
                                        {"z_c", step.z_c},
                                        {"c_z", step.c_z},
                                        {"c_m", step.c_m},
                                        {"c_x0", step.c_x0},
                                        {"time", step.timestep}})
      if (!fits(value)) return expected("a number that is finite as float32", i, column, value);
    // Of a guess that holds x0.
    for (const auto& [quotient, of_z, of_m] :
         {std::tuple{"z_m / x0_m", step.z_z, step.z_m}, {"c_m / x0_m", step.c_z, step.c_m}}) {
      const double by_x0 = step.x0_m == 0.0 ? 0.0 : of_m / step.x0_m;
      if (!fits(by_x0) || !fits(of_z - by_x0 * step.x0_z))
        return expected("a quotient that is finite as float32", i, quotient, by_x0);
    }
  }
  if (fits(initial_scale) && static_cast<float>(initial_scale) > 0.0F) return absl::OkStatus();
  return InvalidArgument("initial_scale: expected a number above 0 and finite as float32, got ",
                         initial_scale);
}

absl::Status LeaveOut(int64_t first_step, std::vector<ReverseStep>* steps) {
  if (steps->at(static_cast<size_t>(first_step)).z_c != 0)
    return InvalidArgument("first_step: expected a step that takes nothing of the one before, got ",
                           first_step);
  steps->erase(steps->begin(), steps->begin() + first_step);
  return absl::OkStatus();
}

absl::StatusOr<ReverseProcess> BuildReverseProcess(const SchedulerConfig& config,
                                                   const ReverseProcessOptions& options) {
  DEEPPCR_RETURN_IF_ERROR(CheckOptions(config, options));
  DEEPPCR_ASSIGN_OR_RETURN(ReverseProcess process, Schedule(config));
  DEEPPCR_ASSIGN_OR_RETURN(
      SamplerSteps sampler,
      StepsOf(options.mu ? Shifted(config, *options.mu) : config, options, process.alphas_cumprod));
  process.steps = std::move(sampler.steps);
  process.initial_scale = sampler.initial_scale;
  const std::string context =
      StrCat(NameOf(config.scheduler_class), " with ", options.num_inference_steps, " steps");
  DEEPPCR_RETURN_IF_ERROR(WithContext(CheckSteps(process.steps, process.initial_scale), context));
  if (options.first_step == 0) return process;
  process.initial_scale = 1.0;
  DEEPPCR_RETURN_IF_ERROR(LeaveOut(options.first_step, &process.steps));
  return process;
}

}  // namespace deeppcr
