// SPDX-License-Identifier: Apache-2.0
#include "kernels/model/scheduler_config.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>

#include "kernels/base/json.h"
#include "kernels/base/strings.h"
#include "tests/testing/expect_error.h"

namespace deeppcr::testing {
namespace {

using absl::StatusCode;

// A file with a class name and one key set to this JSON text.
std::string With(std::string_view key, std::string_view value,
                 std::string_view name = "DDPMScheduler") {
  return StrCat(R"({"_class_name":")", name, "\",\"", key, "\":", value, "}");
}

std::string Minimal(std::string_view name = "DDPMScheduler") {
  return StrCat(R"({"_class_name":")", name, "\"}");
}

// The first class that has a key.
SchedulerClass ClassWith(const SchedulerConfigKey& key) {
  for (const SchedulerClass scheduler_class : SchedulerClasses())
    if (AppliesTo(key, scheduler_class)) return scheduler_class;
  ADD_FAILURE() << "no class has " << key.name;
  return SchedulerClass::kDdpm;
}

TEST(SchedulerConfigTest, TakesTheDefaultsOfBothClasses) {
  SchedulerConfig defaults;
  EXPECT_EQ(*ParseSchedulerConfig(Minimal()), defaults);

  defaults.scheduler_class = SchedulerClass::kDdim;
  EXPECT_EQ(*ParseSchedulerConfig(Minimal("DDIMScheduler")), defaults);
}

TEST(SchedulerConfigTest, TakesEveryKey) {
  const absl::StatusOr<SchedulerConfig> config = ParseSchedulerConfig(
      R"({"_class_name":"DDIMScheduler","_diffusers_version":"0.35.2","num_train_timesteps":2,
          "beta_start":0.25,"beta_end":1,"beta_schedule":"squaredcos_cap_v2",
          "trained_betas":[0.5,1],"clip_sample":false,"clip_sample_range":2,
          "prediction_type":"v_prediction","timestep_spacing":"trailing","steps_offset":1,
          "set_alpha_to_one":false,"rescale_betas_zero_snr":true,"thresholding":false,
          "dynamic_thresholding_ratio":0.995,"sample_max_value":1.0})");

  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->scheduler_class, SchedulerClass::kDdim);
  EXPECT_EQ(config->num_train_timesteps, 2);
  EXPECT_EQ(config->beta_start, 0.25);
  EXPECT_EQ(config->beta_end, 1.0);
  EXPECT_EQ(config->beta_schedule, BetaSchedule::kSquaredcosCapV2);
  EXPECT_EQ(config->trained_betas, (std::vector<double>{0.5, 1.0}));
  EXPECT_FALSE(config->clip_sample);
  EXPECT_EQ(config->clip_sample_range, 2.0);
  EXPECT_EQ(config->prediction_type, PredictionType::kVPrediction);
  EXPECT_EQ(config->timestep_spacing, TimestepSpacing::kTrailing);
  EXPECT_EQ(config->steps_offset, 1);
  EXPECT_FALSE(config->set_alpha_to_one);
  EXPECT_TRUE(config->rescale_betas_zero_snr);
  EXPECT_TRUE(config->ignored_keys.empty());
}

TEST(SchedulerConfigTest, TakesEveryName) {
  for (const auto value : {BetaSchedule::kLinear, BetaSchedule::kScaledLinear,
                           BetaSchedule::kSquaredcosCapV2, BetaSchedule::kSigmoid}) {
    const std::string text = With("beta_schedule", StrCat("\"", NameOf(value), "\""));
    EXPECT_EQ(ParseSchedulerConfig(text)->beta_schedule, value);
  }
  for (const auto value :
       {PredictionType::kEpsilon, PredictionType::kSample, PredictionType::kVPrediction}) {
    const std::string text = With("prediction_type", StrCat("\"", NameOf(value), "\""));
    EXPECT_EQ(ParseSchedulerConfig(text)->prediction_type, value);
  }
  for (const auto value :
       {TimestepSpacing::kLeading, TimestepSpacing::kLinspace, TimestepSpacing::kTrailing}) {
    const std::string text = With("timestep_spacing", StrCat("\"", NameOf(value), "\""));
    EXPECT_EQ(ParseSchedulerConfig(text)->timestep_spacing, value);
  }
  for (const auto value : {VarianceType::kFixedSmall, VarianceType::kFixedLarge,
                           VarianceType::kLearned, VarianceType::kLearnedRange}) {
    const std::string text = With("variance_type", StrCat("\"", NameOf(value), "\""));
    EXPECT_EQ(ParseSchedulerConfig(text)->variance_type, value);
  }
}

