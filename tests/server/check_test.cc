// SPDX-License-Identifier: Apache-2.0
#include "server/check.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/testing/onnx_model.h"

namespace deeppcr {
namespace {

constexpr char kExports[] = DEEPPCR_SOURCE_DIR "/tests/data/program/";
constexpr char kScheduler[] =
    R"({"_class_name": "DDPMScheduler", "num_train_timesteps": 50, "clip_sample": false})";

ServerConfig Verbose() {
  ServerConfig config;
  config.verbose = true;
  return config;
}

class CheckTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(::testing::TempDir()) /
              ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void Write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name) << text;
  }
  struct Said {
    bool good;
    std::string text;
  };
  void WriteModel(const testing::OnnxModel& model) const {
    Write("config.json", R"({"model_type": "diffusion", "denoiser": "onnx", "state_dim": 2,
      "output_dim": 2, "num_inference_steps": 50})");
    Write("scheduler_config.json", kScheduler);
    Write("denoiser.onnx", model.Bytes());
  }
  static Said Check(const std::string& folder, ServerConfig config = {}) {
    config.check = folder;
    std::FILE* out = std::tmpfile();
    Said said = {CheckModels(config, out), ""};
    std::rewind(out);
    for (int c = std::fgetc(out); c != EOF; c = std::fgetc(out)) said.text += static_cast<char>(c);
    std::fclose(out);
    return said;
  }
  Said CheckHere(const ServerConfig& config = {}) const { return Check(folder_.string(), config); }

  std::filesystem::path folder_;
};

// Without --verbose, and beside "ok".
TEST_F(CheckTest, SaysWhatMayNotBeMeant) {
  testing::OnnxModel block;
  block.Input("z", {1, 2}).Floats("gate", {}, {0.5F});
  block.Node("Tanh", {"z"}, {"h"}).Node("Mul", {"h", "gate"}, {"next"}).Output("next");
  Write("config.json", R"({"model_type": "stack", "input_dim": 2, "output_dim": 2, "state_dim": 2,
      "num_layers": 3})");
  Write("block.onnx", block.Bytes());
  Write("model.safetensors", std::string("\2\0\0\0\0\0\0\0{}", 10));
  const Said said = CheckHere();
  EXPECT_TRUE(said.good) << said.text;
  EXPECT_NE(said.text.find("  note: block.onnx: the same for all layers"), std::string::npos)
      << said.text;
  EXPECT_NE(said.text.find("\"gate\""), std::string::npos) << said.text;
}

// A stack is one system: no other number of steps would be smaller. Its scalars, one for each
// layer, become rows with padding.
TEST_F(CheckTest, GivesAdviceThatApplies) {
  testing::OnnxModel block;
  block.Input("z", {1, 2}).Floats("gate", {}, {0.5F});
  block.Node("Tanh", {"z"}, {"h"}).Node("Mul", {"h", "gate"}, {"next"}).Output("next");
  Write("config.json", R"({"model_type": "stack", "input_dim": 2, "output_dim": 2, "state_dim": 2,
      "num_layers": 1024})");
  Write("block.onnx", block.Bytes());
  const std::string header = R"({"gate":{"dtype":"F32","shape":[1024],"data_offsets":[0,4096]}})";
  std::string file(8, '\0');
  file[0] = static_cast<char>(header.size());
  Write("model.safetensors", file + header + std::string(4096, '\0'));
  ServerConfig config;
  config.max_model_bytes = 8192;
  const Said said = CheckHere(config);
  EXPECT_FALSE(said.good) << said.text;
  EXPECT_NE(said.text.find("(raise max_model_bytes)"), std::string::npos) << said.text;
}

TEST_F(CheckTest, FindsNothingWrongWithTheDemoModels) {
  const Said said = Check(DEEPPCR_SOURCE_DIR "/deploy/models/repository");
  EXPECT_TRUE(said.good) << said.text;
  EXPECT_NE(said.text.find("digits-ddpm/1: ok"), std::string::npos);
  EXPECT_NE(said.text.find("digits-resnet/1: ok"), std::string::npos);
}

TEST_F(CheckTest, ListsAllProblemsOfAllFilesAtOnce) {
  Write("config.json", R"({"model_type": "diffusion", "denoiser": "residual_mlp", "state_dim": 2,
    "output_dim": 2, "activation": "silu", "hidden_dim": 8, "num_blocks": 1,
    "time_embedding_dim": 4, "num_inference_steps": 5})");
  Write("scheduler_config.json", R"({"_class_name": "PNDMScheduler"})");
  // One tensor of the denoiser in a wrong shape, and one of no meaning; the others are missing.
  const std::string header =
      R"({"input_proj.weight":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
      R"("net.a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})";
  std::string bytes(8, 0);
  bytes[0] = static_cast<char>(header.size());
  Write("model.safetensors", bytes + header + std::string(8, 0));
  const Said said = CheckHere();
  EXPECT_FALSE(said.good);
  for (const char* part : {"problems", "PNDMScheduler", "input_proj.weight\": expected shape",
                           "\"net.a\" of shape [1] is unexpected", "is missing"})
    EXPECT_NE(said.text.find(part), std::string::npos) << part << "\n" << said.text;
}

