// SPDX-License-Identifier: Apache-2.0
#include "server/codec/gradient_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "tests/server/codec/generation_codec_fixture.h"
#include "tests/testing/expect_error.h"

namespace deeppcr::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Three samples of a dense stack with inputs [2], outputs [3], states [4] and 8 layers.
v1::GradientRequest GoodGradient() {
  v1::GradientRequest request;
  request.set_model("m");
  SetTensor({3, 2}, request.mutable_inputs());
  SetTensor({3, 3}, request.mutable_cotangents());
  return request;
}
// The same of a diffusion model with 8 steps.
v1::GradientRequest GoodGeneration() {
  v1::GradientRequest request;
  request.set_model("m");
  request.mutable_generation()->set_num_samples(3);
  SetTensor({3, 3}, request.mutable_cotangents());
  return request;
}
v1::GradientRequest WithMse() {
  v1::GradientRequest request = GoodGradient();
  request.clear_cotangents();
  request.set_loss(v1::LOSS_MSE);
  SetTensor({3, 3}, request.mutable_targets());
  return request;
}
v1::GradientRequest WithCrossEntropy() {
  v1::GradientRequest request = GoodGradient();
  request.clear_cotangents();
  request.set_loss(v1::LOSS_CROSS_ENTROPY);
  for (const int32_t label : {0, 2, 1}) request.add_target_classes(label);
  return request;
}
v1::GradientRequest WithTrajectory() {
  v1::GradientRequest request = GoodGradient();
  SetTensor({3, 9, 4}, request.mutable_trajectory());
  return request;
}

struct Decoded {
  SolveInput solve;
  GradientInput gradient;
};

absl::StatusOr<Decoded> Decode(const v1::GradientRequest& request, const ModelInfo& info = Mlp(),
                               int64_t limit = kMessageLimit) {
  Decoded decoded;
  absl::StatusOr<GradientInput> gradient = DecodeGradient(request, info, limit, &decoded.solve);
  if (!gradient.ok()) return gradient.status();
  decoded.gradient = *std::move(gradient);
  return decoded;
}

TEST(GradientCodecTest, LeavesDefaultsOpen) {
  const v1::GradientRequest request = GoodGradient();

  const Decoded got = Decode(request).value();

  EXPECT_EQ(got.solve.num_samples, 3);
  EXPECT_EQ(got.solve.num_steps, 8);
  EXPECT_EQ(got.solve.options.solver, "auto");
  EXPECT_EQ(reinterpret_cast<const char*>(got.gradient.of_outputs.values.data()),
            request.cotangents().data().data());
  EXPECT_THAT(got.gradient.of_outputs.values, SizeIs(9));
  EXPECT_THAT(got.gradient.of_final.values, IsEmpty());
  EXPECT_THAT(got.gradient.trajectory.values, IsEmpty());
  EXPECT_EQ(got.gradient.columns, 1);
  EXPECT_FALSE(got.gradient.ranked);
  EXPECT_EQ(got.gradient.loss, v1::LOSS_UNSPECIFIED);
  EXPECT_EQ(got.gradient.wanted, BackwardOptions{});
  EXPECT_TRUE(got.gradient.by_inputs);
  EXPECT_FALSE(got.gradient.by_initial_state);
  EXPECT_FALSE(got.gradient.by_step_noise);
  // Outputs and gradients by the inputs in the reply; states beside it.
  EXPECT_GE(got.solve.reply_bytes, 3 * (3 + 2) * 4);
  EXPECT_EQ(got.solve.scratch_bytes, 3 * 9 * 4 * 4);
}

TEST(GradientCodecTest, WithoutInputsTheDefaultIsByTheInitialState) {
  const Decoded got = Decode(GoodGeneration(), Plain()).value();

  EXPECT_FALSE(got.gradient.by_inputs);
  EXPECT_TRUE(got.gradient.by_initial_state);
}

