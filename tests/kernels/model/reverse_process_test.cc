// SPDX-License-Identifier: Apache-2.0
#include "kernels/model/reverse_process.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>

#include "kernels/base/strings.h"
#include "kernels/model/timesteps.h"
#include "tests/testing/expect_error.h"
#include "tests/testing/golden.h"
#include "tests/testing/larger.h"

namespace deeppcr::testing {
namespace {

using absl::StatusCode;
using nlohmann::json;
using Vector = std::vector<double>;

// diffusers' tables are float32; the transcription differs by the order of operations only.
constexpr double kOfDiffusers = 2e-4;
constexpr double kOfTranscription = 1e-10;

const json& Golden() {
  static const json* const golden = new json(ReadGolden("schedulers.json"));
  return *golden;
}

double Largest(const Vector& values) {
  double largest = 0;
  for (const double value : values) largest = Larger(largest, std::abs(value));
  return largest;
}

Vector PrevSample(const ReverseProcess& process, const ReverseStep& step) {
  const json& vectors = Golden()["vectors"];
  Vector sample;
  for (size_t i = 0; i < vectors["z"].size(); ++i) {
    sample.push_back(ApplyReverseStep(step, process.clip_range, vectors["z"][i], vectors["m"][i],
                                      vectors["noise"][i]));
  }
  return sample;
}

void ExpectSamples(const ReverseProcess& process, const json& want, double tolerance) {
  ASSERT_EQ(process.steps.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    const Vector expected = want[i].get<Vector>();
    const Vector got = PrevSample(process, process.steps[i]);
    ASSERT_EQ(got.size(), expected.size());
    for (size_t k = 0; k < got.size(); ++k) {
      EXPECT_NEAR(got[k], expected[k], tolerance * Largest(expected)) << "step " << i;
    }
  }
}

absl::StatusOr<ReverseProcess> Build(const json& golden) {
  const absl::StatusOr<SchedulerConfig> config = ParseSchedulerConfig(golden["config"].dump());
  if (!config.ok()) return config.status();
  EXPECT_TRUE(config->ignored_keys.empty());
  return BuildReverseProcess(*config,
                             {.num_inference_steps = golden["num_inference_steps"],
                              .eta = golden["eta"],
                              .use_clipped_model_output = golden["use_clipped_model_output"],
                              .diffusers_compatible = golden["diffusers_compatible"]});
}

class GoldenSchedulerTest : public ::testing::TestWithParam<int> {
 protected:
  const json& golden() const { return Golden()["cases"][static_cast<size_t>(GetParam())]; }
};

TEST_P(GoldenSchedulerTest, AgreesWithDiffusersAndWithItsFormulasInFloat64) {
  const ReverseProcess process = Build(golden()).value();

  Vector timesteps, prev_timesteps;
  for (const ReverseStep& step : process.steps) {
    timesteps.push_back(step.timestep);
    prev_timesteps.push_back(step.prev_timestep);
  }
  EXPECT_EQ(timesteps, golden()["timesteps"].get<Vector>());
  EXPECT_EQ(prev_timesteps, golden()["prev_timesteps"].get<Vector>());
  ExpectSamples(process, golden()["float64"], kOfTranscription);
  if (!golden()["diffusers"].is_null()) {
    ExpectSamples(process, golden()["diffusers"], kOfDiffusers);
  }
}

std::string GoldenName(const ::testing::TestParamInfo<int>& info) {
  return Golden()["cases"][static_cast<size_t>(info.param)]["name"];
}

int NumGoldenCases() { return static_cast<int>(Golden()["cases"].size()); }

INSTANTIATE_TEST_SUITE_P(All, GoldenSchedulerTest, ::testing::Range(0, NumGoldenCases()),
                         GoldenName);

// The combinations of options that golden cases compare with diffusers itself.
std::set<std::string> CombinationsComparedWithDiffusers() {
  std::set<std::string> names;
  for (const json& golden : Golden()["cases"]) {
    if (golden["diffusers"].is_null()) continue;
    const json& config = golden["config"];
    names.insert(StrCat(config["_class_name"].get<std::string>(), " ", golden["eta"].get<double>(),
                        golden["use_clipped_model_output"].get<bool>() ? " clipped " : " ",
                        config["prediction_type"].get<std::string>(), " ",
                        config["timestep_spacing"].get<std::string>(), " ",
                        config["clip_sample"].get<bool>()));
  }
  return names;
}

TEST(GoldenSchedulerCoverageTest, ComparesEveryCombinationWithDiffusersItself) {
  const std::set<std::string> names = CombinationsComparedWithDiffusers();
  for (const std::string_view sampler : {"DDPMScheduler 0", "DDIMScheduler 0", "DDIMScheduler 0.5",
                                         "DDIMScheduler 0 clipped", "DDIMScheduler 0.5 clipped"})
    for (const std::string_view prediction : {"epsilon", "sample", "v_prediction"})
      for (const std::string_view spacing : {"leading", "linspace", "trailing"})
        for (const bool clip : {false, true})
          EXPECT_TRUE(names.contains(StrCat(sampler, " ", prediction, " ", spacing, " ", clip)))
              << sampler << " " << prediction << " " << spacing << " " << clip;
}

// Without clipped and unclipped values in one case, a clip that does nothing would pass.
TEST(GoldenSchedulerCoverageTest, ClipsSomeValuesAndNotOthers) {
  const json& vectors = Golden()["vectors"];
  int clipped = 0;
  int kept = 0;
  for (const json& golden : Golden()["cases"]) {
    const ReverseProcess process = *Build(golden);
    for (const ReverseStep& step : process.steps) {
      for (size_t i = 0; i < vectors["z"].size(); ++i) {
        const double z = vectors["z"][i];
        const double m = vectors["m"][i];
        ++(std::abs(step.x0_z * z + step.x0_m * m) > process.clip_range ? clipped : kept);
      }
    }
  }
  EXPECT_GT(clipped, 100);
  EXPECT_GT(kept, 100);
}

TEST(TimestepsTest, EqualsDiffusersForEveryNumberOfSteps) {
  EXPECT_EQ(Golden()["checksums"].size(), 6U);
  for (const json& table : Golden()["checksums"]) {
    const json file = {{"_class_name", "DDPMScheduler"},
                       {"timestep_spacing", table["timestep_spacing"]},
                       {"num_train_timesteps", table["num_train_timesteps"]}};
    const SchedulerConfig config = *ParseSchedulerConfig(file.dump());
    for (int64_t count = 1; count <= config.num_train_timesteps; ++count) {
      if (table["sizes"][static_cast<size_t>(count - 1)] != count) continue;
      const auto timesteps = Timesteps(config, count).value();
      ASSERT_EQ(std::ssize(timesteps), count);
      int64_t checksum = 0;
      for (int64_t i = 0; i < count; ++i) {
        checksum += (i + 1) * timesteps[static_cast<size_t>(i)];
      }
      ASSERT_EQ(checksum, table["values"][static_cast<size_t>(count - 1)]) << file << " " << count;
    }
  }
}

TEST(TimestepsTest, RefusesWhereTrailingMakesOneTooMany) {
  SchedulerConfig config;
  config.timestep_spacing = TimestepSpacing::kTrailing;
  for (const json& table : Golden()["checksums"]) {
    if (table["timestep_spacing"] != "trailing") continue;
    config.num_train_timesteps = table["num_train_timesteps"];
    int refused = 0;
    for (int64_t count = 1; count <= config.num_train_timesteps; ++count) {
      const bool too_many = table["sizes"][static_cast<size_t>(count - 1)] == count + 1;
      refused += too_many ? 1 : 0;
      EXPECT_EQ(Timesteps(config, count).ok(), !too_many) << count;
    }
    EXPECT_GT(refused, 0);
  }
  config.num_train_timesteps = 50;
  ExpectError(Timesteps(config, 29), StatusCode::kInvalidArgument,
              "num_inference_steps: expected a number for which `trailing` ends at 0 or above, got "
              "29 of 50, for which diffusers makes 30 timesteps ending in -1");
}

TEST(TimestepsTest, RefusesAnOffsetThatLeavesTheTable) {
  SchedulerConfig config;
  config.steps_offset = 1;
  EXPECT_TRUE(Timesteps(config, 999).ok());
  ExpectError(Timesteps(config, 1000), StatusCode::kInvalidArgument,
              "steps_offset: expected timesteps below num_train_timesteps = 1000, got 1000 with "
              "1000 steps and offset 1");
}

TEST(TimestepsTest, RefusesANumberOfStepsOutOfRange) {
  for (const int64_t count : {int64_t{-1}, int64_t{0}, int64_t{1001}, INT64_MAX, INT64_MIN}) {
    ExpectError(Timesteps(SchedulerConfig(), count), StatusCode::kInvalidArgument,
                StrCat("num_inference_steps: expected an integer in [1, num_train_timesteps = "
                       "1000], got ",
                       count));
  }
}

SchedulerConfig Ddim() {
  SchedulerConfig config;
  config.scheduler_class = SchedulerClass::kDdim;
  return config;
}

TEST(ReverseProcessTest, ReturnsItsTables) {
  SchedulerConfig config;
  config.num_train_timesteps = 3;
  config.trained_betas = {0.5, 0.25, 0.75};

  const ReverseProcess process = *BuildReverseProcess(config, {.num_inference_steps = 3});

  EXPECT_EQ(process.betas, config.trained_betas);
  EXPECT_EQ(process.alphas_cumprod, (Vector{0.5, 0.375, 0.09375}));
  EXPECT_EQ(process.clip_range, 1.0);
}

TEST(ReverseProcessTest, DoesNotClipWithoutClipSample) {
  SchedulerConfig config;
  config.clip_sample = false;

  const ReverseProcess process = *BuildReverseProcess(config, {.num_inference_steps = 1});

  EXPECT_EQ(process.clip_range, std::numeric_limits<double>::infinity());
}

// The last step draws noise unless it is at timestep 0.
TEST(ReverseProcessTest, DrawsNoiseInTheLastStepOnlyAboveTimestepZero) {
  SchedulerConfig config;
  config.variance_type = VarianceType::kFixedLarge;
  EXPECT_EQ(BuildReverseProcess(config, {.num_inference_steps = 10})->steps.back().sigma, 0.0);

  config.steps_offset = 1;
  const ReverseProcess large = *BuildReverseProcess(config, {.num_inference_steps = 10});
  EXPECT_DOUBLE_EQ(large.steps.back().sigma, std::sqrt(1.0 - large.alphas_cumprod[1]));

  config.variance_type = VarianceType::kFixedSmall;
  const ReverseProcess small = *BuildReverseProcess(config, {.num_inference_steps = 10});
  EXPECT_DOUBLE_EQ(small.steps.back().sigma, 1e-10);
}

// Between neighbouring timesteps the posterior of DDPM is that of DDIM with eta 1, whose mean is
// written in eps instead of z.
TEST(ReverseProcessTest, GivesDdimWithEtaOneTheVarianceOfDdpm) {
  const ReverseProcess ddpm = *BuildReverseProcess({}, {.num_inference_steps = 50});
  const ReverseProcess ddim = *BuildReverseProcess(Ddim(), {.num_inference_steps = 50, .eta = 1.0});

  ASSERT_EQ(ddpm.steps.size(), ddim.steps.size());
  for (size_t i = 0; i < ddpm.steps.size(); ++i) {
    EXPECT_NEAR(ddpm.steps[i].sigma, ddim.steps[i].sigma, 1e-12);
    const ReverseStep& a = ddpm.steps[i];
    const ReverseStep& b = ddim.steps[i];
    const double infinity = std::numeric_limits<double>::infinity();
    EXPECT_NEAR(ApplyReverseStep(a, infinity, 0.7, -0.3, 0.0),
                ApplyReverseStep(b, infinity, 0.7, -0.3, 0.0), 1e-10);
  }
}

TEST(ReverseProcessTest, RefusesEtaOutOfRange) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double eta : {-0.1, 1.1, nan}) {
    ExpectError(BuildReverseProcess(Ddim(), {.num_inference_steps = 1, .eta = eta}),
                StatusCode::kInvalidArgument, "eta: expected a number in [0, 1], got ");
  }
  ExpectError(BuildReverseProcess({}, {.num_inference_steps = 1, .eta = 0.5}),
              StatusCode::kInvalidArgument, "eta: expected 0 with DDPMScheduler");
}

