// SPDX-License-Identifier: Apache-2.0
#include "kernels/model/model.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "kernels/base/file.h"
#include "kernels/base/memory_budget.h"
#include "kernels/base/sha256.h"
#include "kernels/base/strings.h"
#include "tests/testing/diffusion_tensors.h"
#include "tests/testing/expect_error.h"
#include "tests/testing/safetensors_writer.h"

namespace deeppcr::testing {
namespace {

using absl::StatusCode;

constexpr char kConfig[] =
    R"({"model_type":"mlp","input_dim":2,"output_dim":2,"state_dim":2,"num_layers":3,"activation":"relu"})";

class ReadModelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(WriteModel(directory_.path(), kConfig,
                           {{"layers.weight", {3, 2, 2}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}}})
                    .ok());
  }

  std::string File(std::string_view name) const { return directory_.File(name); }
  absl::StatusOr<Model> Read(const ModelLimits& limits = {}) const {
    return ReadModel(directory_.path(), limits);
  }
  void WriteCalibration(const std::vector<NamedTensor>& tensors) const {
    ASSERT_TRUE(WriteSafetensors(File("calibration.safetensors"), tensors).ok());
  }

  TemporaryDirectory directory_;
};

TEST_F(ReadModelTest, ReadsAModel) {
  const Model model = Read().value();

  EXPECT_EQ(model.config_json, kConfig);
  EXPECT_EQ(model.config.num_layers, 3);
  EXPECT_EQ(model.weights_sha256, *Sha256Hex(*ReadFile(File("model.safetensors"), 1 << 20)));
  ASSERT_EQ(model.systems.size(), 1U);
  const auto& spec = std::get<DenseStackSpec>(model.systems[0]);
  EXPECT_EQ(spec.weights.size(), 12U);
  EXPECT_EQ(spec.weights[11], 12.0F);
  EXPECT_EQ(spec.weights.data(), model.weights.data());
  EXPECT_FALSE(spec.residual);
  EXPECT_TRUE(model.scheduler_file.empty());
  EXPECT_EQ(model.num_calibration, 0);
  EXPECT_TRUE(model.calibration_inputs.empty());
}

TEST_F(ReadModelTest, ReadsCalibrationInputs) {
  WriteCalibration({{"inputs", {3, 2}, {1, 2, 3, 4, 5, 6}}});

  const Model model = Read().value();

  EXPECT_EQ(model.num_calibration, 3);
  EXPECT_EQ(model.calibration_inputs, (std::vector<float>{1, 2, 3, 4, 5, 6}));
}

// Twelve weights and six inputs as they are kept, and one file at a time.
TEST_F(ReadModelTest, CountsInWhatItReadsBeforeItIsThere) {
  WriteCalibration({{"inputs", {3, 2}, {1, 2, 3, 4, 5, 6}}});
  const auto file = static_cast<int64_t>(std::filesystem::file_size(File("model.safetensors")));
  const auto inputs =
      static_cast<int64_t>(std::filesystem::file_size(File("calibration.safetensors")));
  const int64_t most = std::max(file + 12 * 4, 12 * 4 + inputs + 6 * 4);
  const auto enough = std::make_shared<MemoryBudget>(most);
  MemoryShare share(enough);
  const Model model = Read({.memory = &share}).value();
  EXPECT_EQ(share.bytes(), 18 * 4);
  EXPECT_EQ(enough->used(), 18 * 4) << "the files are gone";
  EXPECT_EQ(share.bytes(), MemoryBytes(model));
  for (const int64_t limit : {file - 1, file + 12 * 4 - 1, most - 1}) {
    const auto budget = std::make_shared<MemoryBudget>(limit);
    MemoryShare other(budget);
    ExpectError(Read({.memory = &other}), StatusCode::kResourceExhausted,
                "the memory of this process leaves");
  }
}

