// SPDX-License-Identifier: Apache-2.0
#include "kernels/model/step_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "kernels/base/strings.h"
#include "kernels/model/registry.h"
#include "kernels/model/reverse_process.h"
#include "tests/kernels/model/diffusion_case.h"
#include "tests/testing/expect_error.h"
#include "tests/testing/safetensors_writer.h"

namespace deeppcr::testing {
namespace {

using absl::StatusCode;
using Columns = std::map<std::string, std::vector<double>>;

// A file of F64 tensors [size]; a name that ends in ":f32" is F32.
std::string TableBytes(const Columns& columns) {
  nlohmann::json header;
  std::string data;
  for (const auto& [name, values] : columns) {
    const size_t begin = data.size(), colon = name.find(':');
    const bool single = colon != std::string::npos;
    for (const double value : values) {
      const auto rounded = static_cast<float>(value);
      char bytes[sizeof(double)];
      std::memcpy(bytes, single ? static_cast<const void*>(&rounded) : &value,
                  single ? sizeof(float) : sizeof(double));
      data.append(bytes, single ? sizeof(float) : sizeof(double));
    }
    header[name.substr(0, colon)] = {{"dtype", single ? "F32" : "F64"},
                                     {"shape", {values.size()}},
                                     {"data_offsets", {begin, data.size()}}};
  }
  return SafetensorsBytes(header.dump(), data);
}

Columns TwoSteps() {
  return {{"x0_z", {1, 2}},   {"x0_m", {-1, -0.5}}, {"z_z", {0.1, 0.2}}, {"z_m", {0.3, 0}},
          {"z_x0", {0.5, 1}}, {"sigma", {0.7, 0}},  {"time", {12.5, -3}}};
}

Columns TableWith(const std::string& name, const std::vector<double>& values) {
  Columns columns = TwoSteps();
  columns[name] = values;
  return columns;
}

TEST(StepTableTest, ReadsEveryColumn) {
  const StepTables table = ParseStepTable(TableBytes(TwoSteps())).value();

  ASSERT_EQ(table.steps.size(), 2U);
  EXPECT_EQ(table.steps[0], (ReverseStep{.timestep = 12.5,
                                         .prev_timestep = -3,
                                         .x0_z = 1,
                                         .x0_m = -1,
                                         .z_z = 0.1,
                                         .z_m = 0.3,
                                         .z_x0 = 0.5,
                                         .sigma = 0.7}));
  EXPECT_EQ(table.steps[1],
            (ReverseStep{.timestep = -3, .x0_z = 2, .x0_m = -0.5, .z_z = 0.2, .z_x0 = 1}));
  EXPECT_EQ(table.clip_range, std::numeric_limits<double>::infinity());
  EXPECT_EQ(table.initial_scale, 1.0F);
}

TEST(StepTableTest, ReadsOptionalNumbersAndFloats) {
  Columns columns = TableWith("clip_range", {2.5});
  columns["initial_scale:f32"] = {0.1};
  columns.erase("time");
  columns["time:f32"] = {0.1, 0.2};

  const StepTables table = ParseStepTable(TableBytes(columns)).value();

  EXPECT_EQ(table.clip_range, 2.5);
  EXPECT_EQ(table.initial_scale, 0.1F);
  EXPECT_EQ(table.steps[1].timestep, static_cast<double>(0.2F));
}

TEST(StepTableTest, ReadsTheColumnsOfAMemory) {
  Columns columns = TableWith("z_c", {0, 0.25});
  columns["c_z"] = {1, 2};
  columns["c_x0:f32"] = {0.1, 0};

  const StepTables table = ParseStepTable(TableBytes(columns)).value();

  EXPECT_TRUE(table.form.carries);
  EXPECT_EQ(table.steps[1].z_c, 0.25);
  EXPECT_EQ(table.steps[0].c_z, 1);
  EXPECT_EQ(table.steps[0].c_x0, static_cast<double>(0.1F));
  EXPECT_EQ(table.steps[0].c_m, 0);
}

// What no step reads is not carried.
TEST(StepTableTest, AMemoryThatNoStepReadsIsNone) {
  EXPECT_FALSE(ParseStepTable(TableBytes(TwoSteps()))->form.carries);
  EXPECT_FALSE(ParseStepTable(TableBytes(TableWith("c_x0", {1, 1})))->form.carries);
  EXPECT_FALSE(ParseStepTable(TableBytes(TableWith("z_c", {0, 0})))->form.carries);
}

// ---- The stochastic sampler of Karras et al. 2022 (EDM, algorithm 2) as a table, by the recipe of
// server/README.md: the noise that a step begins with is that of the row before it, and that of the
// first step is in initial_scale.

struct Churn {
  double amount = 0, from = 0, to = 0, noise = 1;  // S_churn, S_tmin, S_tmax, S_noise
};

constexpr double kData = 0.5;

double ScaleAt(double sigma) { return 1 / std::sqrt(sigma * sigma + kData * kData); }

// Sigmas from 80 to 0.002 and 0, of the paper's equation 5.
std::vector<double> EdmLevels(int n) {
  std::vector<double> sigmas;
  for (int i = 0; i < n; ++i) {
    const double share = static_cast<double>(i) / (n - 1);
    sigmas.push_back(std::pow(
        std::pow(80.0, 1 / 7.0) + share * (std::pow(0.002, 1 / 7.0) - std::pow(80.0, 1 / 7.0)), 7));
  }
  sigmas.push_back(0);
  return sigmas;
}

// Where a step begins after its noise.
double Raised(const Churn& churn, double sigma, size_t num_steps) {
  const bool raises = sigma >= churn.from && sigma <= churn.to;
  const double most = std::sqrt(2.0) - 1;
  return sigma *
         (1 + (raises ? std::min(churn.amount / static_cast<double>(num_steps), most) : 0.0));
}

double AddedNoise(const Churn& churn, double sigma, double raised) {
  return churn.noise * std::sqrt(raised * raised - sigma * sigma);
}

Columns ChurnTable(const std::vector<double>& sigmas, const Churn& churn) {
  Columns table;
  const size_t n = sigmas.size() - 1;
  const auto add = [&](double sigma, std::map<std::string, double> row) {
    const double scale = ScaleAt(sigma);
    row["time"] = 0.25 * std::log(sigma);
    row["x0_z"] = kData * kData * scale;
    row["x0_m"] = sigma * kData * scale;
    for (const char* const name :
         {"x0_z", "x0_m", "z_z", "z_m", "z_x0", "sigma", "time", "z_c", "c_z", "c_m", "c_x0"})
      table[name].push_back(row[name]);
  };
  for (size_t i = 0; i < n; ++i) {
    const double raised = Raised(churn, sigmas[i], n), next = sigmas[i + 1];
    const double r = (next - raised) / raised, ahead = i + 1 < n ? ScaleAt(next) : 1;
    add(raised, {{"z_z", ahead * (1 + r) / ScaleAt(raised)},
                 {"z_x0", -ahead * r},
                 {"c_z", ahead * (1 + 0.5 * r) / ScaleAt(raised)},
                 {"c_x0", -ahead * 0.5 * r}});
    if (i + 1 == n) break;
    const double half = 0.5 * (next - raised) / next, after = Raised(churn, next, n);
    add(next, {{"z_z", ScaleAt(after) * half / ScaleAt(next)},
               {"z_x0", -ScaleAt(after) * half},
               {"z_c", ScaleAt(after) / ScaleAt(next)},
               {"sigma", ScaleAt(after) * AddedNoise(churn, next, after)}});
  }
  const double raised = Raised(churn, sigmas[0], n);
  table["initial_scale"] = {ScaleAt(raised) *
                            std::hypot(sigmas[0], AddedNoise(churn, sigmas[0], raised))};
  return table;
}

double EdmNetwork(double z, double time) { return 0.4 * std::sin(z) + 0.3 * std::cos(time); }

double EdmDenoised(double x, double sigma) {
  const double scale = ScaleAt(sigma);
  return kData * kData * scale * scale * x +
         sigma * kData * scale * EdmNetwork(scale * x, 0.25 * std::log(sigma));
}

// Algorithm 2 on one element, in its own variables.
double RunEdm(const std::vector<double>& sigmas, const Churn& churn, double initial,
              const std::vector<double>& noise) {
  const size_t n = sigmas.size() - 1;
  double x = 0;
  for (size_t i = 0; i < n; ++i) {
    const double raised = Raised(churn, sigmas[i], n);
    const double added = AddedNoise(churn, sigmas[i], raised);
    const double hat = i == 0 ? std::hypot(sigmas[0], added) * initial : x + added * noise[i - 1];
    const double slope = (hat - EdmDenoised(hat, raised)) / raised;
    x = hat + (sigmas[i + 1] - raised) * slope;
    if (sigmas[i + 1] == 0) break;
    const double ahead = (x - EdmDenoised(x, sigmas[i + 1])) / sigmas[i + 1];
    x = hat + (sigmas[i + 1] - raised) * 0.5 * (slope + ahead);
  }
  return x;
}

TEST(StepTableTest, CanSayTheStochasticSamplerOfEdm) {
  for (const Churn& churn : {Churn{}, Churn{40, 0.05, 50, 1.003}, Churn{1e9, 0, 1e9, 1}}) {
    for (const int n : {2, 5, 18}) {
      const std::vector<double> sigmas = EdmLevels(n);
      const StepTables table = ParseStepTable(TableBytes(ChurnTable(sigmas, churn))).value();
      ASSERT_EQ(std::ssize(table.steps), 2 * n - 1);
      EXPECT_TRUE(table.form.carries);
      StateAndMemory state = {table.initial_scale * 0.8, 0};
      std::vector<double> noise;
      for (int64_t l = 0; l < std::ssize(table.steps); ++l) {
        const double drawn = std::cos(static_cast<double>(l));
        if (l % 2 == 1) noise.push_back(drawn);
        const ReverseStep& step = table.steps[l];
        EXPECT_EQ(step.sigma > 0,
                  l % 2 == 1 && churn.amount > 0 &&
                      Raised(churn, sigmas[(l + 1) / 2], sigmas.size() - 1) > sigmas[(l + 1) / 2]);
        state = ApplyReverseStep(step, table.clip_range, state, EdmNetwork(state.z, step.timestep),
                                 drawn);
      }
      // initial_scale is a float32.
      const double scale = table.initial_scale / ChurnTable(sigmas, churn)["initial_scale"][0];
      const double exact = RunEdm(sigmas, churn, scale * 0.8, noise);
      EXPECT_NEAR(state.z, exact, 1e-10 * (1.0 + std::abs(exact))) << n;
    }
  }
}

TEST(StepTableTest, RefusesWithTheReason) {
  const double infinity = std::numeric_limits<double>::infinity();
  const std::vector<std::pair<Columns, std::string>> cases = {
      {TableWith("x1", {1, 2}),
       "unknown tensor \"x1\"; the tensors are x0_z, x0_m, z_z, z_m, z_x0, "
       "sigma, time, z_c, c_z, c_m, c_x0, clip_range, initial_scale"},
      {TableWith("z_m", {1, 2, 3}), "tensor \"z_m\": expected shape [2] as that of x0_z, got [3]"},
      {TableWith("x0_z", {}), "tensor \"x0_z\": expected shape [1 .. 65536], got [0]"},
      {TableWith("sigma", {std::nan(""), 0}),
       "step 0: expected a number that is finite as float32 for sigma, got nan"},
      {TableWith("time", {infinity, 0}),
       "step 0: expected a number that is finite as float32 for time, got inf"},
      {TableWith("z_z", {0, 1e39}),
       "step 1: expected a number that is finite as float32 for z_z, got 1e+39"},
      {TableWith("x0_m", {1e-45, 1}),
       "step 0: expected a quotient that is finite as float32 for "
       "z_m / x0_m, got "},
      {TableWith("c_x0", {1}), "tensor \"c_x0\": expected shape [2] as that of x0_z, got [1]"},
      {TableWith("z_c", {infinity, 0}),
       "step 0: expected a number that is finite as float32 for z_c, got inf"},
      {TableWith("c_m", {0, -1e39}),
       "step 1: expected a number that is finite as float32 for c_m, got -1e+39"},
      {TableWith("clip_range", {0}),
       "tensor \"clip_range\": expected a number above 0 and finite as float32, got 0"},
      {TableWith("clip_range", {infinity}), "finite as float32, got inf"},
      {TableWith("clip_range", {1, 2}), "tensor \"clip_range\": expected shape [] or [1], got [2]"},
      {TableWith("initial_scale", {-1}), "tensor \"initial_scale\": expected a number above 0"},
      {TableWith("initial_scale", {1e-60}), "tensor \"initial_scale\": expected a number above 0"},
  };
  for (const auto& [columns, expected] : cases)
    ExpectError(ParseStepTable(TableBytes(columns)), StatusCode::kInvalidArgument, expected);
  for (const auto& [name, values] : TwoSteps()) {
    Columns columns = TwoSteps();
    columns.erase(name);
    ExpectError(ParseStepTable(TableBytes(columns)), StatusCode::kInvalidArgument,
                StrCat("tensor \"", name, "\" of shape [L] is missing"));
  }
  ExpectError(ParseStepTable("short"), StatusCode::kInvalidArgument, "expected at least 8 bytes");
  ExpectError(ParseStepTable(
                  SafetensorsBytes(R"({"time":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},)"
                                   R"("sigma":{"dtype":"F64","shape":[1],"data_offsets":[8,16]},)"
                                   R"("x0_z":{"dtype":"F64","shape":[1],"data_offsets":[16,24]},)"
                                   R"("x0_m":{"dtype":"F64","shape":[1],"data_offsets":[24,32]},)"
                                   R"("z_z":{"dtype":"F64","shape":[1],"data_offsets":[32,40]},)"
                                   R"("z_m":{"dtype":"F64","shape":[1],"data_offsets":[40,48]},)"
                                   R"("z_x0":{"dtype":"F64","shape":[1],"data_offsets":[48,56]}})",
                                   std::string(56, '\0'))),
              StatusCode::kInvalidArgument, "tensor \"time\": expected dtype F64 or F32, got I64");
}

// The columns of a scheduler's own table.
Columns ColumnsOf(const ReverseProcess& process) {
  Columns columns = {{"initial_scale", {process.initial_scale}}};
  if (std::isfinite(process.clip_range)) columns["clip_range"] = {process.clip_range};
  for (const ReverseStep& step : process.steps) {
    columns["x0_z"].push_back(step.x0_z);
    columns["x0_m"].push_back(step.x0_m);
    columns["z_z"].push_back(step.z_z);
    columns["z_m"].push_back(step.z_m);
    columns["z_x0"].push_back(step.z_x0);
    columns["sigma"].push_back(step.sigma);
    columns["time"].push_back(step.timestep);
  }
  return columns;
}

ModelConfig OneLength() {
  ModelConfig config = Config();
  config.num_inference_steps = {9};
  return config;
}

// A model with the table of this scheduler, from the scheduler or from a file.
Model ModelOf(const SchedulerConfig& scheduler, bool by_table) {
  Model model;
  model.config = OneLength();
  model.scheduler = scheduler;
  if (by_table) {
    const auto process = BuildReverseProcess(scheduler, {.num_inference_steps = 9}).value();
    model.diffusion.step_table = ParseStepTable(TableBytes(ColumnsOf(process))).value();
  }
  EXPECT_TRUE(LoadInto(DiffusionTensors(model.config), {}, model).ok());
  return model;
}

TEST(StepTableTest, MakesTheSystemOfTheSchedulerThatItWasMadeFrom) {
  for (const std::string_view text :
       {R"({"_class_name":"DDPMScheduler"})", R"({"_class_name":"EulerDiscreteScheduler"})",
        R"({"_class_name":"EDMEulerScheduler"})"}) {
    const SchedulerConfig scheduler = *ParseSchedulerConfig(text);
    const Model want = ModelOf(scheduler, false), got = ModelOf(scheduler, true);
    const auto& expected = std::get<DiffusionSpec>(want.systems[0]);
    const auto& spec = std::get<DiffusionSpec>(got.systems[0]);
    EXPECT_TRUE(std::ranges::equal(spec.steps, expected.steps)) << text;
    EXPECT_TRUE(std::ranges::equal(spec.time_embedding, expected.time_embedding)) << text;
    EXPECT_EQ(spec.clip_range, expected.clip_range);
    EXPECT_EQ(spec.initial_scale, expected.initial_scale);
    EXPECT_EQ(got.max_num_steps, 9);
    ExpectError(SystemOf(got, 8, {}), StatusCode::kInvalidArgument,
                "num_inference_steps: expected 9, the rows of step_table.safetensors, got 8");
    const auto again = SystemOf(got, 9, {});
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_TRUE(std::ranges::equal(std::get<DiffusionSpec>(again->spec).steps, expected.steps));
  }
}

TEST(StepTableTest, RefusesAConfigThatContradictsIt) {
  const StepTables table = ParseStepTable(TableBytes(TwoSteps())).value();
  ModelConfig config = OneLength();
  ExpectError(CheckStepTable(table, config), StatusCode::kInvalidArgument,
              "num_inference_steps: expected 2, the rows of the table, and nothing else");
  config.num_inference_steps = {2};
  EXPECT_TRUE(CheckStepTable(table, config).ok());
  config.eta = 0.5;
  ExpectError(CheckStepTable(table, config), StatusCode::kInvalidArgument,
              "eta: expected no such key, as the table says all of the steps");
  config.eta = 0;
  config.mu = 1;
  ExpectError(CheckStepTable(table, config), StatusCode::kInvalidArgument, "mu: ");
  config.mu.reset();
  config.use_clipped_model_output = true;
  ExpectError(CheckStepTable(table, config), StatusCode::kInvalidArgument,
              "use_clipped_model_output: ");
  config.use_clipped_model_output = false;
  config.diffusers_compatible = true;
  ExpectError(CheckStepTable(table, config), StatusCode::kInvalidArgument,
              "diffusers_compatible: ");
}

}  // namespace
}  // namespace deeppcr::testing