TEST(GradientCodecTest, ReadsEveryField) {
  v1::GradientRequest request = GoodGeneration();
  SetTensor({3, 2}, request.mutable_generation()->mutable_conditioning());
  SetTensor({3, 5, 3}, request.mutable_cotangents());
  SetTensor({3, 5, kState}, request.mutable_final_state_cotangents());
  request.mutable_options()->set_solver("newton");
  request.mutable_options()->set_return_trajectory(true);
  request.set_way(v1::BACKWARD_WAY_PARALLEL);
  request.set_shooting_interval(kSteps);
  request.add_gradients(v1::GRADIENT_BY_STEP_NOISE);
  request.add_gradients(v1::GRADIENT_BY_INPUTS);

  const Decoded got = Decode(request, WithConditioning()).value();

  EXPECT_EQ(got.solve.options.solver, "newton");
  EXPECT_THAT(got.gradient.of_outputs.values, SizeIs(45));
  EXPECT_THAT(got.gradient.of_final.values, SizeIs(60));
  EXPECT_EQ(got.gradient.columns, 5);
  EXPECT_TRUE(got.gradient.ranked);
  EXPECT_EQ(got.gradient.wanted,
            (BackwardOptions{.way = BackwardWay::kParallel, .shooting_interval = kSteps}));
  EXPECT_TRUE(got.gradient.by_inputs);
  EXPECT_FALSE(got.gradient.by_initial_state);
  EXPECT_TRUE(got.gradient.by_step_noise);
  // The trajectory is part of the reply.
  EXPECT_GE(got.solve.reply_bytes, 3 * (9 * 4 + 5 * 2 + 5 * 8 * 4) * 4);
  EXPECT_EQ(got.solve.scratch_bytes, 0);
}

TEST(GradientCodecTest, CotangentsOfFinalStatesStandAlone) {
  v1::GradientRequest request = GoodGradient();
  request.clear_cotangents();
  SetTensor({3, 2, 4}, request.mutable_final_state_cotangents());

  const Decoded got = Decode(request).value();

  EXPECT_EQ(got.gradient.columns, 2);
  EXPECT_THAT(got.gradient.of_final.values, SizeIs(24));
}

TEST(GradientCodecTest, ReadsStatesToGoBackAlong) {
  const Decoded got = Decode(WithTrajectory()).value();

  EXPECT_THAT(got.gradient.trajectory.values, SizeIs(108));
  EXPECT_EQ(got.solve.options.solver, "sequential");
  EXPECT_EQ(got.solve.scratch_bytes, 0);
}

TEST(GradientCodecTest, ReadsLosses) {
  const Decoded mse = Decode(WithMse()).value();
  EXPECT_EQ(mse.gradient.loss, v1::LOSS_MSE);
  EXPECT_THAT(mse.gradient.targets.values, SizeIs(9));
  EXPECT_EQ(mse.solve.scratch_bytes, 3 * (9 * 4 + 3) * 4);

  const v1::GradientRequest request = WithCrossEntropy();
  const Decoded cross = Decode(request).value();
  EXPECT_EQ(cross.gradient.loss, v1::LOSS_CROSS_ENTROPY);
  EXPECT_THAT(cross.gradient.classes, ElementsAre(0, 2, 1));
}

TEST(GradientCodecTest, MeanSquareIsItsFormula) {
  GradientInput input;
  input.loss = v1::LOSS_MSE;
  const std::vector<float> targets = {1, 0, -1, 5}, outputs = {3, 0, 0, 5};
  input.targets.values = targets;
  std::vector<float> cotangents(4);

  EXPECT_THAT(ComputeLosses(input, outputs, 2, cotangents), ElementsAre(2, 0.5));
  EXPECT_THAT(cotangents, ElementsAre(2, 0, 1, 0));
}

TEST(GradientCodecTest, CrossEntropyIsItsFormulaAlsoOfLargeOutputs) {
  GradientInput input;
  input.loss = v1::LOSS_CROSS_ENTROPY;
  const std::vector<int32_t> labels = {1, 0, 1};
  input.classes = labels;
  const std::vector<float> outputs = {0, 0, 1000, 0, 3e38f, -3e38f};
  std::vector<float> cotangents(6);

  const std::vector<double> losses = ComputeLosses(input, outputs, 3, cotangents);

  EXPECT_DOUBLE_EQ(losses[0], std::log(2.0));
  EXPECT_EQ(losses[1], 0);
  EXPECT_EQ(losses[2], double{3e38f} + double{3e38f});
  EXPECT_THAT(cotangents, ElementsAre(0.5, -0.5, 0, 0, 1, -1));
}

struct BadGradient {
  std::string name;
  v1::GradientRequest (*good)();
  std::function<void(v1::GradientRequest&)> spoil;
  std::string message_part;
  ModelInfo (*info)() = &Mlp;
};

class RefusedGradientTest : public ::testing::TestWithParam<BadGradient> {};

TEST_P(RefusedGradientTest, NamesTheField) {
  v1::GradientRequest request = GetParam().good();
  ASSERT_TRUE(Decode(request, GetParam().info()).ok());
  GetParam().spoil(request);

  ExpectError(Decode(request, GetParam().info()), absl::StatusCode::kInvalidArgument,
              GetParam().message_part);
}