TEST_F(ReadModelTest, RefusesOtherCalibrationTensors) {
  WriteCalibration({});
  ExpectError(Read(), StatusCode::kInvalidArgument,
              "calibration.safetensors: expected one tensor \"inputs\", got 0 tensors");
  WriteCalibration({{"input", {1, 2}, {1, 2}}});
  ExpectError(Read(), StatusCode::kInvalidArgument, "expected one tensor \"inputs\"");
  WriteCalibration({{"inputs", {1, 2}, {1, 2}}, {"more", {0}, {}}});
  ExpectError(Read(), StatusCode::kInvalidArgument, "got 2 tensors");
}

TEST_F(ReadModelTest, RefusesCalibrationInputsOfAnotherShape) {
  const std::string expected =
      "calibration.safetensors: tensor \"inputs\": expected shape [1 .. 4096, 2], got ";
  WriteCalibration({{"inputs", {1, 3}, {1, 2, 3}}});
  ExpectError(Read(), StatusCode::kInvalidArgument, expected + "[1, 3]");
  WriteCalibration({{"inputs", {2}, {1, 2}}});
  ExpectError(Read(), StatusCode::kInvalidArgument, expected + "[2]");
  WriteCalibration({{"inputs", {0, 2}, {}}});
  ExpectError(Read(), StatusCode::kInvalidArgument, expected + "[0, 2]");
  WriteCalibration({{"inputs", {4097, 2}, std::vector<float>(4097 * 2)}});
  ExpectError(Read(), StatusCode::kInvalidArgument, expected + "[4097, 2]");
}

TEST_F(ReadModelTest, RefusesCalibrationInputsThatAreNotFinite) {
  WriteCalibration({{"inputs", {1, 2}, {1, std::numeric_limits<float>::infinity()}}});

  ExpectError(Read(), StatusCode::kInvalidArgument,
              "calibration.safetensors: tensor \"inputs\": element [0, 1] is infinite");
}

TEST_F(ReadModelTest, RefusesALinkAsCalibrationRatherThanIgnoringIt) {
  ASSERT_EQ(::symlink("/nonexistent", File("calibration.safetensors").c_str()), 0);

  ExpectError(Read(), StatusCode::kInvalidArgument, "calibration.safetensors is a symbolic link");
}

TEST_F(ReadModelTest, NamesMissingFiles) {
  std::filesystem::remove(File("model.safetensors"));
  ExpectError(Read(), StatusCode::kNotFound, "/model.safetensors");
  std::filesystem::remove(File("config.json"));
  ExpectError(Read(), StatusCode::kNotFound, "/config.json");
  ExpectError(ReadModel(File("none"), {}), StatusCode::kNotFound, "/none/config.json");
}

TEST_F(ReadModelTest, RefusesLinksToFilesElsewhere) {
  std::filesystem::rename(File("model.safetensors"), File("elsewhere"));
  ASSERT_EQ(::symlink(File("elsewhere").c_str(), File("model.safetensors").c_str()), 0);

  ExpectError(Read(), StatusCode::kInvalidArgument, "/model.safetensors is a symbolic link");
}

TEST_F(ReadModelTest, HoldsToTheLimits) {
  const auto config_bytes = static_cast<int64_t>(sizeof(kConfig)) - 1;
  const auto weights_bytes =
      static_cast<int64_t>(std::filesystem::file_size(File("model.safetensors")));
  EXPECT_TRUE(Read({.max_weights_bytes = weights_bytes, .max_config_bytes = config_bytes}).ok());
  ExpectError(Read({.max_config_bytes = config_bytes - 1}), StatusCode::kResourceExhausted,
              "/config.json has");
  ExpectError(Read({.max_weights_bytes = weights_bytes - 1}), StatusCode::kResourceExhausted,
              "/model.safetensors has");
}

TEST_F(ReadModelTest, NamesTheFileOfAnError) {
  ASSERT_TRUE(WriteFileAtomically(File("model.safetensors"), "short").ok());
  ExpectError(Read(), StatusCode::kInvalidArgument, "model.safetensors: expected at least 8 bytes");
  ASSERT_TRUE(WriteFileAtomically(File("config.json"), "{").ok());
  ExpectError(Read(), StatusCode::kInvalidArgument, "config.json: not JSON");
}

