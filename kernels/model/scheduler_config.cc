// SPDX-License-Identifier: Apache-2.0
#include "kernels/model/scheduler_config.h"

#include <algorithm>
#include <array>
#include <utility>

#include "kernels/base/json.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"

namespace deeppcr {
namespace {

constexpr std::string_view kUseDefaultValues = "_use_default_values";

// Keys of classes that are not here, or of earlier versions of diffusers.
constexpr std::array<std::string_view, 24> kKeysOfOtherClasses = {
    "alpha_cum_end",   "alpha_cum_start",
    "clip_denoised",   "correct_steps",
    "corrector_order", "disable_corrector",
    "gamma_cum_end",   "gamma_cum_start",
    "mask_token_id",   "masking_schedule",
    "num_vec_classes", "predict_x0",
    "predictor_order", "s",
    "s_noise",         "sampling_eps",
    "scale_factors",   "scaler",
    "skip_prk_steps",  "snr",
    "snr_shift_scale", "solver_p",
    "tau_func",        "upscale_mode",
};

// Arguments of diffusers' step() and set_timesteps(), and where they are said here.
struct ArgumentHint {
  std::string_view name, hint;
};
constexpr std::array<ArgumentHint, 4> kArguments = {{
    {"use_clipped_model_output", "it is a key of config.json"},
    {"eta", "it is a key of config.json"},
    {"mu", "it is a key of config.json"},
    {"num_inference_steps", "it is a key of config.json"},
}};

// Removes the keys that `_use_default_values` lists: diffusers wrote down their values, but the
// user never chose them.
absl::Status DropDefaultedKeys(nlohmann::json& object) {
  const auto listed = object.find(kUseDefaultValues);
  if (listed == object.end()) return absl::OkStatus();
  const nlohmann::json names = *listed;
  if (!names.is_array())
    return InvalidArgument(kUseDefaultValues, ": expected an array of strings, got ",
                           DescribeJson(names));
  for (size_t i = 0; i < names.size(); ++i) {
    DEEPPCR_ASSIGN_OR_RETURN(const std::string name,
                             JsonString(names[i], StrCat(kUseDefaultValues, "[", i, "]")));
    object.erase(name);
  }
  return absl::OkStatus();
}

absl::Status ReadDefault(const SchedulerConfigKey& key, SchedulerConfig& config) {
  const std::string_view text = DefaultOf(key, config.scheduler_class);
  if (text == "required") {
    return InvalidArgument(key.name, ": missing; expected ", key.type, " (", key.meaning, ")");
  }
  DEEPPCR_ASSIGN_OR_RETURN(const nlohmann::json value, ParseJson(text, JsonLimits()));
  return key.read(value, key, config);
}

// The first row is the class, so the class is known when the other rows are read.
absl::Status ReadKey(const nlohmann::json& object, const SchedulerConfigKey& key,
                     SchedulerConfig& config) {
  if (!AppliesTo(key, config.scheduler_class)) return absl::OkStatus();
  const auto member = object.find(key.name);
  return member == object.end() ? ReadDefault(key, config) : key.read(*member, key, config);
}

absl::Status RefuseUnknown(std::string_view name) {
  for (const ArgumentHint& argument : kArguments) {
    if (argument.name == name)
      return InvalidArgument(name,
                             ": expected no such key here, as no scheduler of diffusers has "
                             "it; ",
                             argument.hint);
  }
  return InvalidArgument("unknown key ", Quoted(name),
                         ": no scheduler of diffusers has it, and it may be meant to change the "
                         "samples; take it out if it is not");
}

// Keys that have no effect, as only other classes have them.
absl::StatusOr<std::vector<std::string>> IgnoredKeys(const nlohmann::json& object,
                                                     std::span<const SchedulerConfigKey> keys,
                                                     SchedulerClass scheduler_class,
                                                     Problems* problems) {
  std::vector<std::string> ignored;
  for (const auto& member : object.items()) {
    const std::string& name = member.key();
    if (name.starts_with('_')) continue;
    const auto row = std::ranges::find(keys, name, &SchedulerConfigKey::name);
    if (row != keys.end() && AppliesTo(*row, scheduler_class)) continue;
    if (row == keys.end() &&
        std::ranges::find(kKeysOfOtherClasses, name) == kKeysOfOtherClasses.end()) {
      DEEPPCR_RETURN_IF_ERROR(problems->Add(RefuseUnknown(name)));
      continue;
    }
    ignored.push_back(name);
  }
  return ignored;
}

// A value that the class does not take though others do.
absl::Status NotWith(std::string_view key, std::string_view expected, const SchedulerConfig& config,
                     std::string_view got) {
  return InvalidArgument(key, ": expected ", expected, " with ", NameOf(config.scheduler_class),
                         ", got ", got);
}

absl::Status CheckPrediction(const SchedulerConfig& config) {
  const PredictionType type = config.prediction_type;
  const bool no_sample = config.scheduler_class == SchedulerClass::kEulerAncestral ||
                         config.scheduler_class == SchedulerClass::kEdmEuler;
  const std::string got = StrCat("\"", NameOf(type), "\"");
  if (no_sample && type != PredictionType::kEpsilon && type != PredictionType::kVPrediction)
    return NotWith("prediction_type", "one of epsilon, v_prediction", config, got);
  if (type != PredictionType::kFlowPrediction) return absl::OkStatus();
  if (config.scheduler_class != SchedulerClass::kDpmSolverMultistep)
    return NotWith("prediction_type", "one of epsilon, sample, v_prediction", config, got);
  const bool plus_plus = config.algorithm_type == DpmAlgorithm::kDpmPlusPlus ||
                         config.algorithm_type == DpmAlgorithm::kSdeDpmPlusPlus;
  if (plus_plus) return absl::OkStatus();
  return InvalidArgument("prediction_type: expected one of epsilon, sample, v_prediction with ",
                         NameOf(config.algorithm_type), ", got ", got);
}

absl::Status CheckSigmas(const SchedulerConfig& config) {
  const int chosen = int{config.use_karras_sigmas} + int{config.use_exponential_sigmas} +
                     int{config.use_beta_sigmas} + int{config.use_lu_lambdas} +
                     int{config.use_flow_sigmas};
  if (chosen > 1) {
    return absl::InvalidArgumentError(
        "use_karras_sigmas: expected at most one of use_karras_sigmas, use_exponential_sigmas, "
        "use_beta_sigmas, use_lu_lambdas, use_flow_sigmas to be true");
  }
  const bool one_more = config.interpolation_type == InterpolationType::kLogLinear &&
                        config.timestep_type == TimestepType::kContinuous &&
                        config.prediction_type == PredictionType::kVPrediction;
  if (one_more && chosen == 0 && config.final_sigmas_type == FinalSigmas::kZero)
    return NotWith("timestep_type",
                   "\"discrete\" (with the interpolation_type log_linear and the final_sigmas_type "
                   "zero diffusers makes a step more than num_inference_steps)",
                   config, "\"continuous\"");
  if (config.scheduler_class != SchedulerClass::kDpmSolverMultistep) return absl::OkStatus();
  if (config.use_exponential_sigmas || config.use_beta_sigmas) {
    return NotWith(config.use_beta_sigmas ? "use_beta_sigmas" : "use_exponential_sigmas",
                   "false (diffusers cuts its times off, where float32 decides)", config, "true");
  }
  const bool cosine = config.beta_schedule == BetaSchedule::kSquaredcosCapV2;
  if (cosine && (config.use_karras_sigmas || config.use_lu_lambdas)) {
    return NotWith(config.use_karras_sigmas ? "use_karras_sigmas" : "use_lu_lambdas",
                   "false (with squaredcos_cap_v2 diffusers cuts its times off, where float32 "
                   "decides)",
                   config, "true");
  }
  const bool needs_sigma =
      config.algorithm_type == DpmAlgorithm::kDpm || config.algorithm_type == DpmAlgorithm::kSdeDpm;
  if (!needs_sigma || config.final_sigmas_type == FinalSigmas::kSigmaMin) return absl::OkStatus();
  return InvalidArgument("final_sigmas_type: expected \"sigma_min\" with ",
                         NameOf(config.algorithm_type), ", got \"zero\"");
}

// Schedules that one class alone has.
absl::Status CheckBetaSchedule(const SchedulerConfig& config) {
  for (const auto& [schedule, only] : {std::pair{BetaSchedule::kSigmoid, SchedulerClass::kDdpm},
                                       {BetaSchedule::kExp, SchedulerClass::kHeun}}) {
    if (config.beta_schedule != schedule || config.scheduler_class == only) continue;
    return InvalidArgument("beta_schedule: expected one of linear, scaled_linear, ",
                           "squaredcos_cap_v2 with ", NameOf(config.scheduler_class), ", got \"",
                           NameOf(schedule), "\", which only ", NameOf(only), " has");
  }
  return absl::OkStatus();
}

absl::Status CheckAcrossKeys(const SchedulerConfig& config) {
  DEEPPCR_RETURN_IF_ERROR(CheckBetaSchedule(config));
  const bool learned = config.variance_type == VarianceType::kLearned ||
                       config.variance_type == VarianceType::kLearnedRange;
  if (learned && config.scheduler_class != SchedulerClass::kDdpm)
    return NotWith("variance_type", "null", config,
                   StrCat("\"", NameOf(config.variance_type), "\""));
  if (config.scheduler_class == SchedulerClass::kLcm &&
      config.original_inference_steps > config.num_train_timesteps) {
    return InvalidArgument("original_inference_steps: expected at most num_train_timesteps = ",
                           config.num_train_timesteps, ", got ", config.original_inference_steps);
  }
  DEEPPCR_RETURN_IF_ERROR(CheckPrediction(config));
  return CheckSigmas(config);
}

// diffusers writes the default of lambda_min_clipped as -Infinity, which is not JSON: null instead.
std::string WithoutInfinity(std::string_view json) {
  constexpr std::string_view kName = "\"lambda_min_clipped\"", kInfinity = "-Infinity";
  constexpr std::string_view kBlanks = " \t\r\n";
  // The name may also stand in a list before it is a key.
  for (size_t name = json.find(kName); name != json.npos; name = json.find(kName, name + 1)) {
    if (name > 0 && json[name - 1] == '\\') continue;
    size_t at = json.find_first_not_of(kBlanks, name + kName.size());
    if (at == json.npos || json[at] != ':') continue;
    at = json.find_first_not_of(kBlanks, at + 1);
    if (at == json.npos || !json.substr(at).starts_with(kInfinity)) continue;
    return StrCat(json.substr(0, at), "null", json.substr(at + kInfinity.size()));
  }
  return std::string(json);
}

}  // namespace

absl::StatusOr<SchedulerConfig> ParseSchedulerConfig(std::string_view json,
                                                     std::span<const SchedulerConfigKey> keys,
                                                     Problems* all) {
  const std::string text = WithoutInfinity(json);
  const JsonLimits limits{.max_bytes = static_cast<int64_t>(text.size())};
  DEEPPCR_ASSIGN_OR_RETURN(nlohmann::json object, ParseJson(text, limits));
  if (!object.is_object()) {
    return InvalidArgument("expected an object, got ", DescribeJson(object));
  }
  DEEPPCR_RETURN_IF_ERROR(DropDefaultedKeys(object));
  SchedulerConfig config;
  // What the other keys may be depends on the class.
  DEEPPCR_RETURN_IF_ERROR(ReadKey(object, keys.front(), config));
  Problems problems(all != nullptr);
  for (const SchedulerConfigKey& key : keys.subspan(1))
    DEEPPCR_RETURN_IF_ERROR(problems.Add(ReadKey(object, key, config)));
  DEEPPCR_ASSIGN_OR_RETURN(config.ignored_keys,
                           IgnoredKeys(object, keys, config.scheduler_class, &problems));
  if (!problems.empty()) {
    const absl::Status first = problems.status();
    *all = std::move(problems);
    return first;
  }
  DEEPPCR_RETURN_IF_ERROR(CheckAcrossKeys(config));
  return config;
}

}  // namespace deeppcr
