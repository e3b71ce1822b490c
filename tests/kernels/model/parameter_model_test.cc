// SPDX-License-Identifier: Apache-2.0
#include "kernels/model/parameter_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include "kernels/model/model.h"
#include "tests/testing/onnx_model.h"
#include "tests/testing/safetensors_writer.h"

namespace deeppcr {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::OnnxModel;

class ParameterModelTest : public ::testing::Test {
 protected:
  // m = z `w` + `w.b`, with initialisers that are no parameters beside them.
  static OnnxModel Denoiser(const std::string& weight) {
    OnnxModel denoiser;
    denoiser.Input("z", {1, 2}).Input("t", {1}).Output("m");
    denoiser.Floats(weight, {2, 2}, {1, 2, 3, 4}).Floats(weight + ".b", {2}, {5, 6});
    denoiser.Floats("scale", {}, {0.5F}).Floats("two words", {2}, {1, 1});
    denoiser.Floats("mask", {2}, {-INFINITY, 0}).Floats("unused", {2}, {1, 1});
    denoiser.Ints("shape", {2}, {1, 2});
    denoiser.Node("MatMul", {"z", weight}, {"product"});
    denoiser.Node("Add", {"product", weight + ".b"}, {"sum"});
    denoiser.Node("Mul", {"sum", "scale"}, {"scaled"});
    denoiser.Node("Max", {"scaled", "mask"}, {"masked"});
    denoiser.Node("Reshape", {"masked", "shape"}, {"shaped"});
    denoiser.Node("Mul", {"shaped", "two words"}, {"m"});
    return denoiser;
  }
  Model Load(const OnnxModel& denoiser, const std::string& keys = "",
             const std::vector<testing::NamedTensor>& tensors = {}, bool parameters = true) {
    const std::string config =
        R"({"model_type": "diffusion", "denoiser": "onnx", "output_dim": 2, "state_dim": 2,)"
        R"("num_inference_steps": 3)" +
        keys + "}";
    EXPECT_TRUE(testing::WriteModel(directory_.path(), config, tensors).ok());
    std::ofstream(directory_.File("denoiser.onnx"), std::ios::binary) << denoiser.Bytes();
    std::ofstream(directory_.File("scheduler_config.json"))
        << R"({"_class_name": "DDPMScheduler", "num_train_timesteps": 10})";
    return ReadModel(directory_.path(), {.parameters = parameters}).value();
  }

  testing::TemporaryDirectory directory_;
};

TEST_F(ParameterModelTest, TakesFiniteFloatsWithAxesThatTheOutputReads) {
  const Model model = Load(Denoiser("net.w"));
  ASSERT_NE(model.parameters, nullptr) << model.no_parameters;
  ASSERT_EQ(model.parameters->tensors.size(), 2U);
  EXPECT_EQ(model.parameters->tensors[0].name, "net.w");
  EXPECT_THAT(model.parameters->tensors[0].shape, ElementsAre(2, 2));
  EXPECT_EQ(model.parameters->tensors[1].name, "net.w.b");
  EXPECT_THAT(model.parameters->tensors[1].shape, ElementsAre(2));
  EXPECT_FALSE(model.parameters->decode.has_value());
  EXPECT_EQ(MemoryBytes(*model.parameters) % 4, 0);
}

TEST_F(ParameterModelTest, HasThemOnlyWhereTheyAreAskedFor) {
  const Model model = Load(Denoiser("net.w"), "", {}, /*parameters=*/false);
  EXPECT_EQ(model.parameters, nullptr);
  EXPECT_EQ(model.no_parameters, "");
}

TEST_F(ParameterModelTest, HasTheDecodersBesideThem) {
  const std::vector<testing::NamedTensor> decoder = {{"decoder.0.weight", {2, 2}, {1, 2, 3, 4}},
                                                     {"decoder.0.bias", {2}, {5, 6}}};
  const Model model = Load(Denoiser("net.w"), "", decoder);
  ASSERT_NE(model.parameters, nullptr) << model.no_parameters;
  ASSERT_TRUE(model.parameters->decode.has_value());
  std::vector<std::string> names;
  for (const ParameterTensor& tensor : model.parameters->tensors) names.push_back(tensor.name);
  EXPECT_THAT(names, ElementsAre("net.w", "net.w.b", "decoder.0.weight", "decoder.0.bias"));
}

// The model is served all the same.
TEST_F(ParameterModelTest, SaysWhyThereAreNone) {
  const std::vector<testing::NamedTensor> decoder = {{"decoder.0.weight", {2, 2}, {1, 2, 3, 4}},
                                                     {"decoder.0.bias", {2}, {5, 6}}};
  const Model model = Load(Denoiser("decoder.0.weight"), "", decoder);
  EXPECT_EQ(model.parameters, nullptr);
  EXPECT_THAT(model.no_parameters, HasSubstr("two tensors are called \"decoder.0.weight\""));
  EXPECT_EQ(model.systems.size(), 1U);
}

}  // namespace
}  // namespace deeppcr