TEST_F(ReadModelTest, NamesTheTensorOfAnError) {
  ASSERT_TRUE(WriteSafetensors(File("model.safetensors"), {}).ok());

  ExpectError(Read(), StatusCode::kInvalidArgument,
              "model.safetensors: tensor \"layers.weight\" of shape [3, 2, 2] or");
}

TEST_F(ReadModelTest, RefusesASchedulerOfAnotherFamily) {
  const std::string expected = "scheduler_config.json: only for model_type diffusion, this is mlp";
  ASSERT_TRUE(WriteFileAtomically(File("scheduler_config.json"), "{}").ok());
  ExpectError(Read(), StatusCode::kInvalidArgument, expected);
  std::filesystem::remove(File("scheduler_config.json"));
  ASSERT_EQ(::symlink("/nonexistent", File("scheduler_config.json").c_str()), 0);
  ExpectError(Read(), StatusCode::kInvalidArgument, expected);
  std::filesystem::remove(File("scheduler_config.json"));
  ASSERT_TRUE(WriteFileAtomically(File("step_table.safetensors"), "{}").ok());
  ExpectError(Read(), StatusCode::kInvalidArgument,
              "step_table.safetensors: only for model_type diffusion, this is mlp");
}

// A residual MLP with D = output_dim = 2, without condition and decoder.
class ReadDiffusionModelTest : public ReadModelTest {
 protected:
  void SetUp() override {
    WriteConfig("[4,2]");
    WriteScheduler(kScheduler);
    ModelConfig config = ParseConfig(Config("4")).value();
    ASSERT_TRUE(WriteSafetensors(File("model.safetensors"), DiffusionTensors(config)).ok());
  }

  static std::string Config(std::string_view steps, std::string_view more = "") {
    return StrCat(R"({"model_type":"diffusion","output_dim":2,"state_dim":2,"activation":"silu",)",
                  R"("denoiser":"residual_mlp","hidden_dim":3,"num_blocks":2,)",
                  R"("time_embedding_dim":4,"num_inference_steps":)", steps, more, "}");
  }
  void WriteConfig(std::string_view steps, std::string_view more = "") const {
    ASSERT_TRUE(WriteFileAtomically(File("config.json"), Config(steps, more)).ok());
  }
  void WriteScheduler(std::string_view json) const {
    ASSERT_TRUE(WriteFileAtomically(File("scheduler_config.json"), json).ok());
  }
  void ExpectRefused(const std::string& message_part) const {
    ExpectError(Read(), StatusCode::kInvalidArgument, message_part);
  }

  static constexpr std::string_view kScheduler =
      R"({"_class_name":"DDIMScheduler","num_train_timesteps":8,"clip_sample_range":3})";
};

TEST_F(ReadDiffusionModelTest, ReadsAModel) {
  const Model model = Read().value();

  EXPECT_EQ(model.scheduler_file, kScheduler);
  EXPECT_EQ(model.scheduler.num_train_timesteps, 8);
  EXPECT_EQ(model.config.input_dim, 0);
  ASSERT_EQ(model.systems.size(), 2U);
  EXPECT_EQ(ShapeOf(model.systems[0]).num_steps, 4);
  EXPECT_EQ(ShapeOf(model.systems[1]).num_steps, 2);
  const auto& spec = std::get<DiffusionSpec>(model.systems[0]);
  EXPECT_EQ(spec.clip_range, 3.0);
  EXPECT_EQ(spec.steps.data(), model.diffusion.tables[0].steps.data());
  EXPECT_EQ(model.weights_sha256, *Sha256Hex(*ReadFile(File("model.safetensors"), 1 << 20)));
}

TEST_F(ReadDiffusionModelTest, NeedsAScheduler) {
  std::filesystem::remove(File("scheduler_config.json"));

  ExpectError(Read(), StatusCode::kNotFound, "/scheduler_config.json");
}

