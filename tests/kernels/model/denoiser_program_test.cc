// SPDX-License-Identifier: Apache-2.0
#include "kernels/model/denoiser_program.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "kernels/model/model.h"
#include "tests/testing/expect_error.h"
#include "tests/testing/onnx_model.h"
#include "tests/testing/safetensors_writer.h"

namespace deeppcr {
namespace {

using testing::OnnxModel;

// m = z * float(t) of a time of this type.
OnnxModel TimesTime(int32_t type) {
  OnnxModel denoiser;
  denoiser.Input("z", {1, 2})
      .Input("t", {1}, type)
      .Node("Cast", {"t"}, {"as_float"})
      .Int("to", onnx::TensorProto::FLOAT)
      .Node("Mul", {"z", "as_float"}, {"m"})
      .Output("m");
  return denoiser;
}

class DenoiserTimeTest : public ::testing::Test {
 protected:
  absl::StatusOr<Model> Load(const OnnxModel& denoiser, const std::string& scheduler) {
    const std::string config =
        R"({"model_type": "diffusion", "denoiser": "onnx", "output_dim": 2, "state_dim": 2,)"
        R"("num_inference_steps": 3})";
    EXPECT_TRUE(testing::WriteModel(directory_.path(), config, {}).ok());
    std::ofstream(directory_.File("denoiser.onnx"), std::ios::binary) << denoiser.Bytes();
    std::ofstream(directory_.File("scheduler_config.json")) << scheduler;
    return ReadModel(directory_.path(), {});
  }

  testing::TemporaryDirectory directory_;
};

// linspace over 10 timesteps: 9, 4.5, 0.
constexpr char kBetween[] =
    R"({"_class_name": "EulerDiscreteScheduler", "num_train_timesteps": 10})";

TEST_F(DenoiserTimeTest, TakesTimesBetweenTimesteps) {
  const auto model = Load(TimesTime(onnx::TensorProto::FLOAT), kBetween);
  ASSERT_TRUE(model.ok()) << model.status();
  const auto& spec = std::get<DiffusionProgramSpec>(model->systems.at(0));
  EXPECT_EQ(spec.steps[1].timestep, 4.5);
  const program::StepInputs inputs = {
      .time = spec.steps[1].timestep, .reverse = &spec.steps[1], .clip_range = spec.clip_range};
  EXPECT_EQ(testing::Predict(*spec.program, inputs, {1, 2}), (std::vector<double>{4.5, 9}));
}

TEST_F(DenoiserTimeTest, RefusesTimesBetweenTimestepsWhereTheInputIsAnInteger) {
  const OnnxModel denoiser = TimesTime(onnx::TensorProto::INT64);
  testing::ExpectError(
      Load(denoiser, kBetween), absl::StatusCode::kInvalidArgument,
      "denoiser.onnx: expected integer times, as the time input is an integer, got 4.5 at step 1; "
      "export the network with a floating-point time");
  const auto model = Load(denoiser, R"({"_class_name": "DDPMScheduler"})");
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_TRUE(model->diffusion.integer_time);
}

}  // namespace
}  // namespace deeppcr