TEST(SchedulerConfigTest, DropsWhatUseDefaultValuesLists) {
  const absl::StatusOr<SchedulerConfig> config = ParseSchedulerConfig(
      R"({"_class_name":"DDPMScheduler","beta_end":0.5,"beta_start":0.25,"thresholding":true,
          "_use_default_values":["beta_end","thresholding","absent"]})");

  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->beta_end, 0.02);
  EXPECT_EQ(config->beta_start, 0.25);
}

TEST(SchedulerConfigTest, ListsTheKeysWithoutEffect) {
  const absl::StatusOr<SchedulerConfig> config = ParseSchedulerConfig(
      R"({"_class_name":"DDIMScheduler","skip_prk_steps":true,"_private":[],
          "variance_type":"learned","shift":0})");

  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->ignored_keys,
            (std::vector<std::string>{"shift", "skip_prk_steps", "variance_type"}));
}

// json.dumps writes an infinity so, and diffusers does for the default of this key.
TEST(SchedulerConfigTest, TakesMinusInfinityOfLambdaMinClipped) {
  const std::string_view name = "DPMSolverMultistepScheduler";
  const SchedulerConfig plain = *ParseSchedulerConfig(Minimal(name));
  EXPECT_EQ(plain.lambda_min_clipped, -std::numeric_limits<double>::infinity());
  EXPECT_EQ(*ParseSchedulerConfig(With("lambda_min_clipped", "-Infinity", name)), plain);
  EXPECT_EQ(*ParseSchedulerConfig(With("lambda_min_clipped", " \n-Infinity ", name)), plain);
  EXPECT_EQ(*ParseSchedulerConfig(R"({"_use_default_values":["lambda_min_clipped"],)"
                                  R"("_class_name":"DPMSolverMultistepScheduler",)"
                                  R"("lambda_min_clipped":-Infinity})"),
            plain);
  EXPECT_EQ(ParseSchedulerConfig(With("lambda_min_clipped", "-5.1", name))->lambda_min_clipped,
            -5.1);
}

TEST(SchedulerConfigTest, TakesNullForTrainedBetas) {
  EXPECT_TRUE(ParseSchedulerConfig(With("trained_betas", "null"))->trained_betas.empty());
}

TEST(SchedulerConfigTest, ChecksIntegerRanges) {
  int integers = 0;
  for (const SchedulerConfigKey& key : SchedulerConfigKeys()) {
    if (key.type != "integer") continue;
    ++integers;
    const std::string_view name = NameOf(ClassWith(key));
    EXPECT_TRUE(ParseSchedulerConfig(With(key.name, StrCat(key.min), name)).ok()) << key.name;
    // Whose maximum another key or what is supported lowers.
    if (key.name != "solver_order" && key.name != "original_inference_steps") {
      EXPECT_TRUE(ParseSchedulerConfig(With(key.name, StrCat(key.max), name)).ok()) << key.name;
    }
    const std::string expected =
        StrCat(key.name, ": expected an integer in [", key.min, ", ", key.max, "], got ");
    for (const std::string& value :
         {StrCat(key.min - 1), StrCat(key.max + 1), std::string("1.0"), std::string("1e0"),
          std::string("\"1\""), std::string("true"), std::string("18446744073709551616")}) {
      ExpectError(ParseSchedulerConfig(With(key.name, value, name)), StatusCode::kInvalidArgument,
                  expected);
    }
  }
  EXPECT_EQ(integers, 4);
}

TEST(SchedulerConfigTest, RefusesTheWrongTypeOfEveryKey) {
  for (const SchedulerConfigKey& key : SchedulerConfigKeys()) {
    if (key.name == "_class_name") continue;
    const SchedulerClass scheduler_class = ClassWith(key);
    const std::string_view name = NameOf(scheduler_class);
    ExpectError(ParseSchedulerConfig(With(key.name, "{}", name)), StatusCode::kInvalidArgument,
                StrCat(key.name, ": expected "));
    if (DefaultOf(key, scheduler_class) == "null") continue;
    ExpectError(ParseSchedulerConfig(With(key.name, "null", name)), StatusCode::kInvalidArgument,
                StrCat(key.name, ": expected "));
  }
}