TEST_F(ReadDiffusionModelTest, ReadsAStepTableInPlaceOfAScheduler) {
  std::vector<NamedTensor> columns;
  for (const char* name : {"x0_z", "x0_m", "z_z", "z_m", "z_x0", "sigma", "time"})
    columns.push_back({name, {3}, {0.5F, 0.25F, 0.125F}});
  ASSERT_TRUE(WriteSafetensors(File("step_table.safetensors"), columns).ok());
  ExpectRefused("scheduler_config.json: expected no such file beside step_table.safetensors");
  std::filesystem::remove(File("scheduler_config.json"));
  ExpectRefused(
      "step_table.safetensors with config.json: num_inference_steps: expected 3, the rows");
  WriteConfig("3");

  const Model model = Read().value();

  EXPECT_EQ(model.scheduler_file, *ReadFile(File("step_table.safetensors"), 1 << 20));
  const auto& spec = std::get<DiffusionSpec>(model.systems.at(0));
  ASSERT_EQ(spec.num_steps(), 3);
  EXPECT_EQ(spec.steps[1].timestep, 0.25);
  EXPECT_EQ(spec.steps[2].sigma, 0.125);
  columns[5].values[1] = 1e39;
  ASSERT_TRUE(WriteSafetensors(File("step_table.safetensors"), columns).ok());
  ExpectRefused("step_table.safetensors: step 1: expected a number that is finite as float32 for");
}

TEST_F(ReadDiffusionModelTest, HoldsTheSchedulerToTheLimitOfAConfig) {
  WriteScheduler(StrCat(kScheduler, std::string(2048, ' ')));
  EXPECT_TRUE(Read({.max_config_bytes = 4096}).ok());
  ExpectError(Read({.max_config_bytes = 2048}), StatusCode::kResourceExhausted,
              "/scheduler_config.json has");
}

TEST_F(ReadDiffusionModelTest, RefusesALinkToASchedulerElsewhere) {
  std::filesystem::rename(File("scheduler_config.json"), File("elsewhere"));
  ASSERT_EQ(::symlink(File("elsewhere").c_str(), File("scheduler_config.json").c_str()), 0);

  ExpectRefused("/scheduler_config.json is a symbolic link");
}

TEST_F(ReadDiffusionModelTest, NamesFileAndKeyOfASchedulerError) {
  WriteScheduler("{");
  ExpectRefused("scheduler_config.json: not JSON");
  WriteScheduler(R"({"_class_name":"PNDMScheduler"})");
  ExpectRefused("scheduler_config.json: _class_name: expected one of DDPMScheduler");
  WriteScheduler(R"({"_class_name":"DDIMScheduler","thresholding":true})");
  ExpectRefused("scheduler_config.json: thresholding: expected false");
}

TEST_F(ReadDiffusionModelTest, NamesFilesAndKeyWhereConfigAndSchedulerDisagree) {
  const std::string files = "scheduler_config.json with config.json: ";
  WriteConfig("[4,9]");
  ExpectRefused(files +
                "num_inference_steps: expected an integer in [1, num_train_timesteps = 8], got 9");
  WriteConfig("4", R"(,"eta":0.5)");
  EXPECT_TRUE(Read().ok());
  WriteScheduler(R"({"_class_name":"DDPMScheduler","num_train_timesteps":8})");
  ExpectRefused(files + "eta: expected 0 with DDPMScheduler");
  WriteConfig("8");
  WriteScheduler(R"({"_class_name":"DDIMScheduler","num_train_timesteps":8,"steps_offset":1})");
  ExpectRefused(files + "steps_offset: expected timesteps below");
  WriteScheduler(R"({"_class_name":"DDIMScheduler","num_train_timesteps":8,)"
                 R"("rescale_betas_zero_snr":true,"timestep_spacing":"trailing"})");
  ExpectRefused(files + "prediction_type: expected sample or v_prediction");
}