TEST(ReverseProcessTest, RefusesMuThatIsMissingOrSaysNothing) {
  SchedulerConfig config;
  config.scheduler_class = SchedulerClass::kFlowMatchEuler;
  const auto refused = [&](std::optional<double> mu) {
    return BuildReverseProcess(config, {.num_inference_steps = 3, .mu = mu});
  };
  ExpectError(refused(0.5), StatusCode::kInvalidArgument,
              "mu: expected none with FlowMatchEulerDiscreteScheduler without "
              "use_dynamic_shifting, got 0.5");

  config.use_dynamic_shifting = true;
  ExpectError(refused(std::nullopt), StatusCode::kInvalidArgument,
              "mu: missing; expected the number that the pipeline passes to set_timesteps");
  for (const double mu : {710.0, -760.0, std::numeric_limits<double>::quiet_NaN()}) {
    ExpectError(refused(mu), StatusCode::kInvalidArgument,
                "mu: expected a number that makes a finite shift above 0, got ");
  }
  config.time_shift_type = TimeShift::kLinear;
  for (const double mu : {0.0, -1.0, std::numeric_limits<double>::infinity()}) {
    ExpectError(refused(mu), StatusCode::kInvalidArgument,
                "mu: expected a number that makes a finite shift above 0, got ");
  }
  config.scheduler_class = SchedulerClass::kDpmSolverMultistep;
  ExpectError(refused(1.0), StatusCode::kInvalidArgument,
              "time_shift_type: expected \"exponential\" with DPMSolverMultistepScheduler and mu, "
              "got \"linear\"");
}

