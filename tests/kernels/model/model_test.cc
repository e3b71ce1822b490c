// SPDX-License-Identifier: Apache-2.0
#include "kernels/model/model.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "kernels/base/file.h"
#include "kernels/base/sha256.h"
#include "tests/testing/expect_error.h"
#include "tests/testing/safetensors_writer.h"

namespace deeppcr {
namespace {

using absl::StatusCode;
using testing::ExpectError;
using testing::NamedTensor;

constexpr char kConfig[] =
    R"({"model_type":"mlp","input_dim":2,"output_dim":2,"state_dim":2,"num_layers":3,"activation":"relu"})";

class ReadModelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(
        testing::WriteModel(directory_.path(), kConfig,
                            {{"layers.weight", {3, 2, 2}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}}})
            .ok());
  }

  std::string File(std::string_view name) const { return directory_.File(name); }
  absl::StatusOr<Model> Read(const ModelLimits& limits = {}) const {
    return ReadModel(directory_.path(), limits);
  }
  void WriteCalibration(const std::vector<NamedTensor>& tensors) const {
    ASSERT_TRUE(testing::WriteSafetensors(File("calibration.safetensors"), tensors).ok());
  }

  testing::TemporaryDirectory directory_;
};

TEST_F(ReadModelTest, ReadsAModel) {
  const absl::StatusOr<Model> model = Read();

  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->config_json, kConfig);
  EXPECT_EQ(model->config.num_layers, 3);
  EXPECT_EQ(model->weights_sha256, *Sha256Hex(*ReadFile(File("model.safetensors"), 1 << 20)));
  EXPECT_EQ(model->spec.weights.size(), 12U);
  EXPECT_EQ(model->spec.weights[11], 12.0F);
  EXPECT_EQ(model->spec.weights.data(), model->weights.data());
  EXPECT_FALSE(model->spec.residual);
  EXPECT_EQ(model->num_calibration, 0);
  EXPECT_TRUE(model->calibration_inputs.empty());
}

TEST_F(ReadModelTest, ReadsCalibrationInputs) {
  WriteCalibration({{"inputs", {3, 2}, {1, 2, 3, 4, 5, 6}}});

  const absl::StatusOr<Model> model = Read();

  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->num_calibration, 3);
  EXPECT_EQ(model->calibration_inputs, (std::vector<float>{1, 2, 3, 4, 5, 6}));
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
  ASSERT_TRUE(testing::WriteSafetensors(File("model.safetensors"), {}).ok());

  ExpectError(Read(), StatusCode::kInvalidArgument,
              "model.safetensors: tensor \"layers.weight\" of shape [3, 2, 2] or");
}

}  // namespace
}  // namespace deeppcr