// Of both files, all that is wrong, also where one of them cannot be used at all.
TEST_F(ReadDiffusionModelTest, AllIsSaidAtOnce) {
  const std::vector<std::string> of_scheduler = {
      "scheduler_config.json: prediction_type: expected one of",
      "scheduler_config.json: unknown key \"beta_schedul\"",
      "scheduler_config.json: unknown key \"clip\""};
  WriteScheduler(R"({"_class_name":"DDIMScheduler","num_train_timesteps":8,)"
                 R"("prediction_type":"eps","beta_schedul":"linear","clip":1})");
  std::vector<std::string> expected = of_scheduler;
  const auto expect_said = [&] {
    const std::vector<std::string> said = CheckModelFiles(directory_.path(), {}).problems;
    ASSERT_EQ(said.size(), expected.size());
    for (size_t i = 0; i < said.size(); ++i)
      EXPECT_EQ(said[i].substr(0, expected[i].size()), expected[i]);
  };
  expect_said();
  WriteConfig("4", R"(,"num_inference_step":4,"state_dims":2,"max_batch_size":-1)");
  expected = {"config.json: unknown key \"num_inference_step\"",
              "config.json: unknown key \"state_dims\"", "config.json: max_batch_size: expected"};
  expected.insert(expected.end(), of_scheduler.begin(), of_scheduler.end());
  expect_said();
}

TEST_F(ReadDiffusionModelTest, NotesKeysOfOtherSchedulers) {
  std::vector<std::string> notes;
  EXPECT_TRUE(Read({.notes = &notes}).ok());
  EXPECT_TRUE(notes.empty());
  WriteScheduler(R"({"_class_name":"DDIMScheduler","num_train_timesteps":8,"skip_prk_steps":true,)"
                 R"("variance_type":"learned"})");

  EXPECT_TRUE(Read({.notes = &notes}).ok());

  const std::vector<std::string> expected = {
      "scheduler_config.json: skip_prk_steps has no effect, as DDIMScheduler has no such key",
      "scheduler_config.json: variance_type has no effect, as DDIMScheduler has no such key"};
  EXPECT_EQ(notes, expected);
  EXPECT_EQ(CheckModelFiles(directory_.path(), {}).notes, expected);
  WriteScheduler(R"({"_class_name":"DDIMScheduler","use_clipped_model_output":true})");
  ExpectRefused("scheduler_config.json: use_clipped_model_output: expected no such key here");
}

TEST_F(ReadDiffusionModelTest, TellsTheTableAndTheTensorsApart) {
  // [4 + 2 steps, 3] doubles.
  const auto bytes = static_cast<int64_t>(6 * 3 * sizeof(double));
  ExpectError(Read({.max_weights_bytes = bytes - 1}), StatusCode::kResourceExhausted,
              StrCat("num_inference_steps: the time embeddings of 6 steps take ", bytes, " bytes; ",
                     bytes - 1, " are allowed"));
  ExpectError(Read({.max_weights_bytes = bytes}), StatusCode::kResourceExhausted,
              "/model.safetensors has");
  ASSERT_TRUE(WriteSafetensors(File("model.safetensors"), {}).ok());
  ExpectRefused("model.safetensors: tensor \"input_proj.weight\" of shape [3, 2] is missing");
}

TEST_F(ReadDiffusionModelTest, TakesCalibrationInputsWithAConditionOnly) {
  WriteCalibration({{"inputs", {1, 2}, {1, 2}}});
  ExpectRefused("calibration.safetensors: expected no such file for a model without inputs");

  WriteConfig("4", R"(,"conditioning_dim":2)");
  ASSERT_TRUE(WriteSafetensors(File("model.safetensors"), DiffusionTensors(*ParseConfig(Config(
                                                              "4", R"(,"conditioning_dim":2)"))))
                  .ok());
  const Model model = Read().value();
  EXPECT_EQ(model.num_calibration, 1);
}

}  // namespace
}  // namespace deeppcr::testing
