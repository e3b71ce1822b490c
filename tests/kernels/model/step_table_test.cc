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

TEST(StepTableTest, RefusesWithTheReason) {
  const double infinity = std::numeric_limits<double>::infinity();
  const std::vector<std::pair<Columns, std::string>> cases = {
      {TableWith("x1", {1, 2}),
       "unknown tensor \"x1\"; the tensors are x0_z, x0_m, z_z, z_m, z_x0, "
       "sigma, time, clip_range, initial_scale"},
      {TableWith("z_m", {1, 2, 3}), "tensor \"z_m\": expected shape [2] as that of x0_z, got [3]"},
      {TableWith("x0_z", {}), "tensor \"x0_z\": expected shape [1 .. 65536], got [0]"},
      {TableWith("sigma", {0.1, -0.1}),
       "step 1: expected a number of at least 0 for sigma, got -0.1"},
      {TableWith("sigma", {std::nan(""), 0}),
       "step 0: expected a number that is finite as float32 for sigma, got nan"},
      {TableWith("time", {infinity, 0}),
       "step 0: expected a number that is finite as float32 for time, got inf"},
      {TableWith("z_z", {0, 1e39}),
       "step 1: expected a number that is finite as float32 for z_z, got 1e+39"},
      {TableWith("x0_m", {1e-45, 1}),
       "step 0: expected a quotient that is finite as float32 for "
       "z_m / x0_m, got "},
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
