// SPDX-License-Identifier: Apache-2.0
#include "kernels/model/samplers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>

#include "kernels/base/strings.h"
#include "kernels/model/reverse_process.h"
#include "tests/testing/expect_error.h"
#include "tests/testing/golden.h"
#include "tests/testing/larger.h"

namespace deeppcr::testing {
namespace {

using absl::StatusCode;
using nlohmann::json;
using Vector = std::vector<double>;

// diffusers computes tables and some steps in float32; make_sampler_golden.py prints how far it is.
constexpr double kRunOfDiffusers = 1e-4;
constexpr double kRunOfTranscription = 1e-10;

const json& Runs() {
  static const json* const runs = new json(ReadGolden("samplers.json"));
  return *runs;
}

double LargestOf(const Vector& values) {
  double largest = 0;
  for (const double value : values) largest = Larger(largest, std::abs(value));
  return largest;
}

absl::StatusOr<ReverseProcess> ProcessOf(const json& config, int64_t num_steps,
                                         int64_t first_step = 0,
                                         std::optional<double> mu = std::nullopt) {
  const absl::StatusOr<SchedulerConfig> parsed = ParseSchedulerConfig(config.dump());
  if (!parsed.ok()) return parsed.status();
  EXPECT_TRUE(parsed->ignored_keys.empty());
  return BuildReverseProcess(
      *parsed, {.num_inference_steps = num_steps, .first_step = first_step, .mu = mu});
}

// The network of make_sampler_golden.py.
double Network(double z, double time, size_t k) {
  return 0.4 * std::sin(z) + 0.3 * std::cos(time / 100.0 + static_cast<double>(k));
}

// What it says of the noise where that is learned.
double Spread(double z, size_t k) { return 0.6 + 0.5 * std::sin(2.0 * z + static_cast<double>(k)); }

// States z_0 .. z_L of a run in double, which draws noise from row `first_step` on.
std::vector<Vector> StatesOf(const ReverseProcess& process, size_t first_step) {
  std::vector<Vector> states = {Runs()["noise"].get<Vector>()};
  for (double& value : states[0]) value *= process.initial_scale;
  Vector memory(states[0].size());
  for (size_t i = 0; i < process.steps.size(); ++i) {
    const ReverseStep& step = process.steps[i];
    Vector next;
    for (size_t k = 0; k < states[i].size(); ++k) {
      const double z = states[i][k];
      // Runs of more steps than there are rows draw no noise.
      const double noise =
          step.sigma == 0 ? 0 : Runs()["step_noise"][first_step + i][k].get<float>();
      const double scale = NoiseScaleAt(process.form.noise_scale, step, Spread(z, k));
      const StateAndMemory made =
          ApplyReverseStep(step, process.clip_range, StateAndMemory{z, memory[k]},
                           Network(z, step.timestep, k), noise, scale);
      next.push_back(made.z);
      memory[k] = made.c;
    }
    states.push_back(next);
  }
  return states;
}

void ExpectNear(const Vector& got, const Vector& want, double tolerance, const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t k = 0; k < got.size(); ++k)
    EXPECT_NEAR(got[k], want[k], tolerance * LargestOf(want)) << what;
}

class SamplerRunTest : public ::testing::TestWithParam<int> {
 protected:
  const json& run() const { return Runs()["cases"][static_cast<size_t>(GetParam())]; }
};

TEST_P(SamplerRunTest, AgreesWithDiffusersAndWithItsFormulasInFloat64) {
  const int64_t num_steps = run()["num_inference_steps"], first = run().value("first_step", 0);
  const std::optional<double> mu =
      run().contains("mu") ? std::optional(run()["mu"].get<double>()) : std::nullopt;
  const ReverseProcess process = ProcessOf(run()["config"], num_steps, first, mu).value();

  ASSERT_EQ(std::ssize(process.steps), num_steps - first);
  const std::vector<Vector> states = StatesOf(process, static_cast<size_t>(first));
  const auto at = run()["at"].get<std::vector<size_t>>();
  for (size_t j = 0; j < at.size(); ++j) {
    const double time = run()["times"][j];
    EXPECT_NEAR(process.steps[at[j]].timestep, time, 1e-9 * (1.0 + std::abs(time)));
  }
  for (const auto& [name, tolerance] :
       {std::pair{"float64", kRunOfTranscription}, std::pair{"diffusers", kRunOfDiffusers}}) {
    for (size_t j = 0; j < at.size(); ++j)
      ExpectNear(states[at[j]], run()[name]["inputs"][j], tolerance,
                 StrCat(name, " before step ", at[j]));
    ExpectNear(states.back(), run()[name]["sample"], tolerance, name);
  }
}

std::string RunName(const ::testing::TestParamInfo<int>& info) {
  return Runs()["cases"][static_cast<size_t>(info.param)]["name"];
}

int NumRuns() { return static_cast<int>(Runs()["cases"].size()); }

INSTANTIATE_TEST_SUITE_P(All, SamplerRunTest, ::testing::Range(0, NumRuns()), RunName);

// Whether a class takes a value of a key and it changes the steps, as far as the parser knows.
bool Takes(SchedulerClass scheduler_class, const SchedulerConfigKey& key, const json& value) {
  if (key.meaning.starts_with("no effect")) return false;
  if (value.is_number() && key.name != "solver_order") return false;  // of a range
  if (key.meaning.ends_with("no effect with LCM") && scheduler_class == SchedulerClass::kLcm)
    return false;
  json config = {{"_class_name", NameOf(scheduler_class)}};
  if (scheduler_class == SchedulerClass::kDpmSolverMultistep)
    config.update({{"final_sigmas_type", "sigma_min"}});
  config[std::string(key.name)] = value;
  return ParseSchedulerConfig(config.dump()).ok();
}

// Every boolean and every name of an enumeration that a class takes, so that none can be added
// without a run.
TEST(SamplerRunCoverageTest, ComparesEveryOptionWithDiffusers) {
  std::set<std::string> covered;
  for (const json& run : Runs()["cases"]) {
    for (const auto& [key, value] : run["config"].items())
      covered.insert(
          StrCat(run["config"]["_class_name"].get<std::string>(), " ", key, " ", value.dump()));
  }
  const std::vector<json> values = {true,
                                    false,
                                    "epsilon",
                                    "sample",
                                    "v_prediction",
                                    "flow_prediction",
                                    "leading",
                                    "linspace",
                                    "trailing",
                                    "linear",
                                    "log_linear",
                                    "scaled_linear",
                                    "discrete",
                                    "continuous",
                                    "zero",
                                    "sigma_min",
                                    "karras",
                                    "exponential",
                                    "sigmoid",
                                    "dpmsolver",
                                    "dpmsolver++",
                                    "sde-dpmsolver",
                                    "sde-dpmsolver++",
                                    "squaredcos_cap_v2",
                                    "exp",
                                    "midpoint",
                                    "heun",
                                    1,
                                    2};
  for (const char* const learned : {"learned", "learned_range"})
    EXPECT_TRUE(covered.contains(StrCat("DDPMScheduler variance_type \"", learned, "\"")));
  int compared = 0;
  for (const SchedulerClass scheduler_class : SchedulerClasses()) {
    if (scheduler_class == SchedulerClass::kDdpm || scheduler_class == SchedulerClass::kDdim)
      continue;  // reverse_process_test.cc
    for (const SchedulerConfigKey& key : SchedulerConfigKeys()) {
      if (!AppliesTo(key, scheduler_class)) continue;
      for (const json& value : values) {
        if (!Takes(scheduler_class, key, value)) continue;
        ++compared;
        const std::string option =
            StrCat(NameOf(scheduler_class), " ", key.name, " ", value.dump());
        EXPECT_TRUE(covered.contains(option)) << option;
      }
    }
  }
  EXPECT_GT(compared, 110);
}

json SchedulerOf(const std::string& name, const json& changes = json::object()) {
  json config = {{"_class_name", name + "Scheduler"}};
  config.update(changes);
  return config;
}

TEST(SamplersTest, MakeFiniteTablesOfEveryLength) {
  for (const json& config :
       {SchedulerOf("EulerDiscrete"), SchedulerOf("EulerAncestralDiscrete"), SchedulerOf("LCM"),
        SchedulerOf("DPMSolverMultistep", {{"solver_order", 1}}),
        SchedulerOf("DPMSolverMultistep", {{"timestep_spacing", "trailing"}}),
        SchedulerOf("HeunDiscrete"), SchedulerOf("FlowMatchEulerDiscrete"),
        SchedulerOf("EDMEuler")}) {
    const bool lcm = config["_class_name"] == "LCMScheduler";
    const bool heun = config["_class_name"] == "HeunDiscreteScheduler";
    for (const int64_t n : {1, 2, 31, 32, 33, 65, 999, 1000}) {
      const auto process = ProcessOf(config, n);
      if (lcm && n > 50) {
        ExpectError(process, StatusCode::kInvalidArgument,
                    StrCat("num_inference_steps: expected an integer in [1, "
                           "original_inference_steps = 50], got ",
                           n));
        continue;
      }
      if (heun && n % 2 == 0) {
        ExpectError(process, StatusCode::kInvalidArgument,
                    StrCat("num_inference_steps: expected an odd number with "
                           "HeunDiscreteScheduler, the 2 n - 1 evaluations of the denoiser in n "
                           "steps of diffusers, got ",
                           n));
        continue;
      }
      ASSERT_TRUE(process.ok()) << config << process.status();
      EXPECT_EQ(std::ssize(process->steps), n);
    }
  }
}

TEST(SamplersTest, RefuseNumbersOfStepsOutOfRange) {
  for (const json& config :
       {SchedulerOf("EulerDiscrete"), SchedulerOf("DPMSolverMultistep", {{"solver_order", 1}}),
        SchedulerOf("FlowMatchEulerDiscrete"), SchedulerOf("EDMEuler")}) {
    for (const int64_t n : {int64_t{0}, int64_t{-1}, int64_t{1001}, INT64_MAX})
      ExpectError(ProcessOf(config, n), StatusCode::kInvalidArgument,
                  "num_inference_steps: expected an integer in [1, num_train_timesteps = 1000]");
  }
}

// The last number of steps, and the first that there is not: two rows a step but the last.
TEST(SamplersTest, HeunHasAnEvaluationBetweenTimesteps) {
  const json config = SchedulerOf("HeunDiscrete", {{"num_train_timesteps", 20}});
  EXPECT_EQ(MostInferenceSteps(*ParseSchedulerConfig(config.dump())), 39);
  EXPECT_EQ(ProcessOf(config, 39).value().steps.size(), 39U);
  ExpectError(ProcessOf(config, 41), StatusCode::kInvalidArgument,
              "num_inference_steps: expected an integer in [1, num_train_timesteps = 20], got 21");
}

// What no step reads is not carried.
TEST(SamplersTest, OnlySamplersThatRememberCarryAMemory) {
  const auto carries = [](const json& config) {
    const ReverseProcess process = ProcessOf(config, 9).value();
    bool reads = false;
    for (const ReverseStep& step : process.steps) reads = reads || step.z_c != 0;
    EXPECT_EQ(process.form.carries, reads) << config;
    return process.form.carries;
  };
  EXPECT_TRUE(carries(SchedulerOf("DPMSolverMultistep")));
  EXPECT_FALSE(carries(SchedulerOf("DPMSolverMultistep", {{"solver_order", 1}})));
  EXPECT_TRUE(carries(SchedulerOf("HeunDiscrete")));
  for (const char* const name : {"EulerDiscrete", "EulerAncestralDiscrete", "LCM",
                                 "FlowMatchEulerDiscrete", "EDMEuler", "DDPM", "DDIM"})
    EXPECT_FALSE(carries(SchedulerOf(name))) << name;
}

struct HostileCase {
  json config;
  int64_t num_steps;
  std::string expected;
};

TEST(SamplersTest, RefuseWhatHasNoFiniteSteps) {
  const json flat = json(Vector(10, 1e-300));
  for (const HostileCase& hostile : {
           HostileCase{
               SchedulerOf("EulerDiscrete", {{"num_train_timesteps", 10}, {"trained_betas", flat}}),
               3, "betas: expected alphas_cumprod above 0 and below 1 at timestep 0, got 1"},
           HostileCase{SchedulerOf("EulerDiscrete",
                                   {{"steps_offset", 999}, {"timestep_spacing", "leading"}}),
                       3, "steps_offset: expected timesteps below num_train_timesteps = 1000"},
           HostileCase{SchedulerOf("EulerDiscrete",
                                   {{"use_karras_sigmas", true}, {"num_train_timesteps", 1}}),
                       1, "use_karras_sigmas: expected false with num_train_timesteps 1"},
           HostileCase{
               SchedulerOf("EulerDiscrete", {{"use_karras_sigmas", true}, {"sigma_max", 1e300}}), 3,
               "EulerDiscreteScheduler with 3 steps: step 0: expected a number that is "
               "finite as float32 for x0_z, got "},
           HostileCase{SchedulerOf("EDMEuler", {{"sigma_min", 1e-320}, {"sigma_data", 1e-300}}), 3,
                       "EDMEulerScheduler with 3 steps: "},
           HostileCase{SchedulerOf("FlowMatchEulerDiscrete", {{"shift_terminal", 0.5}}), 1,
                       "shift_terminal: expected null or 0 where the last sigma is 1 (1 steps), "
                       "got 0.5"},
           HostileCase{SchedulerOf("DPMSolverMultistep",
                                   {{"solver_order", 1}, {"lambda_min_clipped", 1e9}}),
                       3,
                       "lambda_min_clipped: expected a number that leaves a timestep, got 1e+09"},
           HostileCase{SchedulerOf("DPMSolverMultistep", {{"solver_order", 1},
                                                          {"timestep_spacing", "trailing"},
                                                          {"lambda_min_clipped", -1.0}}),
                       10, "num_inference_steps: expected a number of which `trailing` makes as"},
           HostileCase{SchedulerOf("DPMSolverMultistep", {{"timestep_spacing", "trailing"}}), 61,
                       "num_inference_steps: expected a number for which `trailing` ends at 0"},
           HostileCase{SchedulerOf("EulerDiscrete",
                                   {{"timestep_spacing", "trailing"}, {"use_karras_sigmas", true}}),
                       103,
                       "num_inference_steps: expected a number for which `trailing` ends at 0"},
           HostileCase{SchedulerOf("HeunDiscrete", {{"timestep_spacing", "trailing"}}), 121,
                       "num_inference_steps: expected a number for which `trailing` ends at 0"},
           // linspace comes to the same timestep twice.
           HostileCase{SchedulerOf("DPMSolverMultistep"), 1000,
                       "DPMSolverMultistepScheduler with 1000 steps: step "},
           // The first timestep's sigma is above the last of the flow, where an SDE has no
           // variance.
           HostileCase{SchedulerOf("DPMSolverMultistep", {{"solver_order", 1},
                                                          {"use_flow_sigmas", true},
                                                          {"flow_shift", 0.5},
                                                          {"num_train_timesteps", 50},
                                                          {"beta_start", 0.02},
                                                          {"beta_end", 0.03},
                                                          {"final_sigmas_type", "sigma_min"},
                                                          {"algorithm_type", "sde-dpmsolver++"}}),
                       20,
                       "DPMSolverMultistepScheduler with 20 steps: step 19: expected a number that "
                       "is finite as float32 for sigma, got nan"},
           HostileCase{SchedulerOf("LCM", {{"rescale_betas_zero_snr", true}}), 2,
                       "LCMScheduler with 2 steps: step 0: expected a number that is finite as "
                       "float32 for x0_z, got inf"},
       })
    ExpectError(ProcessOf(hostile.config, hostile.num_steps), StatusCode::kInvalidArgument,
                hostile.expected);
}

// The last two sigmas are one, but for rounding, which is no reason for a variance below 0.
TEST(SamplersTest, EndWithoutNoiseWhereTheLastSigmasAreOne) {
  for (const char* algorithm : {"sde-dpmsolver++", "sde-dpmsolver"})
    for (const double beta_end : {0.005, 0.01, 0.02, 0.05})
      for (int64_t n = 2; n <= 40; ++n) {
        const auto process =
            ProcessOf(SchedulerOf("DPMSolverMultistep", {{"solver_order", 1},
                                                         {"use_karras_sigmas", true},
                                                         {"beta_end", beta_end},
                                                         {"final_sigmas_type", "sigma_min"},
                                                         {"algorithm_type", algorithm}}),
                      n);
        if (!process.ok()) {
          ExpectError(process, StatusCode::kInvalidArgument, "clearly on one side of a half");
          continue;
        }
        EXPECT_LT(process->steps.back().sigma, 1e-6) << algorithm << beta_end << n;
      }
}

// Times of karras sigmas are rounded, by float32 in diffusers.
TEST(SamplersTest, RefuseTimesWhoseRoundingFloat32Decides) {
  int refused = 0;
  for (int64_t n = 1; n <= 400; ++n) {
    const auto process = ProcessOf(
        SchedulerOf("DPMSolverMultistep", {{"solver_order", 1}, {"use_karras_sigmas", true}}), n);
    if (process.ok()) {
      for (const ReverseStep& step : process->steps)
        ASSERT_EQ(step.timestep, std::round(step.timestep));
      continue;
    }
    ++refused;
    ExpectError(
        process, StatusCode::kInvalidArgument,
        "num_inference_steps: expected a number for which every time is clearly on one side "
        "of a half with use_karras_sigmas, got ");
  }
  EXPECT_GT(refused, 0);
  EXPECT_LT(refused, 100);
}

}  // namespace
}  // namespace deeppcr::testing