using R = v1::GradientRequest;

INSTANTIATE_TEST_SUITE_P(
    All, RefusedGradientTest,
    ::testing::Values(
        // The part that is solved.
        BadGradient{"NoInputs", &GoodGradient, [](R& r) { r.clear_inputs(); },
                    "inputs: expected a tensor [n, 2], got none"},
        BadGradient{"GenerationOfAStack", &GoodGradient, [](R& r) { r.mutable_generation(); },
                    "generation: expected none: the model is no diffusion model, got one"},
        BadGradient{"InputsOfADiffusionModel", &GoodGeneration,
                    [](R& r) {
                      SetTensor({3, 2}, r.mutable_inputs());
                    },
                    "inputs: expected none for a diffusion model: set generation, got a tensor",
                    &Plain},
        BadGradient{"Generation", &GoodGeneration,
                    [](R& r) { r.mutable_generation()->set_num_inference_steps(5); },
                    "generation.num_inference_steps: expected one of 8, 3, 12", &Plain},
        BadGradient{"Solver", &GoodGradient, [](R& r) { r.mutable_options()->set_solver("guess"); },
                    "options.solver: expected one of"},
        BadGradient{
            "Unconverged", &GoodGradient,
            [](R& r) { r.mutable_options()->set_on_no_convergence(v1::ON_NO_CONVERGENCE_RETURN); },
            "options.on_no_convergence: expected FALLBACK or ERROR, as states that have "
            "not converged have no gradient, got RETURN"},
        BadGradient{"InitialStates", &GoodGradient,
                    [](R& r) {
                      SetTensor({3, 9, 4}, r.mutable_initial_states());
                    },
                    "initial_states: expected none unless options.initial_guess is PREVIOUS"},
        // The states to go back along.
        BadGradient{"TrajectoryShape", &WithTrajectory,
                    [](R& r) {
                      SetTensor({3, 8, 4}, r.mutable_trajectory());
                    },
                    "trajectory.shape: expected [n, 9, 4] with n = 3, got [3, 8, 4]"},
        BadGradient{"TrajectoryBytes", &WithTrajectory,
                    [](R& r) { r.mutable_trajectory()->mutable_data()->pop_back(); },
                    "trajectory.data: expected 432 bytes for shape [3, 9, 4], got 431 bytes"},
        BadGradient{"TrajectoryAndOptions", &WithTrajectory,
                    [](R& r) { r.mutable_options()->set_solver("newton"); },
                    "options: expected none beside a trajectory, as nothing is solved, got some"},
        BadGradient{"TrajectoryAndLoss", &WithTrajectory,
                    [](R& r) {
                      r.clear_cotangents();
                      r.set_loss(v1::LOSS_MSE);
                    },
                    "loss: expected none beside a trajectory, as there are no outputs: set "
                    "cotangents, got LOSS_MSE"},
        BadGradient{"TrajectoryAndEstimate", &WithTrajectory,
                    [](R& r) { r.set_estimate_error(true); },
                    "estimate_error: expected none beside a trajectory, whose error is not known, "
                    "got true"},
        // Cotangents.
        BadGradient{"NothingGoesBack", &GoodGradient, [](R& r) { r.clear_cotangents(); },
                    "cotangents: expected a tensor [n, 3] or [n, m, 3], final_state_cotangents, or "
                    "a loss, got none"},
        BadGradient{"CotangentsWidth", &GoodGradient,
                    [](R& r) {
                      SetTensor({3, 4}, r.mutable_cotangents());
                    },
                    "cotangents.shape: expected [n, 3] with n = 3, got [3, 4]"},
        BadGradient{"CotangentsSamples", &GoodGradient,
                    [](R& r) {
                      SetTensor({2, 3}, r.mutable_cotangents());
                    },
                    "cotangents.shape: expected [n, 3] with n = 3, got [2, 3]"},
        BadGradient{"CotangentsRank", &GoodGradient,
                    [](R& r) {
                      SetTensor({3, 1, 1, 3}, r.mutable_cotangents());
                    },
                    "cotangents.shape: expected [n, 3] with n = 3, got [3, 1, 1, 3]"},
        BadGradient{"NoCotangents", &GoodGradient,
                    [](R& r) {
                      SetTensor({3, 0, 3}, r.mutable_cotangents());
                    },
                    "cotangents.shape[1]: expected a number in [1, 4096], got 0"},
        BadGradient{"TooManyCotangents", &GoodGradient,
                    [](R& r) {
                      SetTensor({3, 4097, 3}, r.mutable_cotangents());
                    },
                    "cotangents.shape[1]: expected a number in [1, 4096], got 4097"},
        BadGradient{"CotangentsBytes", &GoodGradient,
                    [](R& r) { r.mutable_cotangents()->mutable_data()->resize(4); },
                    "cotangents.data: expected 36 bytes"},
        BadGradient{"FinalWidth", &GoodGradient,
                    [](R& r) {
                      SetTensor({3, 3}, r.mutable_final_state_cotangents());
                    },
                    "final_state_cotangents.shape: expected [n, 4] with n = 3, got [3, 3]"},
        BadGradient{"FinalRank", &GoodGradient,
                    [](R& r) {
                      SetTensor({3, 1, 4}, r.mutable_final_state_cotangents());
                    },
                    "final_state_cotangents.shape: expected as many extents as those of "
                    "cotangents, got 3 of them"},
        BadGradient{"FinalColumns", &GoodGradient,
                    [](R& r) {
                      SetTensor({3, 2, 3}, r.mutable_cotangents());
                      SetTensor({3, 1, 4}, r.mutable_final_state_cotangents());
                    },
                    "final_state_cotangents.shape: expected [n, 2, 4] with n = 3, got [3, 1, 4]"},
        // Losses.
        BadGradient{"Loss", &GoodGradient, [](R& r) { r.set_loss(static_cast<v1::Loss>(7)); },
                    "loss: expected a value of Loss, got 7"},
        BadGradient{"LossAndCotangents", &WithMse,
                    [](R& r) {
                      SetTensor({3, 3}, r.mutable_cotangents());
                    },
                    "cotangents: expected none beside a loss, got a tensor"},
        BadGradient{"LossAndFinal", &WithCrossEntropy,
                    [](R& r) {
                      SetTensor({3, 4}, r.mutable_final_state_cotangents());
                    },
                    "final_state_cotangents: expected none beside a loss, got a tensor"},
        BadGradient{"NoTargets", &WithMse, [](R& r) { r.clear_targets(); },
                    "targets: expected a tensor [n, 3] for LOSS_MSE, got none"},
        BadGradient{"TargetsShape", &WithMse,
                    [](R& r) {
                      SetTensor({3, 4}, r.mutable_targets());
                    },
                    "targets.shape: expected [n, 3] with n = 3, got [3, 4]"},
        BadGradient{"TargetsWithoutLoss", &GoodGradient,
                    [](R& r) {
                      SetTensor({3, 3}, r.mutable_targets());
                    },
                    "targets: expected none unless loss is LOSS_MSE, got a tensor"},
        BadGradient{"TargetsOfCrossEntropy", &WithCrossEntropy,
                    [](R& r) {
                      SetTensor({3, 3}, r.mutable_targets());
                    },
                    "targets: expected none unless loss is LOSS_MSE, got a tensor"},
        BadGradient{"ClassesWithoutLoss", &GoodGradient, [](R& r) { r.add_target_classes(0); },
                    "target_classes: expected none unless loss is LOSS_CROSS_ENTROPY, got 1 of "
                    "them"},
        BadGradient{"NoClasses", &WithCrossEntropy, [](R& r) { r.clear_target_classes(); },
                    "target_classes: expected 3 of them, one per sample, got 0"},
        BadGradient{"ClassAbove", &WithCrossEntropy, [](R& r) { r.set_target_classes(1, 3); },
                    "target_classes: expected a number in [0, 2], got 3"},
        BadGradient{"ClassBelow", &WithCrossEntropy, [](R& r) { r.set_target_classes(2, -1); },
                    "target_classes: expected a number in [0, 2], got -1"},
        // The way, and what is wanted.
        BadGradient{"Way", &GoodGradient, [](R& r) { r.set_way(static_cast<v1::BackwardWay>(4)); },
                    "way: expected a value of BackwardWay, got 4"},
        BadGradient{"IntervalAbove", &GoodGradient, [](R& r) { r.set_shooting_interval(9); },
                    "shooting_interval: expected a number in [0, 8], got 9"},
        BadGradient{"IntervalBelow", &GoodGradient, [](R& r) { r.set_shooting_interval(-1); },
                    "shooting_interval: expected a number in [0, 8], got -1"},
        BadGradient{"Gradients", &GoodGradient,
                    [](R& r) { r.add_gradients(v1::GRADIENT_BY_UNSPECIFIED); },
                    "gradients: expected values of GradientBy, set, got 0"},
        BadGradient{"GradientsUnknown", &GoodGradient,
                    [](R& r) { r.add_gradients(static_cast<v1::GradientBy>(9)); },
                    "gradients: expected values of GradientBy, set, got 9"},
        BadGradient{"GradientsTwice", &GoodGradient,
                    [](R& r) {
                      r.add_gradients(v1::GRADIENT_BY_INPUTS);
                      r.add_gradients(v1::GRADIENT_BY_INPUTS);
                    },
                    "gradients: expected every one once, got GRADIENT_BY_INPUTS again"},
        BadGradient{"ByInputsWithoutInputs", &GoodGeneration,
                    [](R& r) { r.add_gradients(v1::GRADIENT_BY_INPUTS); },
                    "gradients: expected BY_INITIAL_STATE or BY_STEP_NOISE, as the model takes no "
                    "inputs, got BY_INPUTS",
                    &Plain},
        BadGradient{"ByNoiseOfAStack", &GoodGradient,
                    [](R& r) { r.add_gradients(v1::GRADIENT_BY_STEP_NOISE); },
                    "gradients: expected BY_INPUTS or BY_INITIAL_STATE, as the model draws no "
                    "noise, got BY_STEP_NOISE"}),
    [](const auto& test) { return test.param.name; });

