// SPDX-License-Identifier: Apache-2.0
#include "server/check.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

namespace deeppcr {
namespace {

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
  static Said Check(const std::string& folder, bool verbose = false) {
    ServerConfig config;
    config.check = folder;
    config.verbose = verbose;
    std::FILE* out = std::tmpfile();
    Said said = {CheckModels(config, out), ""};
    std::rewind(out);
    for (int c = std::fgetc(out); c != EOF; c = std::fgetc(out)) said.text += static_cast<char>(c);
    std::fclose(out);
    return said;
  }
  Said CheckHere(bool verbose = false) const { return Check(folder_.string(), verbose); }

  std::filesystem::path folder_;
};

constexpr char kExports[] = DEEPPCR_SOURCE_DIR "/tests/data/program/";
constexpr char kScheduler[] =
    R"({"_class_name": "DDPMScheduler", "num_train_timesteps": 50, "clip_sample": false})";

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
  Write("scheduler_config.json", R"({"_class_name": "EulerDiscreteScheduler"})");
  // One tensor of the denoiser in a wrong shape, and one of no meaning; the others are missing.
  const std::string header =
      R"({"input_proj.weight":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
      R"("net.a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})";
  std::string bytes(8, 0);
  bytes[0] = static_cast<char>(header.size());
  Write("model.safetensors", bytes + header + std::string(8, 0));
  const Said said = CheckHere();
  EXPECT_FALSE(said.good);
  for (const char* part :
       {"problems", "EulerDiscreteScheduler", "input_proj.weight\": expected shape",
        "\"net.a\" of shape [1] is unexpected", "is missing"})
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
  const Said said = CheckHere(true);
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

TEST_F(CheckTest, AFolderWithoutModelsIsNotGood) {
  std::filesystem::create_directories(folder_);
  EXPECT_FALSE(CheckHere().good);
  EXPECT_FALSE(Check((folder_ / "nowhere").string()).good);
}

}  // namespace
}  // namespace deeppcr