TEST(ReverseProcessTest, RefusesEpsilonAtZeroSnrOnlyWhereATimestepIsThere) {
  SchedulerConfig config;
  config.rescale_betas_zero_snr = true;
  EXPECT_TRUE(BuildReverseProcess(config, {.num_inference_steps = 10}).ok());

  config.timestep_spacing = TimestepSpacing::kTrailing;
  ExpectError(BuildReverseProcess(config, {.num_inference_steps = 10}),
              StatusCode::kInvalidArgument,
              "prediction_type: expected sample or v_prediction where alphas_cumprod is 0 "
              "(timestep 999; rescale_betas_zero_snr), got epsilon");

  config.prediction_type = PredictionType::kSample;
  const auto process = BuildReverseProcess(config, {.num_inference_steps = 10}).value();
  EXPECT_EQ(process.alphas_cumprod.back(), 0.0);
}

TEST(ReverseProcessTest, RefusesBetasThatCannotBeRescaled) {
  SchedulerConfig config;
  config.rescale_betas_zero_snr = true;
  config.num_train_timesteps = 1;
  ExpectError(BuildReverseProcess(config, {.num_inference_steps = 1}), StatusCode::kInvalidArgument,
              "rescale_betas_zero_snr: expected alphas_cumprod to fall over at least 2 timesteps");

  config.num_train_timesteps = 3;
  config.trained_betas = {0.5, 1.0, 0.5};
  ExpectError(BuildReverseProcess(config, {.num_inference_steps = 1}), StatusCode::kInvalidArgument,
              "rescale_betas_zero_snr: expected alphas_cumprod to stay above 0 before the last "
              "timestep, got 0 at timestep 1");
}