TEST(GradientCodecTest, RefusesAReplyThatWouldBeTooLarge) {
  v1::GradientRequest request = GoodGradient();
  SetTensor({3, 100, 3}, request.mutable_cotangents());
  EXPECT_TRUE(Decode(request).ok());

  ExpectError(Decode(request, Mlp(), 3000), absl::StatusCode::kResourceExhausted,
              "bytes; the limit is 3000. Ask for fewer samples, cotangents or gradients");
}

TEST(GradientCodecTest, SizesBeyondInt64AreRefused) {
  ModelInfo info = Plain();
  info.num_layers = info.num_inference_steps[0] = int64_t{1} << 61;
  v1::GradientRequest request = GoodGeneration();
  request.add_gradients(v1::GRADIENT_BY_STEP_NOISE);

  EXPECT_FALSE(Decode(request, info).ok());
}

TEST(GradientCodecTest, ValuesThatAreNotFiniteNameTheirField) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<std::pair<v1::GradientRequest (*)(), std::function<v1::Tensor*(R&)>>> cases = {
      {&GoodGradient, [](R& r) { return r.mutable_cotangents(); }},
      {&WithTrajectory, [](R& r) { return r.mutable_trajectory(); }},
      {&WithMse, [](R& r) { return r.mutable_targets(); }},
      {[] {
         v1::GradientRequest request = GoodGradient();
         SetTensor({3, 4}, request.mutable_final_state_cotangents());
         return request;
       },
       [](R& r) { return r.mutable_final_state_cotangents(); }}};
  const char* const names[] = {"cotangents", "trajectory", "targets", "final_state_cotangents"};
  for (size_t i = 0; i < cases.size(); ++i) {
    v1::GradientRequest request = cases[i].first();
    EXPECT_TRUE(CheckFinite(Decode(request).value().gradient).ok());
    SetValue(5, kNan, cases[i].second(request));
    ExpectError(CheckFinite(Decode(request).value().gradient), absl::StatusCode::kInvalidArgument,
                std::string(names[i]) + ".data: expected finite values, got nan at flat index 5");
  }
}

