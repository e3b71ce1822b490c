// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_MODEL_SCHEDULER_CONFIG_H_
#define DEEPPCR_KERNELS_MODEL_SCHEDULER_CONFIG_H_

// scheduler_config.json as diffusers writes it for the classes below, unmodified. Semantics:
// diffusers, src/diffusers/configuration_utils.py (extract_init_dict) and
// src/diffusers/schedulers/scheduling_*.py. An absent key takes the default of the class, and so
// does a key that `_use_default_values` lists. A key of another class of diffusers has no effect
// there, and is listed here; one that no class has is refused, as it may be meant to change the
// samples, and so are settings that would change them and are not supported. One table of keys
// drives the parser and the documentation.

#include <cstdint>
#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/base/problems.h"

namespace deeppcr {

enum class SchedulerClass {
  kDdpm,
  kDdim,
  kEuler,
  kEulerAncestral,
  kDpmSolverMultistep,
  kLcm,
  kFlowMatchEuler,
  kEdmEuler,
  kHeun,
};
enum class BetaSchedule { kLinear, kScaledLinear, kSquaredcosCapV2, kSigmoid, kExp };
enum class PredictionType { kEpsilon, kSample, kVPrediction, kFlowPrediction };
enum class TimestepSpacing { kLeading, kLinspace, kTrailing };
enum class VarianceType { kFixedSmall, kFixedLarge, kLearned, kLearnedRange };
enum class InterpolationType { kLinear, kLogLinear };
enum class TimestepType { kDiscrete, kContinuous };
enum class FinalSigmas { kZero, kSigmaMin };
enum class EdmSpacing { kKarras, kExponential };
enum class TimeShift { kExponential, kLinear };
enum class DpmAlgorithm { kDpm, kDpmPlusPlus, kSdeDpm, kSdeDpmPlusPlus };
enum class DpmSolverType { kMidpoint, kHeun };

// The initial values are the defaults of DDPM; ParseSchedulerConfig sets those of the class.
struct SchedulerConfig {
  SchedulerClass scheduler_class = SchedulerClass::kDdpm;
  int64_t num_train_timesteps = 1000;  // T
  double beta_start = 1e-4;            // in (0, 1]
  double beta_end = 0.02;              // in (0, 1]
  BetaSchedule beta_schedule = BetaSchedule::kLinear;
  std::vector<double> trained_betas;  // T betas in (0, 1] instead of a schedule, or empty
  bool clip_sample = true;
  double clip_sample_range = 1.0;  // finite, above 0
  PredictionType prediction_type = PredictionType::kEpsilon;
  TimestepSpacing timestep_spacing = TimestepSpacing::kLeading;
  int64_t steps_offset = 0;                                // for `leading` only
  bool set_alpha_to_one = true;                            // for DDIM only
  VarianceType variance_type = VarianceType::kFixedSmall;  // for DDPM only
  bool rescale_betas_zero_snr = false;

  // Of the classes that go along sigmas, each for some of them. At most one of the five is true.
  bool use_karras_sigmas = false;
  bool use_exponential_sigmas = false;
  bool use_beta_sigmas = false;
  bool use_lu_lambdas = false;
  bool use_flow_sigmas = false;
  std::optional<double> sigma_min, sigma_max;  // finite, above 0
  InterpolationType interpolation_type = InterpolationType::kLinear;
  TimestepType timestep_type = TimestepType::kDiscrete;
  FinalSigmas final_sigmas_type = FinalSigmas::kZero;
  // DPMSolverMultistep.
  int64_t solver_order = 2;  // 1 or 2
  DpmAlgorithm algorithm_type = DpmAlgorithm::kDpmPlusPlus;
  DpmSolverType solver_type = DpmSolverType::kMidpoint;
  bool lower_order_final = true;
  bool euler_at_final = false;
  double flow_shift = 1.0;  // finite, above 0
  double lambda_min_clipped = -std::numeric_limits<double>::infinity();
  // DPMSolverMultistep, FlowMatchEuler: shift and flow_shift come from ReverseProcessOptions::mu.
  bool use_dynamic_shifting = false;
  TimeShift time_shift_type = TimeShift::kExponential;
  // LCM.
  int64_t original_inference_steps = 50;
  double timestep_scaling = 10.0;  // finite, above 0
  // FlowMatchEuler.
  double shift = 1.0;           // finite, above 0
  double shift_terminal = 0.0;  // in [0, 1); 0 for none
  bool invert_sigmas = false;
  bool stochastic_sampling = false;
  // EDMEuler.
  double sigma_data = 0.5;  // finite, above 0
  double rho = 7.0;         // finite, above 0
  EdmSpacing sigma_schedule = EdmSpacing::kKarras;

  // The keys of the file that had no effect because other classes have them, for a warning.
  std::vector<std::string> ignored_keys;

  bool operator==(const SchedulerConfig&) const = default;
};

// One key that the file may hold.
struct SchedulerConfigKey {
  std::string_view name;
  std::string_view type;           // in words
  std::string_view default_value;  // as JSON; "required" if there is none
  std::string_view classes;        // those that have the key, without "Scheduler"; "all"
  std::string_view meaning;
  int64_t min = 0;  // range of integers, inclusive
  int64_t max = 0;
  // Checks type and range and stores the value.
  absl::Status (*read)(const nlohmann::json& value, const SchedulerConfigKey& key,
                       SchedulerConfig& config);
};

// The default of a key of a class, which some classes have of their own. Static storage.
std::string_view DefaultOf(const SchedulerConfigKey& key, SchedulerClass scheduler_class);
bool AppliesTo(const SchedulerConfigKey& key, SchedulerClass scheduler_class);

// Every class. Static storage.
std::span<const SchedulerClass> SchedulerClasses();

// Every key, in the order of the documentation and of reading: a row may rely on those before it.
// Static storage.
std::span<const SchedulerConfigKey> SchedulerConfigKeys();

// Name of the class for users, without "Scheduler".
std::string_view ShortNameOf(SchedulerClass scheduler_class);
// The names that the file uses.
std::string_view NameOf(SchedulerClass scheduler_class);
std::string_view NameOf(BetaSchedule beta_schedule);
std::string_view NameOf(PredictionType prediction_type);
std::string_view NameOf(TimestepSpacing timestep_spacing);
std::string_view NameOf(VarianceType variance_type);
std::string_view NameOf(DpmAlgorithm algorithm);

// Reads and validates the file. The caller limits the size of the text. Thread-safe.
// Errors: kInvalidArgument naming the key, what was expected, what came. With `all`, reads on after
// a wrong key and leaves there what was wrong.
absl::StatusOr<SchedulerConfig> ParseSchedulerConfig(
    std::string_view json, std::span<const SchedulerConfigKey> keys = SchedulerConfigKeys(),
    Problems* all = nullptr);

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_MODEL_SCHEDULER_CONFIG_H_