class RefusedSchedulerConfigTest : public ::testing::TestWithParam<RefusedCase> {};

TEST_P(RefusedSchedulerConfigTest, IsRefusedWithItsReason) {
  ExpectError(ParseSchedulerConfig(GetParam().input), GetParam().code, GetParam().message_part);
}

INSTANTIATE_TEST_SUITE_P(
    All, RefusedSchedulerConfigTest,
    ::testing::Values(
        RefusedCase{"Empty", "", "not JSON"},
        RefusedCase{"Array", "[]", "expected an object, got an array"},
        RefusedCase{"NoClass", "{}",
                    "_class_name: missing; expected string (the class of diffusers"},
        RefusedCase{"OtherClass", Minimal("PNDMScheduler"),
                    "_class_name: expected one of DDPMScheduler, DDIMScheduler, "
                    "EulerDiscreteScheduler, EulerAncestralDiscreteScheduler, "
                    "DPMSolverMultistepScheduler, LCMScheduler, FlowMatchEulerDiscreteScheduler, "
                    "EDMEulerScheduler, HeunDiscreteScheduler, got string \"PNDMScheduler\""},
        RefusedCase{"ClassArray", R"({"_class_name":["a","DDIMScheduler"]})",
                    "HeunDiscreteScheduler, got an array"},
        RefusedCase{"ClassDropped",
                    R"({"_class_name":"DDIMScheduler","_use_default_values":["_class_name"]})",
                    "_class_name: missing"},
        RefusedCase{"Twice", R"({"_class_name":"DDIMScheduler","_class_name":"DDIMScheduler"})",
                    "key \"_class_name\" appears twice"},
        RefusedCase{"UseDefaultsString", With("_use_default_values", "\"beta_end\""),
                    "_use_default_values: expected an array of strings, got string"},
        RefusedCase{"UseDefaultsNumber", With("_use_default_values", "[1]"),
                    "_use_default_values[0]: expected a string, got 1"},
        RefusedCase{"Laplace", With("beta_schedule", "\"laplace\""),
                    "beta_schedule: expected one of linear, scaled_linear, squaredcos_cap_v2, "
                    "sigmoid, exp, got string \"laplace\""},
        RefusedCase{"SigmoidOfDdim", With("beta_schedule", "\"sigmoid\"", "DDIMScheduler"),
                    "beta_schedule: expected one of linear, scaled_linear, squaredcos_cap_v2 with "
                    "DDIMScheduler, got \"sigmoid\""},
        RefusedCase{"Thresholding", With("thresholding", "true"),
                    "thresholding: expected false (dynamic thresholding is not supported), got "
                    "true"},
        RefusedCase{"Variance", With("variance_type", "\"fixed_small_log\""),
                    "variance_type: expected one of fixed_small, fixed_large, learned, "
                    "learned_range, got string \"fixed_small_log\""},
        RefusedCase{"ExpOfDdpm", With("beta_schedule", "\"exp\""),
                    "beta_schedule: expected one of linear, scaled_linear, squaredcos_cap_v2 with "
                    "DDPMScheduler, got \"exp\", which only HeunDiscreteScheduler has"},
        RefusedCase{"SolverType", With("solver_type", "\"euler\"", "DPMSolverMultistepScheduler"),
                    "solver_type: expected one of midpoint, heun, logrho, bh1, bh2, got string"},
        RefusedCase{
            "Prediction", With("prediction_type", "\"flow\""),
            "prediction_type: expected one of epsilon, sample, v_prediction, flow_prediction, "
            "got string"},
        RefusedCase{"Spacing", With("timestep_spacing", "0"),
                    "timestep_spacing: expected one of leading, linspace, trailing, got 0"},
        RefusedCase{"BetaZero", With("beta_start", "0"),
                    "beta_start: expected a number above 0 and at most 1, got 0"},
        RefusedCase{"BetaNegative", With("beta_end", "-0.1"), "beta_end: expected a number above"},
        RefusedCase{"BetaAboveOne", With("beta_end", "1.5"), "at most 1, got 1.5"},
        RefusedCase{"BetaOverflow", With("beta_end", "1e999"), "number overflow"},
        RefusedCase{"BetaNaN", With("beta_end", "NaN"), "not JSON"},
        RefusedCase{"BetaString", With("beta_end", "\"0.1\""),
                    "beta_end: expected a number, got string \"0.1\""},
        RefusedCase{"ClipRangeZero", With("clip_sample_range", "0.0"),
                    "clip_sample_range: expected a finite number above 0, got 0.0"},
        RefusedCase{"TrainedBetasTooFew", With("trained_betas", "[0.5]"),
                    "trained_betas: expected null or an array of num_train_timesteps = 1000 "
                    "numbers, got an array of 1 values"},
        RefusedCase{"TrainedBetasString", With("trained_betas", "\"0.5\""),
                    "numbers, got string \"0.5\""},
        RefusedCase{"TrainedBeta",
                    R"({"_class_name":"DDPMScheduler","num_train_timesteps":2,)"
                    R"("trained_betas":[0.5,2]})",
                    "trained_betas[1]: expected a number above 0 and at most 1, got 2"},
        RefusedCase{"ClippedOutput", With("use_clipped_model_output", "true", "DDIMScheduler"),
                    "use_clipped_model_output: expected no such key here, as no scheduler of "
                    "diffusers has it; it is a key of config.json"},
        RefusedCase{"Eta", With("eta", "0", "DDIMScheduler"), "it is a key of config.json"},
        RefusedCase{
            "Unknown", With("use_better_sigmas", "false"),
            "unknown key \"use_better_sigmas\": no scheduler of diffusers has it, and it may "
            "be meant to change the samples; take it out if it is not"},
        RefusedCase{"Order3", With("solver_order", "3", "DPMSolverMultistepScheduler"),
                    "solver_order: expected 1 or 2 (steps that remember more than one are not "
                    "supported), got 3"},
        RefusedCase{"DpmSolverToZero",
                    With("algorithm_type", "\"dpmsolver\"", "DPMSolverMultistepScheduler"),
                    "final_sigmas_type: expected \"sigma_min\" with dpmsolver, got \"zero\""},
        RefusedCase{"DpmLearned",
                    With("variance_type", "\"learned\"", "DPMSolverMultistepScheduler"),
                    "variance_type: expected null with DPMSolverMultistepScheduler, got "
                    "\"learned\""},
        RefusedCase{"DpmExponential",
                    With("use_exponential_sigmas", "true", "DPMSolverMultistepScheduler"),
                    "use_exponential_sigmas: expected false (diffusers cuts its times off, where "
                    "float32 decides) with DPMSolverMultistepScheduler, got true"},
        RefusedCase{"DpmCosineKarras",
                    R"({"_class_name":"DPMSolverMultistepScheduler","solver_order":1,)"
                    R"("beta_schedule":"squaredcos_cap_v2","use_karras_sigmas":true})",
                    "use_karras_sigmas: expected false (with squaredcos_cap_v2 diffusers"},
        RefusedCase{
            "FlowOfDpmSolver",
            R"({"_class_name":"DPMSolverMultistepScheduler","solver_order":1,)"
            R"("algorithm_type":"dpmsolver","final_sigmas_type":"sigma_min",)"
            R"("prediction_type":"flow_prediction"})",
            "prediction_type: expected one of epsilon, sample, v_prediction with dpmsolver, "
            "got \"flow_prediction\""},
        RefusedCase{"FlowOfDdpm", With("prediction_type", "\"flow_prediction\""),
                    "prediction_type: expected one of epsilon, sample, v_prediction with "
                    "DDPMScheduler, got \"flow_prediction\""},
        RefusedCase{
            "SampleOfEdm", With("prediction_type", "\"sample\"", "EDMEulerScheduler"),
            "prediction_type: expected one of epsilon, v_prediction with EDMEulerScheduler, "
            "got \"sample\""},
        RefusedCase{"TwoSigmas",
                    R"({"_class_name":"EulerDiscreteScheduler","use_karras_sigmas":true,)"
                    R"("use_exponential_sigmas":true})",
                    "use_karras_sigmas: expected at most one of"},
        RefusedCase{"BetaSigmasOfDpm",
                    With("use_beta_sigmas", "true", "DPMSolverMultistepScheduler"),
                    "use_beta_sigmas: expected false (diffusers cuts its times off, where float32 "
                    "decides) with DPMSolverMultistepScheduler, got true"},
        RefusedCase{"BetaAndKarras",
                    R"({"_class_name":"HeunDiscreteScheduler","use_karras_sigmas":true,)"
                    R"("use_beta_sigmas":true})",
                    "use_karras_sigmas: expected at most one of"},
        RefusedCase{"TimeShift",
                    With("time_shift_type", "\"log\"", "FlowMatchEulerDiscreteScheduler"),
                    "time_shift_type: expected one of exponential, linear, got string \"log\""},
        RefusedCase{"Mu", With("mu", "1.0", "FlowMatchEulerDiscreteScheduler"),
                    "mu: expected no such key here, as no scheduler of diffusers has it; it is a "
                    "key of config.json"},
        RefusedCase{"TerminalOne", With("shift_terminal", "1.0", "FlowMatchEulerDiscreteScheduler"),
                    "shift_terminal: expected null or a number in [0, 1), got 1.0"},
        RefusedCase{"SigmaMinZero", With("sigma_min", "0", "EDMEulerScheduler"),
                    "sigma_min: expected null or a finite number above 0, got 0"},
        RefusedCase{"LcmOriginal", With("original_inference_steps", "1001", "LCMScheduler"),
                    "original_inference_steps: expected at most num_train_timesteps = 1000, got "
                    "1001"},
        RefusedCase{"OneStepMore",
                    R"({"_class_name":"EulerDiscreteScheduler","prediction_type":"v_prediction",)"
                    R"("interpolation_type":"log_linear","timestep_type":"continuous"})",
                    "timestep_type: expected \"discrete\" (with the interpolation_type log_linear"},
        RefusedCase{"InfinityOfAnotherKey", With("beta_end", "-Infinity"), "not JSON"},
        RefusedCase{"PositiveInfinity",
                    With("lambda_min_clipped", "Infinity", "DPMSolverMultistepScheduler"),
                    "not JSON"},
        RefusedCase{"Deep", With("x", std::string(100, '[')), "nested deeper than 16"},
        RefusedCase{"Trailing", Minimal() + "x", "not JSON"}),
    CaseName);