// A prefix that is not the file's: its names are told beside those expected.
TEST_F(CheckTest, NamesTheTensorsThatAPrefixLeavesOut) {
  Write("config.json", R"({"model_type": "diffusion", "denoiser": "residual_mlp", "state_dim": 2,
    "output_dim": 2, "activation": "silu", "hidden_dim": 8, "num_blocks": 1,
    "time_embedding_dim": 4, "num_inference_steps": 5, "tensor_prefix": "net."})");
  Write("scheduler_config.json", kScheduler);
  const std::string header =
      R"({"diffloss.net.input_proj.weight":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
      R"("encoder.a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})";
  std::string bytes(8, 0);
  bytes[0] = static_cast<char>(header.size());
  Write("model.safetensors", bytes + header + std::string(8, 0));
  const Said said = CheckHere();
  EXPECT_FALSE(said.good);
  for (const char* part : {"tensor \"net.input_proj.weight\" of shape [8, 2] is missing; the file "
                           "has \"diffloss.net.input_proj.weight\"\n",
                           "tensor \"net.input_proj.bias\" of shape [8] is missing\n",
                           "names that do not begin with \"net.\": "
                           "\"diffloss.net.input_proj.weight\", \"encoder.a\""})
    EXPECT_NE(said.text.find(part), std::string::npos) << part << "\n" << said.text;
}

TEST_F(CheckTest, ListsAllWrongKeysOfAConfig) {
  Write("a/1/config.json", R"({"model_type": "mlp", "state_dim": 0, "num_layers": 0})");
  const Said said = CheckHere();
  EXPECT_FALSE(said.good);
  for (const char* part : {"state_dim: ", "num_layers: ", "input_dim: missing"})
    EXPECT_NE(said.text.find(part), std::string::npos) << part << "\n" << said.text;
}

TEST_F(CheckTest, PrintsTheProgramOfADenoiser) {
  Write("config.json", R"({"model_type": "diffusion", "denoiser": "onnx", "state_dim": 2,
    "output_dim": 2, "num_inference_steps": 50})");
  Write("scheduler_config.json", kScheduler);
  std::filesystem::copy_file(std::string(kExports) + "tiny_identity.onnx",
                             folder_ / "denoiser.onnx");
  const Said said = CheckHere(Verbose());
  EXPECT_TRUE(said.good) << said.text;
  for (const char* part : {"input state", "gelu", "left in the step"})
    EXPECT_NE(said.text.find(part), std::string::npos) << part << "\n" << said.text;
  EXPECT_EQ(CheckHere().text.find("gelu"), std::string::npos);
}

TEST_F(CheckTest, SaysWhichGraphDoesNotFitTheConfig) {
  Write("config.json", R"({"model_type": "diffusion", "denoiser": "onnx", "state_dim": 3,
    "output_dim": 3, "num_inference_steps": 50})");
  Write("scheduler_config.json", kScheduler);
  EXPECT_NE(CheckHere().text.find("denoiser.onnx"), std::string::npos) << "a file that is missing";
  std::filesystem::copy_file(std::string(kExports) + "tiny_identity.onnx",
                             folder_ / "denoiser.onnx");
  EXPECT_NE(CheckHere().text.find("the state has 2 elements; config.json: state_dim 3"),
            std::string::npos);
}

// What packing finds, which no reader of a file knows of.
TEST_F(CheckTest, ListsAllThatKeepsASystemFromBeingPacked) {
  testing::OnnxModel model;
  model.Input("x", {1, 2}).Input("t", {1}).Output("y").Floats("two", {1}, {2});
  model.Node("Floor", {"x"}, {"whole"}).Node("Mul", {"x", "two"}, {"twice"});
  model.Node("Floor", {"twice"}, {"halves"}).Node("Log", {"t"}, {"late"});
  model.Node("Mul", {"x", "late"}, {"grown"}).Node("Sum", {"whole", "halves", "grown"}, {"y"});
  WriteModel(model);
  const Said said = CheckHere();
  EXPECT_FALSE(said.good);
  for (const char* part :
       {"3 problems", "a floor of something that depends on the state (\"whole\")",
        "a floor of something that depends on the state (\"halves\")",
        "at timestep 0 the value \"late\" of the step program is not finite"})
    EXPECT_NE(said.text.find(part), std::string::npos) << part << "\n" << said.text;
}

TEST_F(CheckTest, SaysWhatIsTooLarge) {
  testing::OnnxModel model;
  model.Input("x", {1, 2}).Input("t", {1}).Output("y");
  model.Floats("ones", {2, 65536}, std::vector<float>(131072, 1)).Ints("last", {1}, {1});
  model.Node("Mul", {"t", "ones"}, {"times"}).Node("Transpose", {"x"}, {"column"});
  model.Node("Mul", {"column", "times"}, {"all"});
  model.Node("ReduceMean", {"all"}, {"mean"}).IntList("axes", {1});
  model.Node("Transpose", {"mean"}, {"y"});
  WriteModel(model);
  EXPECT_TRUE(CheckHere().good) << CheckHere().text;
  ServerConfig config;
  // Fifty steps of 2 x 65,536 floats; four copies of the largest file are allowed.
  config.max_model_bytes = 4 << 20;
  EXPECT_NE(CheckHere(config).text.find("packed, the model takes at least"), std::string::npos)
      << CheckHere(config).text;
  config = {};
  config.max_workspace_bytes = 1000;
  EXPECT_NE(CheckHere(config).text.find("raise max_workspace_bytes"), std::string::npos)
      << CheckHere(config).text;
}

TEST_F(CheckTest, IsQuickForModelsOfOrdinarySize) {
  const auto start = std::chrono::steady_clock::now();
  EXPECT_TRUE(Check(DEEPPCR_SOURCE_DIR "/deploy/models/repository").good);
  // Seven models in a tenth of a second, but the machine may be busy, or the build a slow one.
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

TEST_F(CheckTest, AFolderWithoutModelsIsNotGood) {
  std::filesystem::create_directories(folder_);
  EXPECT_FALSE(CheckHere().good);
  EXPECT_FALSE(Check((folder_ / "nowhere").string()).good);
}

}  // namespace
}  // namespace deeppcr
