// SPDX-License-Identifier: Apache-2.0
#include "kernels/model/scheduler_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <type_traits>
#include <utility>

#include "kernels/base/json.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"

namespace deeppcr {
namespace {

constexpr int64_t kMaxTrainTimesteps = 100'000;
constexpr std::string_view kUseDefaultValues = "_use_default_values";

template <typename Enum>
struct EnumName {
  Enum value;
  std::string_view name;
};

constexpr std::array<EnumName<SchedulerClass>, 2> kClasses = {{
    {SchedulerClass::kDdpm, "DDPMScheduler"},
    {SchedulerClass::kDdim, "DDIMScheduler"},
}};
constexpr std::array<EnumName<BetaSchedule>, 4> kBetaSchedules = {{
    {BetaSchedule::kLinear, "linear"},
    {BetaSchedule::kScaledLinear, "scaled_linear"},
    {BetaSchedule::kSquaredcosCapV2, "squaredcos_cap_v2"},
    {BetaSchedule::kSigmoid, "sigmoid"},
}};
constexpr std::array<EnumName<PredictionType>, 3> kPredictionTypes = {{
    {PredictionType::kEpsilon, "epsilon"},
    {PredictionType::kSample, "sample"},
    {PredictionType::kVPrediction, "v_prediction"},
}};
constexpr std::array<EnumName<TimestepSpacing>, 3> kTimestepSpacings = {{
    {TimestepSpacing::kLeading, "leading"},
    {TimestepSpacing::kLinspace, "linspace"},
    {TimestepSpacing::kTrailing, "trailing"},
}};
constexpr std::array<EnumName<VarianceType>, 2> kVarianceTypes = {{
    {VarianceType::kFixedSmall, "fixed_small"},
    {VarianceType::kFixedLarge, "fixed_large"},
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

absl::Status ReadClipRange(const nlohmann::json& value, const SchedulerConfigKey& key,
                           SchedulerConfig& config) {
  DEEPPCR_ASSIGN_OR_RETURN(config.clip_sample_range, JsonNumber(value, key.name));
  if (std::isfinite(config.clip_sample_range) && config.clip_sample_range > 0.0) {
    return absl::OkStatus();
  }
  return Expected(key.name, "a finite number above 0", value);
}

// Dynamic thresholding scales by a quantile over a whole sample, which couples all values and has
// no cheap derivative.
absl::Status RefuseThresholding(const nlohmann::json& value, const SchedulerConfigKey& key,
                                SchedulerConfig&) {
  DEEPPCR_ASSIGN_OR_RETURN(const bool thresholding, JsonBool(value, key.name));
  if (!thresholding) return absl::OkStatus();
  return Expected(key.name, "false (dynamic thresholding is not supported)", value);
}

absl::Status ReadUnusedNumber(const nlohmann::json& value, const SchedulerConfigKey& key,
                              SchedulerConfig&) {
  return JsonNumber(value, key.name).status();
}

using Config = SchedulerConfig;

constexpr std::array<SchedulerConfigKey, 17> kKeys = {{
    {"_class_name", "string", "required", "all", "`DDPMScheduler` or `DDIMScheduler`", 0, 0,
     &ReadEnum<kClasses, &Config::scheduler_class>},
    {"num_train_timesteps", "integer", "1000", "all", "timesteps T the denoiser was trained with",
     1, kMaxTrainTimesteps, &ReadInteger<&Config::num_train_timesteps>},
    {"beta_start", "number", "0.0001", "all", "first beta, above 0 and at most 1", 0, 0,
     &ReadBeta<&Config::beta_start>},
    {"beta_end", "number", "0.02", "all", "last beta, above 0 and at most 1", 0, 0,
     &ReadBeta<&Config::beta_end>},
    {"beta_schedule", "string", "\"linear\"", "all",
     "`linear`, `scaled_linear`, `squaredcos_cap_v2`; with DDPMScheduler also `sigmoid`", 0, 0,
     &ReadEnum<kBetaSchedules, &Config::beta_schedule>},
    {"trained_betas", "array of numbers", "null", "all",
     "the num_train_timesteps betas themselves, each above 0 and at most 1, instead of a schedule",
     0, 0, &ReadTrainedBetas},
    {"clip_sample", "boolean", "true", "all", "whether the predicted x_0 is clipped", 0, 0,
     &ReadBool<&Config::clip_sample>},
    {"clip_sample_range", "number", "1.0", "all", "largest magnitude of a clipped x_0, above 0", 0,
     0, &ReadClipRange},
    {"prediction_type", "string", "\"epsilon\"", "all",
     "what the denoiser computes: `epsilon`, `sample` or `v_prediction`", 0, 0,
     &ReadEnum<kPredictionTypes, &Config::prediction_type>},
    {"timestep_spacing", "string", "\"leading\"", "all", "`leading`, `linspace` or `trailing`", 0,
     0, &ReadEnum<kTimestepSpacings, &Config::timestep_spacing>},
    {"steps_offset", "integer", "0", "all", "added to every timestep of `leading`", 0,
     kMaxTrainTimesteps - 1, &ReadInteger<&Config::steps_offset>},
    {"set_alpha_to_one", "boolean", "true", "DDIMScheduler",
     "whether alphas_cumprod is 1 after the last step, else its first value", 0, 0,
     &ReadBool<&Config::set_alpha_to_one>},
    {"variance_type", "string", "\"fixed_small\"", "DDPMScheduler",
     "variance of the noise: `fixed_small` (posterior) or `fixed_large` (beta)", 0, 0,
     &ReadEnum<kVarianceTypes, &Config::variance_type>},
    {"rescale_betas_zero_snr", "boolean", "false", "all",
     "whether betas are rescaled so that the last alphas_cumprod is 0", 0, 0,
     &ReadBool<&Config::rescale_betas_zero_snr>},
    {"thresholding", "boolean", "false", "all", "dynamic thresholding; only false is supported", 0,
     0, &RefuseThresholding},
    {"dynamic_thresholding_ratio", "number", "0.995", "all", "no effect without thresholding", 0, 0,
     &ReadUnusedNumber},
    {"sample_max_value", "number", "1.0", "all", "no effect without thresholding", 0, 0,
     &ReadUnusedNumber},
}};

// Removes the keys that `_use_default_values` lists: diffusers wrote down their values, but the
// user never chose them.
absl::Status DropDefaultedKeys(nlohmann::json& object) {
  const auto listed = object.find(kUseDefaultValues);
  if (listed == object.end()) return absl::OkStatus();
  const nlohmann::json names = *listed;
  if (!names.is_array()) return Expected(kUseDefaultValues, "an array of strings", names);
  for (size_t i = 0; i < names.size(); ++i) {
    DEEPPCR_ASSIGN_OR_RETURN(const std::string name,
                             JsonString(names[i], StrCat(kUseDefaultValues, "[", i, "]")));
    object.erase(name);
  }
  return absl::OkStatus();
}

bool AppliesTo(const SchedulerConfigKey& key, SchedulerClass scheduler_class) {
  return key.classes == "all" || key.classes == NameOf(scheduler_class);
}

// The first row is the class, so the class is known when the other rows are read.
absl::Status ReadKey(const nlohmann::json& object, const SchedulerConfigKey& key,
                     SchedulerConfig& config) {
  const auto member = object.find(key.name);
  if (member == object.end()) {
    if (key.default_value != "required") return absl::OkStatus();
    return InvalidArgument(key.name, ": missing; expected ", key.type, " (", key.meaning, ")");
  }
  if (!AppliesTo(key, config.scheduler_class)) return absl::OkStatus();
  return key.read(*member, key, config);
}

std::vector<std::string> IgnoredKeys(const nlohmann::json& object,
                                     std::span<const SchedulerConfigKey> keys,
                                     SchedulerClass scheduler_class) {
  std::vector<std::string> ignored;
  for (const auto& member : object.items()) {
    const auto has_effect = [&](const SchedulerConfigKey& key) {
      return key.name == member.key() && AppliesTo(key, scheduler_class);
    };
    if (member.key().starts_with('_')) continue;
    if (std::none_of(keys.begin(), keys.end(), has_effect)) ignored.push_back(member.key());
  }
  return ignored;
}

absl::Status CheckAcrossKeys(const SchedulerConfig& config) {
  if (config.scheduler_class == SchedulerClass::kDdim &&
      config.beta_schedule == BetaSchedule::kSigmoid) {
    return absl::InvalidArgumentError(
        "beta_schedule: expected one of linear, scaled_linear, squaredcos_cap_v2 with "
        "DDIMScheduler, got \"sigmoid\", which only DDPMScheduler has");
  }
  return absl::OkStatus();
}

}  // namespace

std::span<const SchedulerConfigKey> SchedulerConfigKeys() { return kKeys; }

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

absl::StatusOr<SchedulerConfig> ParseSchedulerConfig(std::string_view json,
                                                     std::span<const SchedulerConfigKey> keys) {
  const JsonLimits limits{.max_bytes = static_cast<int64_t>(json.size())};
  DEEPPCR_ASSIGN_OR_RETURN(nlohmann::json object, ParseJson(json, limits));
  if (!object.is_object()) {
    return InvalidArgument("expected an object, got ", DescribeJson(object));
  }
  DEEPPCR_RETURN_IF_ERROR(DropDefaultedKeys(object));
  SchedulerConfig config;
  for (const SchedulerConfigKey& key : keys) {
    DEEPPCR_RETURN_IF_ERROR(ReadKey(object, key, config));
  }
  DEEPPCR_RETURN_IF_ERROR(CheckAcrossKeys(config));
  config.ignored_keys = IgnoredKeys(object, keys, config.scheduler_class);
  return config;
}

}  // namespace deeppcr