// The documentation prints defaults from the table; the parser must use them if the key is absent.
TEST(SchedulerConfigKeysTest, DescribesTheDefaultsThatAreTaken) {
  for (const SchedulerClass scheduler_class : SchedulerClasses()) {
    for (const SchedulerConfigKey& key : SchedulerConfigKeys()) {
      const std::string_view value = DefaultOf(key, scheduler_class);
      if (!AppliesTo(key, scheduler_class) || value == "required") continue;
      const std::string_view name = NameOf(scheduler_class);
      const auto config = ParseSchedulerConfig(With(key.name, value, name));
      ASSERT_TRUE(config.ok()) << config.status();
      EXPECT_EQ(*config, *ParseSchedulerConfig(Minimal(name))) << name << " " << key.name;
      if (value == key.default_value) continue;
      EXPECT_NE(key.meaning.find(StrCat(": ", value)), std::string_view::npos)
          << key.name << " does not tell the default of " << name;
    }
  }
}

TEST(SchedulerConfigKeysTest, IsCompleteAndWithoutRepetition) {
  std::set<std::string_view> names;
  for (const SchedulerConfigKey& key : SchedulerConfigKeys()) {
    EXPECT_TRUE(names.insert(key.name).second) << key.name;
    EXPECT_FALSE(key.meaning.empty()) << key.name;
    EXPECT_EQ(key.type == "integer", key.max > 0) << key.name;
    const int64_t classes =
        std::ranges::count_if(SchedulerClasses(), [&](auto c) { return AppliesTo(key, c); });
    EXPECT_EQ(classes, key.classes == "all" ? std::ssize(SchedulerClasses())
                                            : 1 + std::ranges::count(key.classes, ','))
        << key.name << " names a class that is not there";
  }
  EXPECT_EQ(SchedulerConfigKeys().front().name, "_class_name");
}

}  // namespace
}  // namespace deeppcr::testing