TEST(GradientCodecTest, FillsTheReport) {
  const std::vector<BackwardReport> reports = {
      {.dependent_stages = 3, .column_passes = 2},
      {.termination = Termination::kNonFinite, .dependent_stages = 4, .column_passes = 5}};
  const std::optional<double> errors[] = {0.125, std::nullopt};
  v1::BackwardReport report;

  FillBackwardReport({.way = BackwardWay::kParallel, .shooting_interval = 6}, reports, errors, 0.25,
                     &report);

  EXPECT_EQ(report.way(), "parallel");
  EXPECT_EQ(report.shooting_interval(), 6);
  EXPECT_EQ(report.seconds(), 0.25);
  ASSERT_EQ(report.samples_size(), 2);
  EXPECT_EQ(report.samples(0).termination(), "direct");
  EXPECT_EQ(report.samples(0).dependent_stages(), 3);
  EXPECT_EQ(report.samples(0).column_passes(), 2);
  EXPECT_EQ(report.samples(0).gradient_error_estimate(), 0.125);
  EXPECT_EQ(report.samples(1).termination(), "non_finite");
  EXPECT_FALSE(report.samples(1).has_gradient_error_estimate());

  report.Clear();
  FillBackwardReport({}, reports, {}, 0.25, &report);
  EXPECT_FALSE(report.samples(0).has_gradient_error_estimate());
}

}  // namespace
}  // namespace deeppcr::testing