TEST(ReverseProcessTest, RefusesBetasThatLeadToADivisionByZero) {
  SchedulerConfig config;
  config.prediction_type = PredictionType::kSample;
  config.num_train_timesteps = 3;
  config.trained_betas = {0.5, 1.0, 0.5};
  ExpectError(BuildReverseProcess(config, {.num_inference_steps = 3}), StatusCode::kInvalidArgument,
              "betas: expected alphas_cumprod above 0 at timestep 1, which follows 2, got 0");

  config.trained_betas = {1e-300, 0.5, 0.5};
  ExpectError(BuildReverseProcess(config, {.num_inference_steps = 3}), StatusCode::kInvalidArgument,
              "betas: expected alphas_cumprod below 1 at timestep 0, got 1");

  config = SchedulerConfig();
  config.num_train_timesteps = 20'000;  // 1 / sqrt of the product leaves float's range
  ExpectError(BuildReverseProcess(config, {.num_inference_steps = 1000}),
              StatusCode::kInvalidArgument,
              "betas: expected coefficients that are finite as float32, got ");
}

TEST(ReverseProcessTest, BuildsEverySizeWithFiniteCoefficients) {
  for (const int64_t size : {1, 2, 31, 32, 33, 65, 1000}) {
    SchedulerConfig config = Ddim();
    config.num_train_timesteps = size;
    const auto process = BuildReverseProcess(config, {.num_inference_steps = size, .eta = 1.0});
    ASSERT_TRUE(process.ok()) << process.status();
    EXPECT_EQ(std::ssize(process->steps), size);
    EXPECT_EQ(process->steps.back().prev_timestep, -1);
  }
}

}  // namespace
}  // namespace deeppcr::testing
