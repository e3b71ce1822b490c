// SPDX-License-Identifier: Apache-2.0
// The parser of scheduler_config.json and the tables made from it. Accepted files are checked
// against limits written down here, and against the reading of a plain JSON parser.

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
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
  for (const double value :
       {config.sigma_min.value_or(1.0), config.sigma_max.value_or(1.0), config.flow_shift,
        config.timestep_scaling, config.shift, config.sigma_data, config.rho})
    Require(std::isfinite(value) && value > 0.0, "scales are finite and above 0");
  Require(config.shift_terminal >= 0.0 && config.shift_terminal < 1.0,
          "shift_terminal is in range");
  Require(config.original_inference_steps >= 1 && (config.scheduler_class != SchedulerClass::kLcm ||
                                                   config.original_inference_steps <= count),
          "original_inference_steps is in range");
}

// The members that take effect: those that _use_default_values does not list. -Infinity, which is
// not JSON, is there in one place only.
nlohmann::json Effective(std::string text) {
  nlohmann::json object = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const size_t infinity = text.find("-Infinity", text.find("\"lambda_min_clipped\""));
  if (!object.is_object() && infinity != std::string::npos) {
    text.replace(infinity, std::string_view("-Infinity").size(), "null");
    object = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  }
  Require(object.is_object(), "an accepted text is a JSON object");
  const nlohmann::json defaulted = object.value("_use_default_values", nlohmann::json::array());
  for (const auto& name : defaulted) object.erase(name.get<std::string>());
  return object;
}

// Compares with the values in the text, or the defaults of diffusers.
void RequireSameReading(const SchedulerConfig& config, std::string_view text) {
  const nlohmann::json object = Effective(std::string(text));
  using enum SchedulerClass;
  const SchedulerClass of = config.scheduler_class;
  const bool lcm = of == kLcm, distilled = lcm || of == kHeun,
             has_betas = of != kFlowMatchEuler && of != kEdmEuler;
  const bool clips = of == kDdpm || of == kDdim || distilled;
  const bool linspace =
      of == kEuler || of == kEulerAncestral || of == kDpmSolverMultistep || of == kHeun;
  Require(object.at("_class_name") == std::string(NameOf(config.scheduler_class)),
          "_class_name is as given");
  Require(object.value("num_train_timesteps", 1000) == config.num_train_timesteps,
          "num_train_timesteps is as given");
  if (has_betas) {
    Require(object.value("beta_start", distilled ? 0.00085 : 1e-4) == config.beta_start,
            "beta_start is as given");
    Require(object.value("beta_end", distilled ? 0.012 : 0.02) == config.beta_end,
            "beta_end is as given");
    Require(object.value("beta_schedule", lcm ? "scaled_linear" : "linear") ==
                NameOf(config.beta_schedule),
            "beta_schedule is as given");
    Require(object.value("timestep_spacing", linspace ? "linspace" : "leading") ==
                NameOf(config.timestep_spacing),
            "timestep_spacing is as given");
  }
  if (of != kFlowMatchEuler) {
    Require(object.value("prediction_type", "epsilon") == NameOf(config.prediction_type),
            "prediction_type is as given");
  }
  if (clips) {
    Require(object.value("clip_sample", !distilled) == config.clip_sample,
            "clip_sample is as given");
    Require(of == kHeun || !object.value("thresholding", false), "thresholding is refused");
  }
  if (of == kDpmSolverMultistep) {
    const int64_t order = object.value("solver_order", 2);
    Require(order == config.solver_order && order <= 2, "solver_order is as given, and 1 or 2");
  }
  const absl::StatusOr<SchedulerConfig> again = Parse(object.dump());
  Require(again.ok() && *again == config, "a file that is written out reads the same");
}

void RequireDescent(const ReverseProcess& process, int64_t num_train_timesteps) {
  double before = static_cast<double>(num_train_timesteps);
  for (const ReverseStep& step : process.steps) {
    Require(step.timestep >= 0 && step.timestep < before, "timesteps descend within the tables");
    Require(step.prev_timestep >= -1 && step.prev_timestep < step.timestep,
            "the previous timestep is below");
    before = step.timestep;
  }
}

void RequireSound(const ReverseProcess& process) {
  Require(std::isfinite(static_cast<float>(process.initial_scale)) && process.initial_scale > 0.0,
          "the initial scale is finite and above 0");
  for (const ReverseStep& step : process.steps) {
    Require(std::isfinite(step.timestep), "times are finite");
    const HoldCoefficients hold = MemoryHoldOf(step).next;
    for (const double value :
         {step.x0_z, step.x0_m, step.z_z, step.z_m, step.z_x0, step.sigma, step.sigma_v, step.z_c,
          step.c_z, step.c_m, step.c_x0, double{hold.z}, double{hold.raw}, double{hold.clipped}}) {
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
      const std::optional<double> mu =
          config.use_dynamic_shifting ? std::optional(0.7) : std::nullopt;
      const absl::StatusOr<ReverseProcess> process = BuildReverseProcess(
          config, {.num_inference_steps = count, .mu = mu, .diffusers_compatible = compatible});
      if (process.ok()) {
        Require(compatible || std::ssize(process->steps) == count, "as many steps as asked for");
        RequireSound(*process);
        if (config.scheduler_class == SchedulerClass::kDdpm ||
            config.scheduler_class == SchedulerClass::kDdim)
          RequireDescent(*process, config.num_train_timesteps);
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
