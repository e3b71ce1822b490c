// SPDX-License-Identifier: Apache-2.0
// The parser of scheduler_config.json and the tables made from it. Accepted files are checked
// against limits written down here, and against the reading of a plain JSON parser.

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kernels/model/reverse_process.h"
#include "kernels/model/scheduler_config.h"
#include "tests/fuzz/fuzz_target.h"

namespace deeppcr::fuzz {
namespace {

#if defined(DEEPPCR_FUZZ_PLANTED_BUG)
// Forgets the range of one key: steps_offset takes any integer.
absl::StatusOr<SchedulerConfig> Parse(std::string_view text) {
  std::vector<SchedulerConfigKey> keys(SchedulerConfigKeys().begin(), SchedulerConfigKeys().end());
  for (SchedulerConfigKey& key : keys) {
    if (key.name == "steps_offset") key.max = INT64_MAX;
  }
  return ParseSchedulerConfig(text, keys);
}
#else
absl::StatusOr<SchedulerConfig> Parse(std::string_view text) { return ParseSchedulerConfig(text); }
#endif

bool IsBeta(double value) { return value > 0.0 && value <= 1.0; }

void RequireLimits(const SchedulerConfig& config) {
  const int64_t count = config.num_train_timesteps;
  Require(count >= 1 && count <= 100'000, "num_train_timesteps is in range");
  Require(config.steps_offset >= 0 && config.steps_offset < 100'000, "steps_offset is in range");
  Require(IsBeta(config.beta_start) && IsBeta(config.beta_end), "betas are in (0, 1]");
  Require(config.trained_betas.empty() || std::ssize(config.trained_betas) == count,
          "trained_betas are as many as timesteps");
  Require(std::all_of(config.trained_betas.begin(), config.trained_betas.end(), IsBeta),
          "trained_betas are in (0, 1]");
  Require(std::isfinite(config.clip_sample_range) && config.clip_sample_range > 0.0,
          "clip_sample_range is finite and above 0");
}

// The members that take effect: those that _use_default_values does not list.
nlohmann::json Effective(std::string_view text) {
  nlohmann::json object = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  Require(object.is_object(), "an accepted text is a JSON object");
  const nlohmann::json defaulted = object.value("_use_default_values", nlohmann::json::array());
  for (const auto& name : defaulted) object.erase(name.get<std::string>());
  return object;
}

// Compares with the values in the text, or the defaults of diffusers.
void RequireSameReading(const SchedulerConfig& config, std::string_view text) {
  const nlohmann::json object = Effective(text);
  Require(object.at("_class_name") == std::string(NameOf(config.scheduler_class)),
          "_class_name is as given");
  Require(object.value("num_train_timesteps", 1000) == config.num_train_timesteps,
          "num_train_timesteps is as given");
  Require(object.value("beta_start", 1e-4) == config.beta_start, "beta_start is as given");
  Require(object.value("beta_end", 0.02) == config.beta_end, "beta_end is as given");
  Require(object.value("beta_schedule", "linear") == NameOf(config.beta_schedule),
          "beta_schedule is as given");
  Require(object.value("prediction_type", "epsilon") == NameOf(config.prediction_type),
          "prediction_type is as given");
  Require(object.value("timestep_spacing", "leading") == NameOf(config.timestep_spacing),
          "timestep_spacing is as given");
  Require(object.value("clip_sample", true) == config.clip_sample, "clip_sample is as given");
  Require(!object.value("thresholding", false), "thresholding is refused");
  const absl::StatusOr<SchedulerConfig> again = Parse(object.dump());
  Require(again.ok() && *again == config, "a file that is written out reads the same");
}

void RequireSound(const ReverseProcess& process, int64_t num_train_timesteps) {
  int64_t before = num_train_timesteps;
  for (const ReverseStep& step : process.steps) {
    Require(step.timestep >= 0 && step.timestep < before, "timesteps descend within the tables");
    Require(step.prev_timestep >= -1 && step.prev_timestep < step.timestep,
            "the previous timestep is below");
    before = step.timestep;
    for (const double value : {step.x0_z, step.x0_m, step.z_z, step.z_m, step.z_x0, step.sigma}) {
      Require(std::isfinite(static_cast<float>(value)), "coefficients are finite as float32");
    }
    Require(step.sigma >= 0.0, "sigma is not negative");
  }
}

// Tries small tables only, for speed.
void TryReverseProcess(const SchedulerConfig& config) {
  if (config.num_train_timesteps > 1000) return;
  for (const int64_t count : {int64_t{1}, int64_t{7}, config.num_train_timesteps}) {
    for (const bool compatible : {false, true}) {
      const absl::StatusOr<ReverseProcess> process = BuildReverseProcess(
          config, {.num_inference_steps = count, .diffusers_compatible = compatible});
      if (process.ok()) {
        Require(compatible || std::ssize(process->steps) == count, "as many steps as asked for");
        RequireSound(*process, config.num_train_timesteps);
      } else {
        RequireCleanRefusal(process.status());
      }
    }
  }
}

}  // namespace

bool TryInput(std::string_view bytes) {
  const absl::StatusOr<SchedulerConfig> config = Parse(bytes);
  if (!config.ok()) {
    RequireCleanRefusal(config.status());
    return false;
  }
  RequireLimits(*config);
  RequireSameReading(*config, bytes);
  TryReverseProcess(*config);
  return true;
}

}  // namespace deeppcr::fuzz
