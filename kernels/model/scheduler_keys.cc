// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>
#include <type_traits>
#include <utility>

#include "absl/strings/str_split.h"
#include "kernels/base/json.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/model/scheduler_config.h"

namespace deeppcr {
namespace {

constexpr int64_t kMaxTrainTimesteps = 100'000;

template <typename Enum>
struct EnumName {
  Enum value;
  std::string_view name;
};

constexpr std::array<EnumName<SchedulerClass>, 9> kClasses = {{
    {SchedulerClass::kDdpm, "DDPMScheduler"},
    {SchedulerClass::kDdim, "DDIMScheduler"},
    {SchedulerClass::kEuler, "EulerDiscreteScheduler"},
    {SchedulerClass::kEulerAncestral, "EulerAncestralDiscreteScheduler"},
    {SchedulerClass::kDpmSolverMultistep, "DPMSolverMultistepScheduler"},
    {SchedulerClass::kLcm, "LCMScheduler"},
    {SchedulerClass::kFlowMatchEuler, "FlowMatchEulerDiscreteScheduler"},
    {SchedulerClass::kEdmEuler, "EDMEulerScheduler"},
    {SchedulerClass::kHeun, "HeunDiscreteScheduler"},
}};
constexpr std::array<EnumName<BetaSchedule>, 5> kBetaSchedules = {{
    {BetaSchedule::kLinear, "linear"},
    {BetaSchedule::kScaledLinear, "scaled_linear"},
    {BetaSchedule::kSquaredcosCapV2, "squaredcos_cap_v2"},
    {BetaSchedule::kSigmoid, "sigmoid"},
    {BetaSchedule::kExp, "exp"},
}};
constexpr std::array<EnumName<PredictionType>, 4> kPredictionTypes = {{
    {PredictionType::kEpsilon, "epsilon"},
    {PredictionType::kSample, "sample"},
    {PredictionType::kVPrediction, "v_prediction"},
    {PredictionType::kFlowPrediction, "flow_prediction"},
}};
constexpr std::array<EnumName<TimestepSpacing>, 3> kTimestepSpacings = {{
    {TimestepSpacing::kLeading, "leading"},
    {TimestepSpacing::kLinspace, "linspace"},
    {TimestepSpacing::kTrailing, "trailing"},
}};
constexpr std::array<EnumName<VarianceType>, 4> kVarianceTypes = {{
    {VarianceType::kFixedSmall, "fixed_small"},
    {VarianceType::kFixedLarge, "fixed_large"},
    {VarianceType::kLearned, "learned"},
    {VarianceType::kLearnedRange, "learned_range"},
}};
constexpr std::array<EnumName<InterpolationType>, 2> kInterpolationTypes = {{
    {InterpolationType::kLinear, "linear"},
    {InterpolationType::kLogLinear, "log_linear"},
}};
constexpr std::array<EnumName<TimestepType>, 2> kTimestepTypes = {{
    {TimestepType::kDiscrete, "discrete"},
    {TimestepType::kContinuous, "continuous"},
}};
constexpr std::array<EnumName<FinalSigmas>, 2> kFinalSigmas = {{
    {FinalSigmas::kZero, "zero"},
    {FinalSigmas::kSigmaMin, "sigma_min"},
}};
constexpr std::array<EnumName<EdmSpacing>, 2> kEdmSpacings = {{
    {EdmSpacing::kKarras, "karras"},
    {EdmSpacing::kExponential, "exponential"},
}};
constexpr std::array<EnumName<TimeShift>, 2> kTimeShifts = {{
    {TimeShift::kExponential, "exponential"},
    {TimeShift::kLinear, "linear"},
}};
constexpr std::array<EnumName<DpmAlgorithm>, 4> kDpmAlgorithms = {{
    {DpmAlgorithm::kDpm, "dpmsolver"},
    {DpmAlgorithm::kDpmPlusPlus, "dpmsolver++"},
    {DpmAlgorithm::kSdeDpm, "sde-dpmsolver"},
    {DpmAlgorithm::kSdeDpmPlusPlus, "sde-dpmsolver++"},
}};

// The last three are other names of diffusers' for the first.
constexpr std::array<EnumName<DpmSolverType>, 5> kDpmSolverTypes = {{
    {DpmSolverType::kMidpoint, "midpoint"},
    {DpmSolverType::kHeun, "heun"},
    {DpmSolverType::kMidpoint, "logrho"},
    {DpmSolverType::kMidpoint, "bh1"},
    {DpmSolverType::kMidpoint, "bh2"},
}};

// Defaults that differ from those of the table of keys.
struct ClassDefault {
  SchedulerClass scheduler_class;
  std::string_view name, value;
};
constexpr std::array<ClassDefault, 14> kClassDefaults = {{
    {SchedulerClass::kLcm, "beta_start", "0.00085"},
    {SchedulerClass::kLcm, "beta_end", "0.012"},
    {SchedulerClass::kLcm, "beta_schedule", "\"scaled_linear\""},
    {SchedulerClass::kLcm, "clip_sample", "false"},
    {SchedulerClass::kEuler, "timestep_spacing", "\"linspace\""},
    {SchedulerClass::kEulerAncestral, "timestep_spacing", "\"linspace\""},
    {SchedulerClass::kDpmSolverMultistep, "timestep_spacing", "\"linspace\""},
    {SchedulerClass::kDpmSolverMultistep, "variance_type", "null"},
    {SchedulerClass::kHeun, "beta_start", "0.00085"},
    {SchedulerClass::kHeun, "beta_end", "0.012"},
    {SchedulerClass::kHeun, "clip_sample", "false"},
    {SchedulerClass::kHeun, "timestep_spacing", "\"linspace\""},
    {SchedulerClass::kEdmEuler, "sigma_min", "0.002"},
    {SchedulerClass::kEdmEuler, "sigma_max", "80.0"},
}};

template <typename Names, typename Enum>
std::string_view NameIn(const Names& names, Enum value) {
  for (const auto& row : names) {
    if (row.value == value) return row.name;
  }
  return "unknown";
}

absl::Status Expected(std::string_view field, std::string_view expected,
                      const nlohmann::json& value) {
  return InvalidArgument(field, ": expected ", expected, ", got ", DescribeJson(value));
}

template <const auto& names, auto member>
absl::Status ReadEnum(const nlohmann::json& value, const SchedulerConfigKey& key,
                      SchedulerConfig& config) {
  for (const auto& row : names) {
    if (value.is_string() && value.get_ref<const std::string&>() == row.name) {
      config.*member = row.value;
      return absl::OkStatus();
    }
  }
  const std::string all = StrJoin(names, ", ", [](const auto& row) { return row.name; });
  return Expected(key.name, StrCat("one of ", all), value);
}

template <auto member>
absl::Status ReadInteger(const nlohmann::json& value, const SchedulerConfigKey& key,
                         SchedulerConfig& config) {
  DEEPPCR_ASSIGN_OR_RETURN(config.*member, JsonInteger(value, key.name, key.min, key.max));
  return absl::OkStatus();
}

template <auto member>
absl::Status ReadBool(const nlohmann::json& value, const SchedulerConfigKey& key,
                      SchedulerConfig& config) {
  DEEPPCR_ASSIGN_OR_RETURN(config.*member, JsonBool(value, key.name));
  return absl::OkStatus();
}

// Refuses 0, which would divide by zero at the first timestep, where 1 - alphas_cumprod is its
// beta.
absl::StatusOr<double> Beta(const nlohmann::json& value, std::string_view field) {
  DEEPPCR_ASSIGN_OR_RETURN(const double beta, JsonNumber(value, field));
  if (beta > 0.0 && beta <= 1.0) return beta;
  return Expected(field, "a number above 0 and at most 1", value);
}

template <auto member>
absl::Status ReadBeta(const nlohmann::json& value, const SchedulerConfigKey& key,
                      SchedulerConfig& config) {
  DEEPPCR_ASSIGN_OR_RETURN(config.*member, Beta(value, key.name));
  return absl::OkStatus();
}

// num_train_timesteps is an earlier row, so its value is known. diffusers itself does not compare
// the sizes, and indexes out of range or leaves betas unused.
absl::Status ReadTrainedBetas(const nlohmann::json& value, const SchedulerConfigKey& key,
                              SchedulerConfig& config) {
  if (value.is_null()) return absl::OkStatus();
  if (!value.is_array() || std::cmp_not_equal(value.size(), config.num_train_timesteps)) {
    return Expected(key.name,
                    StrCat("null or an array of num_train_timesteps = ", config.num_train_timesteps,
                           " numbers"),
                    value);
  }
  config.trained_betas.reserve(value.size());
  for (size_t i = 0; i < value.size(); ++i) {
    DEEPPCR_ASSIGN_OR_RETURN(const double beta, Beta(value[i], StrCat(key.name, "[", i, "]")));
    config.trained_betas.push_back(beta);
  }
  return absl::OkStatus();
}

template <auto member>
absl::Status ReadPositive(const nlohmann::json& value, const SchedulerConfigKey& key,
                          SchedulerConfig& config) {
  DEEPPCR_ASSIGN_OR_RETURN(config.*member, JsonNumber(value, key.name));
  if (std::isfinite(config.*member) && config.*member > 0.0) return absl::OkStatus();
  return Expected(key.name, "a finite number above 0", value);
}

template <auto member>
absl::Status ReadOptionalPositive(const nlohmann::json& value, const SchedulerConfigKey& key,
                                  SchedulerConfig& config) {
  if (value.is_null()) return absl::OkStatus();
  DEEPPCR_ASSIGN_OR_RETURN(const double number, JsonNumber(value, key.name));
  config.*member = number;
  if (std::isfinite(number) && number > 0.0) return absl::OkStatus();
  return Expected(key.name, "null or a finite number above 0", value);
}

absl::Status ReadShiftTerminal(const nlohmann::json& value, const SchedulerConfigKey& key,
                               SchedulerConfig& config) {
  if (value.is_null()) return absl::OkStatus();
  DEEPPCR_ASSIGN_OR_RETURN(config.shift_terminal, JsonNumber(value, key.name));
  if (config.shift_terminal >= 0.0 && config.shift_terminal < 1.0) return absl::OkStatus();
  return Expected(key.name, "null or a number in [0, 1)", value);
}

// Null is the -Infinity that diffusers writes, which is not JSON.
absl::Status ReadLambdaMin(const nlohmann::json& value, const SchedulerConfigKey& key,
                           SchedulerConfig& config) {
  if (value.is_null()) return absl::OkStatus();
  DEEPPCR_ASSIGN_OR_RETURN(config.lambda_min_clipped, JsonNumber(value, key.name));
  return absl::OkStatus();
}

absl::Status ReadSolverOrder(const nlohmann::json& value, const SchedulerConfigKey& key,
                             SchedulerConfig& config) {
  DEEPPCR_ASSIGN_OR_RETURN(config.solver_order, JsonInteger(value, key.name, key.min, key.max));
  if (config.solver_order <= 2) return absl::OkStatus();
  return Expected(key.name, "1 or 2 (steps that remember more than one are not supported)", value);
}

// DPMSolverMultistep only asks whether the network learned a variance, of which it drops all but
// three channels of an image; this is not supported.
absl::Status ReadVarianceType(const nlohmann::json& value, const SchedulerConfigKey& key,
                              SchedulerConfig& config) {
  if (config.scheduler_class == SchedulerClass::kDpmSolverMultistep && value.is_null())
    return absl::OkStatus();
  return ReadEnum<kVarianceTypes, &SchedulerConfig::variance_type>(value, key, config);
}

// Dynamic thresholding scales by a quantile over a whole sample, which couples all values and has
// no cheap derivative.
absl::Status RefuseThresholding(const nlohmann::json& value, const SchedulerConfigKey& key,
                                SchedulerConfig&) {
  DEEPPCR_ASSIGN_OR_RETURN(const bool on, JsonBool(value, key.name));
  if (!on) return absl::OkStatus();
  return Expected(key.name, "false (dynamic thresholding is not supported)", value);
}

absl::Status ReadUnusedNumber(const nlohmann::json& value, const SchedulerConfigKey& key,
                              SchedulerConfig&) {
  return JsonNumber(value, key.name).status();
}

using Config = SchedulerConfig;

constexpr std::string_view kWithBetas =
    "DDPM, DDIM, EulerDiscrete, EulerAncestralDiscrete, DPMSolverMultistep, LCM, HeunDiscrete";
// Those that space sigmas, and read their ends from the file whether they have the keys or not.
constexpr std::string_view kSigmas =
    "EulerDiscrete, DPMSolverMultistep, FlowMatchEulerDiscrete, EDMEuler, HeunDiscrete";
constexpr std::string_view kRescaling =
    "DDPM, DDIM, EulerDiscrete, EulerAncestralDiscrete, DPMSolverMultistep, LCM";
constexpr std::string_view kOfPipelines = "no effect; pipelines calculate mu from it";

constexpr std::array<SchedulerConfigKey, 49> kKeys = {{
    {"_class_name", "string", "required", "all", "the class of diffusers, one of those above", 0, 0,
     &ReadEnum<kClasses, &Config::scheduler_class>},
    {"num_train_timesteps", "integer", "1000", "all", "timesteps T the denoiser was trained with",
     1, kMaxTrainTimesteps, &ReadInteger<&Config::num_train_timesteps>},
    {"beta_start", "number", "0.0001", kWithBetas,
     "first beta, above 0 and at most 1; LCM, HeunDiscrete: 0.00085", 0, 0,
     &ReadBeta<&Config::beta_start>},
    {"beta_end", "number", "0.02", kWithBetas, "last beta, above 0 and at most 1; LCM: 0.012", 0, 0,
     &ReadBeta<&Config::beta_end>},
    {"beta_schedule", "string", "\"linear\"", kWithBetas,
     "`linear`, `scaled_linear`, `squaredcos_cap_v2`; with DDPM also `sigmoid`, with "
     "HeunDiscrete also `exp`; LCM: "
     "\"scaled_linear\"",
     0, 0, &ReadEnum<kBetaSchedules, &Config::beta_schedule>},
    {"trained_betas", "array of numbers", "null", kWithBetas,
     "the num_train_timesteps betas themselves, each above 0 and at most 1, instead of a schedule",
     0, 0, &ReadTrainedBetas},
    {"clip_sample", "boolean", "true", "DDPM, DDIM, LCM, HeunDiscrete",
     "whether the predicted x_0 is clipped; LCM, HeunDiscrete: false", 0, 0,
     &ReadBool<&Config::clip_sample>},
    {"clip_sample_range", "number", "1.0", "DDPM, DDIM, LCM, HeunDiscrete",
     "largest magnitude of a clipped x_0, above 0", 0, 0,
     &ReadPositive<&Config::clip_sample_range>},
    {"prediction_type", "string", "\"epsilon\"",
     "DDPM, DDIM, EulerDiscrete, EulerAncestralDiscrete, DPMSolverMultistep, LCM, EDMEuler, "
     "HeunDiscrete",
     "what the denoiser computes: `epsilon`, `sample` (not with EulerAncestralDiscrete and "
     "EDMEuler), `v_prediction`, or, with the ++ algorithms of DPMSolverMultistep, "
     "`flow_prediction`",
     0, 0, &ReadEnum<kPredictionTypes, &Config::prediction_type>},
    {"timestep_spacing", "string", "\"leading\"", kWithBetas,
     "`leading`, `linspace` or `trailing`; EulerDiscrete, EulerAncestralDiscrete, "
     "DPMSolverMultistep, HeunDiscrete: \"linspace\"; no effect with LCM",
     0, 0, &ReadEnum<kTimestepSpacings, &Config::timestep_spacing>},
    {"steps_offset", "integer", "0", kWithBetas,
     "added to every timestep of `leading`; no effect with LCM", 0, kMaxTrainTimesteps - 1,
     &ReadInteger<&Config::steps_offset>},
    {"set_alpha_to_one", "boolean", "true", "DDIM, LCM",
     "whether alphas_cumprod is 1 after the last step, else its first value; no effect with LCM", 0,
     0, &ReadBool<&Config::set_alpha_to_one>},
    {"variance_type", "string", "\"fixed_small\"", "DDPM, DPMSolverMultistep",
     "variance of the noise: `fixed_small` (posterior) or `fixed_large` (beta); or `learned` or "
     "`learned_range` (between these two), of a denoiser with twice the outputs; "
     "DPMSolverMultistep: null, and no effect",
     0, 0, &ReadVarianceType},
    {"rescale_betas_zero_snr", "boolean", "false", kRescaling,
     "whether betas are rescaled so that the last alphas_cumprod is 0 (2^-24 with EulerDiscrete, "
     "EulerAncestralDiscrete, DPMSolverMultistep)",
     0, 0, &ReadBool<&Config::rescale_betas_zero_snr>},
    {"sigma_min", "number", "null", kSigmas,
     "smallest sigma of karras, exponential and beta sigmas, above 0; null: that of the timesteps; "
     "EDMEuler: 0.002",
     0, 0, &ReadOptionalPositive<&Config::sigma_min>},
    {"sigma_max", "number", "null", kSigmas,
     "largest sigma of karras, exponential and beta sigmas, above 0; null: that of the timesteps; "
     "EDMEuler: 80.0",
     0, 0, &ReadOptionalPositive<&Config::sigma_max>},
    {"final_sigmas_type", "string", "\"zero\"", "EulerDiscrete, DPMSolverMultistep, EDMEuler",
     "sigma after the last step: `zero` or `sigma_min`", 0, 0,
     &ReadEnum<kFinalSigmas, &Config::final_sigmas_type>},
    {"use_karras_sigmas", "boolean", "false",
     "EulerDiscrete, DPMSolverMultistep, FlowMatchEulerDiscrete, HeunDiscrete",
     "whether sigmas are those of Karras et al. 2022; at most one of the `use_*_sigmas` and "
     "`use_lu_lambdas` is true",
     0, 0, &ReadBool<&Config::use_karras_sigmas>},
    {"use_exponential_sigmas", "boolean", "false",
     "EulerDiscrete, DPMSolverMultistep, FlowMatchEulerDiscrete, HeunDiscrete",
     "whether the logarithms of sigmas are evenly spaced; only false with DPMSolverMultistep", 0, 0,
     &ReadBool<&Config::use_exponential_sigmas>},
    {"use_beta_sigmas", "boolean", "false",
     "EulerDiscrete, DPMSolverMultistep, FlowMatchEulerDiscrete, HeunDiscrete",
     "whether sigmas are quantiles of the beta distribution, as Lee et al. 2024; only false with "
     "DPMSolverMultistep",
     0, 0, &ReadBool<&Config::use_beta_sigmas>},
    {"interpolation_type", "string", "\"linear\"", "EulerDiscrete",
     "sigmas between timesteps: `linear`, or `log_linear` over all of them", 0, 0,
     &ReadEnum<kInterpolationTypes, &Config::interpolation_type>},
    {"timestep_type", "string", "\"discrete\"", "EulerDiscrete",
     "with v_prediction, `continuous`: the time is log(sigma) / 4", 0, 0,
     &ReadEnum<kTimestepTypes, &Config::timestep_type>},
    {"solver_order", "integer", "2", "DPMSolverMultistep",
     "1, or 2: a step uses what the step before has found too", 1, 3, &ReadSolverOrder},
    {"algorithm_type", "string", "\"dpmsolver++\"", "DPMSolverMultistep",
     "`dpmsolver++`, `sde-dpmsolver++`, or, with the final_sigmas_type `sigma_min`, `dpmsolver` or "
     "`sde-dpmsolver`",
     0, 0, &ReadEnum<kDpmAlgorithms, &Config::algorithm_type>},
    {"use_lu_lambdas", "boolean", "false", "DPMSolverMultistep",
     "whether lambdas are evenly spaced, as Lu et al. 2022", 0, 0,
     &ReadBool<&Config::use_lu_lambdas>},
    {"use_flow_sigmas", "boolean", "false", "DPMSolverMultistep",
     "whether sigmas are those of flow matching, alpha 1 - sigma", 0, 0,
     &ReadBool<&Config::use_flow_sigmas>},
    {"flow_shift", "number", "1.0", "DPMSolverMultistep", "shift of use_flow_sigmas, above 0", 0, 0,
     &ReadPositive<&Config::flow_shift>},
    {"lambda_min_clipped", "number", "null", "DPMSolverMultistep",
     "timesteps of lower lambda are left out; null, or -Infinity as diffusers writes it: none", 0,
     0, &ReadLambdaMin},
    {"solver_type", "string", "\"midpoint\"", "DPMSolverMultistep",
     "with solver_order 2: `midpoint` (diffusers' other names of it are `logrho`, `bh1`, `bh2`) or "
     "`heun`",
     0, 0, &ReadEnum<kDpmSolverTypes, &Config::solver_type>},
    {"lower_order_final", "boolean", "true", "DPMSolverMultistep",
     "with solver_order 2: whether the last of fewer than 15 steps is of order 1", 0, 0,
     &ReadBool<&Config::lower_order_final>},
    {"euler_at_final", "boolean", "false", "DPMSolverMultistep",
     "with solver_order 2: whether the last step is of order 1; it is with the final_sigmas_type "
     "`zero`",
     0, 0, &ReadBool<&Config::euler_at_final>},
    {"original_inference_steps", "integer", "50", "LCM",
     "steps of the schedule that the model was distilled with; at most num_train_timesteps", 1,
     kMaxTrainTimesteps, &ReadInteger<&Config::original_inference_steps>},
    {"timestep_scaling", "number", "10.0", "LCM",
     "factor of the timestep in the boundary condition, above 0", 0, 0,
     &ReadPositive<&Config::timestep_scaling>},
    {"shift", "number", "1.0", "FlowMatchEulerDiscrete", "shift of the sigmas, above 0", 0, 0,
     &ReadPositive<&Config::shift>},
    {"shift_terminal", "number", "null", "FlowMatchEulerDiscrete",
     "last sigma before 0, to which sigmas are stretched, in [0, 1); null or 0: as they are", 0, 0,
     &ReadShiftTerminal},
    {"invert_sigmas", "boolean", "false", "FlowMatchEulerDiscrete", "whether sigmas go from 0 to 1",
     0, 0, &ReadBool<&Config::invert_sigmas>},
    {"stochastic_sampling", "boolean", "false", "FlowMatchEulerDiscrete",
     "whether every step draws its noise anew", 0, 0, &ReadBool<&Config::stochastic_sampling>},
    {"use_dynamic_shifting", "boolean", "false", "DPMSolverMultistep, FlowMatchEulerDiscrete",
     "whether the shift comes from `mu` of config.json, which a pipeline calculates from the size "
     "of an image",
     0, 0, &ReadBool<&Config::use_dynamic_shifting>},
    {"time_shift_type", "string", "\"exponential\"", "DPMSolverMultistep, FlowMatchEulerDiscrete",
     "with dynamic shifting: the shift is e^mu (`exponential`) or mu (`linear`, only with "
     "FlowMatchEulerDiscrete)",
     0, 0, &ReadEnum<kTimeShifts, &Config::time_shift_type>},
    {"base_shift", "number", "0.5", "FlowMatchEulerDiscrete", kOfPipelines, 0, 0,
     &ReadUnusedNumber},
    {"max_shift", "number", "1.15", "FlowMatchEulerDiscrete", kOfPipelines, 0, 0,
     &ReadUnusedNumber},
    {"base_image_seq_len", "number", "256", "FlowMatchEulerDiscrete", kOfPipelines, 0, 0,
     &ReadUnusedNumber},
    {"max_image_seq_len", "number", "4096", "FlowMatchEulerDiscrete", kOfPipelines, 0, 0,
     &ReadUnusedNumber},
    {"sigma_data", "number", "0.5", "EDMEuler", "standard deviation of the data, above 0", 0, 0,
     &ReadPositive<&Config::sigma_data>},
    {"sigma_schedule", "string", "\"karras\"", "EDMEuler", "`karras` or `exponential`", 0, 0,
     &ReadEnum<kEdmSpacings, &Config::sigma_schedule>},
    {"rho", "number", "7.0", "EDMEuler", "exponent of `karras`, above 0", 0, 0,
     &ReadPositive<&Config::rho>},
    {"thresholding", "boolean", "false", "DDPM, DDIM, DPMSolverMultistep, LCM",
     "dynamic thresholding; only false is supported", 0, 0, &RefuseThresholding},
    {"dynamic_thresholding_ratio", "number", "0.995", "DDPM, DDIM, DPMSolverMultistep, LCM",
     "no effect without thresholding", 0, 0, &ReadUnusedNumber},
    {"sample_max_value", "number", "1.0", "DDPM, DDIM, DPMSolverMultistep, LCM",
     "no effect without thresholding", 0, 0, &ReadUnusedNumber},
}};

}  // namespace

std::span<const SchedulerConfigKey> SchedulerConfigKeys() { return kKeys; }

std::span<const SchedulerClass> SchedulerClasses() {
  static const auto* const classes = [] {
    auto* made = new std::array<SchedulerClass, kClasses.size()>();
    std::ranges::transform(kClasses, made->begin(), [](const auto& row) { return row.value; });
    return made;
  }();
  return *classes;
}

bool AppliesTo(const SchedulerConfigKey& key, SchedulerClass scheduler_class) {
  if (key.classes == "all") return true;
  const std::vector<std::string> classes = absl::StrSplit(ToAbsl(key.classes), ", ");
  return std::ranges::find(classes, ShortNameOf(scheduler_class)) != classes.end();
}

std::string_view DefaultOf(const SchedulerConfigKey& key, SchedulerClass scheduler_class) {
  for (const ClassDefault& row : kClassDefaults) {
    if (row.scheduler_class == scheduler_class && row.name == key.name) return row.value;
  }
  return key.default_value;
}

std::string_view ShortNameOf(SchedulerClass scheduler_class) {
  std::string_view name = NameOf(scheduler_class);
  name.remove_suffix(std::string_view("Scheduler").size());
  return name;
}
std::string_view NameOf(SchedulerClass scheduler_class) {
  return NameIn(kClasses, scheduler_class);
}
std::string_view NameOf(BetaSchedule beta_schedule) {
  return NameIn(kBetaSchedules, beta_schedule);
}
std::string_view NameOf(PredictionType prediction_type) {
  return NameIn(kPredictionTypes, prediction_type);
}
std::string_view NameOf(TimestepSpacing timestep_spacing) {
  return NameIn(kTimestepSpacings, timestep_spacing);
}
std::string_view NameOf(VarianceType variance_type) {
  return NameIn(kVarianceTypes, variance_type);
}
std::string_view NameOf(DpmAlgorithm algorithm) { return NameIn(kDpmAlgorithms, algorithm); }

}  // namespace deeppcr
