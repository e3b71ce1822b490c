// SPDX-License-Identifier: Apache-2.0
#include "kernels/training/publish.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <string>
#include <variant>
#include <vector>

#include "kernels/base/file.h"
#include "kernels/model/model.h"
#include "tests/testing/expect_error.h"
#include "tests/testing/safetensors_writer.h"
#include "tests/testing/training_run.h"

namespace deeppcr::training {
namespace {

using deeppcr::testing::ExpectError;
using deeppcr::testing::ProductData;
using deeppcr::testing::TemporaryDirectory;

constexpr char kConfig[] =
    R"({"model_type":"resnet","input_dim":3,"output_dim":2,"state_dim":5,"num_layers":6,)"
    R"("activation":"tanh","residual_scale":0.5})";

class PublishTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::string> PublishAs(const std::string& model, int64_t version,
                                        const std::string& config = kConfig) const {
    return Publish({folder_.path(), model, version}, config, layout_, parameters_, data_);
  }
  std::vector<std::string> Entries(const std::string& model) const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.File(model)))
      names.push_back(entry.path().filename().string());
    std::ranges::sort(names);
    return names;
  }

  const TemporaryDirectory folder_;
  const ParameterLayout layout_ = ParameterLayout::Of(ParseConfig(kConfig).value()).value();
  const std::vector<float> parameters_ = InitialParameters(layout_, {});
  const Dataset data_ = ProductData(700, true);
};

TEST_F(PublishTest, WhatIsReadIsWhatWasTrained) {
  const std::string place = PublishAs("m", 0).value();
  EXPECT_EQ(place, folder_.File("m/1"));
  const Model model = ReadModel(place, {}).value();
  EXPECT_EQ(model.config_json, kConfig);
  const auto& spec = std::get<DenseStackSpec>(model.systems.front());
  const DenseStackSpec trained = layout_.SpecOf(parameters_);
  EXPECT_TRUE(std::ranges::equal(spec.weights, trained.weights));
  EXPECT_TRUE(std::ranges::equal(spec.biases, trained.biases));
  EXPECT_TRUE(std::ranges::equal(spec.encode.weight, trained.encode.weight));
  EXPECT_TRUE(std::ranges::equal(spec.encode.bias, trained.encode.bias));
  EXPECT_TRUE(std::ranges::equal(spec.decode.weight, trained.decode.weight));
  EXPECT_TRUE(std::ranges::equal(spec.decode.bias, trained.decode.bias));
  EXPECT_EQ(model.num_calibration, 600);
  EXPECT_TRUE(std::ranges::equal(model.calibration_inputs, std::span(data_.inputs).first(600 * 3)));
  EXPECT_EQ(std::filesystem::status(place).permissions(), std::filesystem::perms(0755));
}

TEST_F(PublishTest, VersionsCountOnAndAreNeverReplaced) {
  EXPECT_TRUE(PublishAs("m", 7).value().ends_with("/7"));
  EXPECT_TRUE(PublishAs("m", 0).value().ends_with("/8"));
  const std::string before = ReadFile(folder_.File("m/7/model.safetensors"), 1 << 20).value();
  ExpectError(PublishAs("m", 7), absl::StatusCode::kAlreadyExists, "m/7 is there already");
  EXPECT_EQ(ReadFile(folder_.File("m/7/model.safetensors"), 1 << 20).value(), before);
  EXPECT_EQ(Entries("m"), (std::vector<std::string>{"7", "8"}));
}

TEST_F(PublishTest, NoVersionFollowsTheLargest) {
  const std::string largest = "9223372036854775807";
  EXPECT_TRUE(PublishAs("m", std::numeric_limits<int64_t>::max()).value().ends_with(largest));
  ExpectError(CheckDestination({.repository = folder_.path(), .model = "m"}),
              absl::StatusCode::kFailedPrecondition, "has the largest there is, " + largest);
  ExpectError(PublishAs("m", 0), absl::StatusCode::kFailedPrecondition, "m has the largest");
  EXPECT_EQ(Entries("m"), std::vector<std::string>{largest});
  EXPECT_TRUE(PublishAs("m", 3).ok());
}

TEST_F(PublishTest, AsManyInputsGoWithItAsAreAskedFor) {
  const auto published = [&](int64_t inputs) {
    const std::string place =
        Publish({folder_.path(), "m", 0, inputs}, kConfig, layout_, parameters_, data_).value();
    EXPECT_EQ(std::filesystem::exists(place + "/calibration.safetensors"), inputs > 0);
    return ReadModel(place, {})->num_calibration;
  };
  EXPECT_EQ(published(0), 0);
  EXPECT_EQ(published(10), 10);
  EXPECT_EQ(published(1000), 700);
}

TEST_F(PublishTest, LeavesNothingWhereTheVersionWouldNotLoad) {
  const std::string wider =
      R"({"model_type":"mlp","input_dim":3,"output_dim":2,"state_dim":6,"num_layers":6,)"
      R"("activation":"tanh"})";
  ExpectError(PublishAs("m", 0, wider), absl::StatusCode::kInternal, "input.weight");
  EXPECT_TRUE(Entries("m").empty());
}

TEST_F(PublishTest, RefusesNamesThatLeaveTheRepository) {
  for (const std::string& name :
       std::vector<std::string>{"", ".", "..", "a/b", "../m", "m\n", std::string(129, 'a')})
    ExpectError(PublishAs(name, 0), absl::StatusCode::kInvalidArgument, "model: expected");
  ExpectError(PublishAs("m", -1), absl::StatusCode::kInvalidArgument, "version: expected");
  ASSERT_TRUE(WriteFileAtomically(folder_.File("file"), "x").ok());
  EXPECT_FALSE(PublishAs("file", 0).ok());
}

}  // namespace
}  // namespace deeppcr::training
