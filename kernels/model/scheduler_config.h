// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_MODEL_SCHEDULER_CONFIG_H_
#define DEEPPCR_KERNELS_MODEL_SCHEDULER_CONFIG_H_

// scheduler_config.json as diffusers writes it for DDPMScheduler and DDIMScheduler, unmodified.
// Semantics: diffusers, src/diffusers/configuration_utils.py (extract_init_dict) and
// src/diffusers/schedulers/scheduling_{ddpm,ddim}.py. An absent key takes the default of the class,
// and so does a key that `_use_default_values` lists; unknown keys have no effect. Settings that
// would change the samples and are not supported are refused. One table of keys drives the parser
// and the documentation.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace deeppcr {

enum class SchedulerClass { kDdpm, kDdim };
enum class BetaSchedule { kLinear, kScaledLinear, kSquaredcosCapV2, kSigmoid };
enum class PredictionType { kEpsilon, kSample, kVPrediction };
enum class TimestepSpacing { kLeading, kLinspace, kTrailing };
enum class VarianceType { kFixedSmall, kFixedLarge };

// The initial values are the defaults of both classes.
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

  // The keys of the file that had no effect because the class does not know them, for a warning.
  // Untrusted text.
  std::vector<std::string> ignored_keys;

  bool operator==(const SchedulerConfig&) const = default;
};

// One key that the file may hold.
struct SchedulerConfigKey {
  std::string_view name;
  std::string_view type;           // in words
  std::string_view default_value;  // as JSON; "required" if there is none
  std::string_view classes;        // the class that has the key; "all"
  std::string_view meaning;
  int64_t min = 0;  // range of integers, inclusive
  int64_t max = 0;
  // Checks type and range and stores the value.
  absl::Status (*read)(const nlohmann::json& value, const SchedulerConfigKey& key,
                       SchedulerConfig& config);
};

// Every key, in the order of the documentation and of reading: a row may rely on those before it.
// Static storage.
std::span<const SchedulerConfigKey> SchedulerConfigKeys();

// The names that the file uses.
std::string_view NameOf(SchedulerClass scheduler_class);
std::string_view NameOf(BetaSchedule beta_schedule);
std::string_view NameOf(PredictionType prediction_type);
std::string_view NameOf(TimestepSpacing timestep_spacing);
std::string_view NameOf(VarianceType variance_type);

// Reads and validates the file. The caller limits the size of the text. Thread-safe.
// Errors: kInvalidArgument naming the key, what was expected, what came.
absl::StatusOr<SchedulerConfig> ParseSchedulerConfig(
    std::string_view json, std::span<const SchedulerConfigKey> keys = SchedulerConfigKeys());

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_MODEL_SCHEDULER_CONFIG_H_
