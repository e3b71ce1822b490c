// SPDX-License-Identifier: Apache-2.0
#include "server/codec/generation_controls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "tests/server/codec/generation_codec_fixture.h"
#include "tests/testing/expect_error.h"

namespace deeppcr::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Models that have systems on demand, and what stands for no condition.
ModelInfo Any(ModelInfo info) {
  info.max_inference_steps = kLongest;
  info.draws_step_noise = true;
  return info;
}
ModelInfo AnyPlain() { return Any(Plain()); }
ModelInfo Classes() {
  ModelInfo info = Any(WithClasses());
  info.has_null_class = true;
  return info;
}
ModelInfo ClassesWithoutNull() { return Any(WithClasses()); }
ModelInfo Vectors() {
  ModelInfo info = Any(WithConditioning());
  info.null_condition = {7, 8};
  return info;
}
ModelInfo VectorsWithoutNull() { return Any(WithConditioning()); }
ModelInfo OnlyPlanned() { return Plain(); }
ModelInfo PlannedClasses() {
  ModelInfo info = Classes();
  info.max_inference_steps = 0;
  return info;
}

// A request for 3 samples with what the model needs.
v1::GenerateRequest RequestFor(const ModelInfo& info) {
  v1::GenerateRequest request = GoodGenerate();
  v1::GenerationInput& input = *request.mutable_input();
  input.set_seed(11);
  input.set_first_sample(2);
  if (info.num_classes > 0) input.add_class_labels(1);
  if (info.input_dim > 0) SetTensor({3, 2}, input.mutable_conditioning());
  return request;
}

SolveInput Completed(const v1::GenerateRequest& request, const ModelInfo& info) {
  absl::StatusOr<SolveInput> input = Decode(request, info);
  EXPECT_TRUE(input.ok()) << input.status();
  if (!input.ok()) return {};
  EXPECT_TRUE(CheckFinite(*input).ok());
  CompleteGeneration(info, &*input);
  return *std::move(input);
}

TEST(GenerationControlsTest, WithoutThemNothingIsMade) {
  for (const ModelInfo& info : {AnyPlain(), Classes(), Vectors()}) {
    const v1::GenerateRequest request = RequestFor(info);
    const SolveInput input = Completed(request, info);
    EXPECT_TRUE(input.system == SystemKey(kSteps));
    EXPECT_FALSE(NeedsCompletion(info, input));
    EXPECT_EQ(input.scratch_bytes, 0);
    EXPECT_TRUE(input.varied_inputs.empty() && input.shaped_initial_noise.empty() &&
                input.shaped_step_noise.empty());
  }
}

// A scale of 1 is no guidance, whatever else is said of it.
TEST(GenerationControlsTest, AScaleOfOneTakesTheSystemItself) {
  v1::GenerateRequest request = RequestFor(Vectors());
  request.mutable_input()->set_guidance_scale(1);
  SetTensor({3, 2}, request.mutable_input()->mutable_null_conditioning());
  const SolveInput input = Completed(request, Vectors());
  EXPECT_TRUE(input.system == SystemKey(kSteps));
  EXPECT_TRUE(input.varied_inputs.empty());
}

TEST(GenerationControlsTest, GuidedVectorsHaveTheNullAndTheScaleBehindThem) {
  v1::GenerateRequest request = RequestFor(Vectors());
  request.mutable_input()->set_guidance_scale(2.5);
  const SolveInput by_model = Completed(request, Vectors());
  EXPECT_TRUE(by_model.system.guided);
  EXPECT_THAT(by_model.varied_inputs,
              ElementsAre(0.5, 1.5, 7, 8, 2.5, 2.5, 3.5, 7, 8, 2.5, 4.5, 5.5, 7, 8, 2.5));
  EXPECT_EQ(by_model.scratch_bytes, 15 * 4);
  EXPECT_EQ(by_model.Samples().inputs.size(), 15u);

  SetTensor({1, 2}, request.mutable_input()->mutable_null_conditioning());
  const SolveInput by_one = Completed(request, VectorsWithoutNull());
  EXPECT_THAT(by_one.varied_inputs, ElementsAre(0.5, 1.5, 0.5, 1.5, 2.5, 2.5, 3.5, 0.5, 1.5, 2.5,
                                                4.5, 5.5, 0.5, 1.5, 2.5));
  SetTensor({3, 2}, request.mutable_input()->mutable_null_conditioning());
  const SolveInput by_each = Completed(request, Vectors());
  EXPECT_THAT(by_each.varied_inputs, ElementsAre(0.5, 1.5, 0.5, 1.5, 2.5, 2.5, 3.5, 2.5, 3.5, 2.5,
                                                 4.5, 5.5, 4.5, 5.5, 2.5));
}

TEST(GenerationControlsTest, GuidedClassesHaveTheScaleAlone) {
  v1::GenerateRequest request = RequestFor(Classes());
  request.mutable_input()->set_guidance_scale(-3);
  const SolveInput input = Completed(request, Classes());
  EXPECT_THAT(input.varied_inputs, ElementsAre(-3, -3, -3));
  EXPECT_THAT(input.Samples().labels, ElementsAre(1, 1, 1));
}

TEST(GenerationControlsTest, KnownElementsAreAMaskAndValues) {
  v1::GenerateRequest request = RequestFor(Classes());
  v1::GenerationInput& from = *request.mutable_input();
  from.set_guidance_scale(2);
  from.add_known_elements(3);
  from.add_known_elements(0);
  SetTensor({3, 2}, from.mutable_known_values());
  const SolveInput input = Completed(request, Classes());
  EXPECT_TRUE(input.system.known && input.system.guided);
  EXPECT_THAT(input.varied_inputs, ElementsAre(2, 1, 0, 0, 1, 1.5, 0, 0, 0.5,  //
                                               2, 1, 0, 0, 1, 3.5, 0, 0, 2.5,  //
                                               2, 1, 0, 0, 1, 5.5, 0, 0, 4.5));
}

TEST(GenerationControlsTest, OneConditionIsForAllSamples) {
  v1::GenerateRequest request = RequestFor(Vectors());
  SetTensor({1, 2}, request.mutable_input()->mutable_conditioning());
  const SolveInput input = Completed(request, Vectors());
  EXPECT_TRUE(input.system == SystemKey(kSteps));
  EXPECT_THAT(input.Samples().inputs, ElementsAre(0.5, 1.5, 0.5, 1.5, 0.5, 1.5));
}

std::vector<float> Drawn(int64_t steps, int64_t first) {
  std::vector<float> noise(static_cast<size_t>(3 * steps * kState));
  for (int64_t i = 0; i < 3; ++i)
    for (int64_t l = 0; l < steps; ++l)
      DrawStepNoise(11, static_cast<uint64_t>(2 + i), first + l,
                    std::span(noise).subspan((i * steps + l) * kState, kState));
  return noise;
}

TEST(GenerationControlsTest, NoiseIsDrawnClippedAndScaled) {
  v1::GenerateRequest request = RequestFor(AnyPlain());
  v1::GenerationInput& from = *request.mutable_input();
  from.set_temperature(0.5);
  const SolveInput steps_only = Completed(request, AnyPlain());
  EXPECT_TRUE(steps_only.Samples().initial_noise.empty());
  std::vector<float> want = Drawn(kSteps, 0);
  for (float& value : want) value *= 0.5F;
  EXPECT_THAT(steps_only.Samples().step_noise, ElementsAreArray(want));

  from.set_initial_temperature(3);
  from.set_initial_noise_clip(0.5);
  from.set_noise_clip(0.75);
  const SolveInput both = Completed(request, AnyPlain());
  want = Drawn(kSteps, 0);
  for (float& value : want) value = 0.5F * std::clamp(value, -0.75F, 0.75F);
  EXPECT_THAT(both.Samples().step_noise, ElementsAreArray(want));
  std::vector<float> initial(3 * kState);
  for (int64_t i = 0; i < 3; ++i)
    DrawInitialNoise(11, static_cast<uint64_t>(2 + i),
                     std::span(initial).subspan(i * kState, kState));
  for (float& value : initial) value = 3 * std::clamp(value, -0.5F, 0.5F);
  EXPECT_THAT(both.Samples().initial_noise, ElementsAreArray(initial));
  EXPECT_EQ(both.scratch_bytes, (3 * kState + 3 * kSteps * kState) * 4);
}

TEST(GenerationControlsTest, GivenNoiseIsShapedTheSameWay) {
  v1::GenerateRequest request = RequestFor(AnyPlain());
  v1::GenerationInput& from = *request.mutable_input();
  SetTensor({3, kState}, from.mutable_initial_noise());
  SetTensor({3, kSteps, kState}, from.mutable_step_noise());
  from.set_noise_clip(2);
  from.set_initial_noise_clip(3);
  from.set_initial_temperature(2);
  const SolveInput input = Completed(request, AnyPlain());
  EXPECT_THAT(input.Samples().initial_noise.first(4), ElementsAre(1, 3, 5, 6));
  EXPECT_THAT(input.Samples().step_noise.first(4), ElementsAre(0.5, 1.5, 2, 2));
}

// Nothing is drawn for steps that add none.
TEST(GenerationControlsTest, NoNoiseIsDrawnWhereNoneIsAdded) {
  ModelInfo info = AnyPlain();
  info.draws_step_noise = false;
  v1::GenerateRequest request = RequestFor(info);
  request.mutable_input()->set_temperature(0.5);
  const SolveInput input = Completed(request, info);
  EXPECT_TRUE(input.Samples().step_noise.empty());
  EXPECT_EQ(input.scratch_bytes, 0);
}

TEST(GenerationControlsTest, ABeginningTakesTheNoiseOfItsPlace) {
  v1::GenerateRequest request = RequestFor(AnyPlain());
  v1::GenerationInput& from = *request.mutable_input();
  from.set_first_step(5);
  SetTensor({3, kState}, from.mutable_initial_samples());
  request.mutable_options()->set_return_trajectory(true);
  const SolveInput input = Completed(request, AnyPlain());
  EXPECT_EQ(input.num_steps, kSteps - 5);
  EXPECT_EQ(input.system.num_steps, kSteps);
  EXPECT_EQ(input.system.first_step, 5);
  EXPECT_THAT(input.Samples().step_noise, ElementsAreArray(Drawn(kSteps - 5, 5)));
  EXPECT_THAT(input.Samples().initial_noise.first(2), ElementsAre(0.5, 1.5));

  // Noise that is given is that of the steps that are made.
  SetTensor({3, kSteps - 5, kState}, from.mutable_step_noise());
  EXPECT_TRUE(Decode(request, AnyPlain()).ok());
  SetTensor({3, kSteps, kState}, from.mutable_step_noise());
  ExpectError(Decode(request, AnyPlain()), absl::StatusCode::kInvalidArgument,
              "expected [n, 3, 4] with n = 3, got [3, 8, 4]");
}

TEST(GenerationControlsTest, BoundsPutSamplesIntoThem) {
  v1::GenerateRequest request = RequestFor(AnyPlain());
  v1::GenerationInput& from = *request.mutable_input();
  from.add_lower_bounds(-1);
  for (const float bound : {1.0F, 0.5F, kInfinity}) from.add_upper_bounds(bound);
  const SolveInput input = Completed(request, AnyPlain());
  std::vector<float> outputs = {-2, 2, 9, 0.25, 0.75, -9};
  PutIntoBounds(input.controls, outputs);
  EXPECT_THAT(outputs, ElementsAre(-1, 0.5, 9, 0.25, 0.5, -1));
  std::vector<float> no_number = {kNan, 0, 0};
  PutIntoBounds(input.controls, no_number);
  EXPECT_TRUE(std::isnan(no_number[0]));
}

struct BadControl {
  std::string name;
  std::function<void(v1::GenerationInput&)> spoil;
  std::string message_part;
  ModelInfo (*info)() = &AnyPlain;
  absl::StatusCode code = absl::StatusCode::kInvalidArgument;
};

class RefusedControlsTest : public ::testing::TestWithParam<BadControl> {};

TEST_P(RefusedControlsTest, NamesTheField) {
  const ModelInfo info = GetParam().info();
  v1::GenerateRequest request = RequestFor(info);
  ASSERT_TRUE(Decode(request, info).ok());
  GetParam().spoil(*request.mutable_input());
  absl::StatusOr<SolveInput> input = Decode(request, info);
  const absl::Status status = input.ok() ? CheckFinite(*input) : input.status();
  ExpectError(status, GetParam().code, GetParam().message_part);
}

void Begin(v1::GenerationInput& input, int32_t first = 3) {
  input.set_first_step(first);
  SetTensor({3, kState}, input.mutable_initial_samples());
}
void Know(v1::GenerationInput& input, std::vector<int32_t> elements, std::vector<int64_t> shape) {
  input.mutable_known_elements()->Assign(elements.begin(), elements.end());
  SetTensor(std::move(shape), input.mutable_known_values());
}

INSTANTIATE_TEST_SUITE_P(
    Guidance, RefusedControlsTest,
    ::testing::Values(
        BadControl{"NoCondition", [](auto& i) { i.set_guidance_scale(2); },
                   "input.guidance_scale: expected 1, as the model takes no condition, got 2"},
        BadControl{"Huge", [](auto& i) { i.set_guidance_scale(1e30); },
                   "input.guidance_scale: expected a number in [-1000, 1000], got 1e+30", &Classes},
        BadControl{"NotANumber", [](auto& i) { i.set_guidance_scale(NAN); },
                   "input.guidance_scale: expected a number in", &Classes},
        BadControl{"NoNullClass", [](auto& i) { i.set_guidance_scale(2); },
                   "no class stands for no condition (null_class", &ClassesWithoutNull},
        BadControl{"NoNullVector", [](auto& i) { i.set_guidance_scale(2); },
                   "input.null_conditioning: expected a tensor [n, 2] beside guidance_scale",
                   &VectorsWithoutNull},
        BadControl{"NullOfClasses",
                   [](auto& i) {
                     SetTensor({3, 2}, i.mutable_null_conditioning());
                   },
                   "input.null_conditioning: expected none", &Classes},
        BadControl{"NullShape",
                   [](auto& i) {
                     i.set_guidance_scale(2);
                     SetTensor({2, 2}, i.mutable_null_conditioning());
                   },
                   "input.null_conditioning", &Vectors},
        BadControl{"NullOfNan",
                   [](auto& i) {
                     i.set_guidance_scale(2);
                     SetTensor({1, 2}, i.mutable_null_conditioning());
                     SetValue(1, kNan, i.mutable_null_conditioning());
                   },
                   "input.null_conditioning", &Vectors},
        BadControl{"NoRoom", [](auto& i) { i.set_guidance_scale(2); },
                   "input.guidance_scale: the model's server has no memory", &PlannedClasses,
                   absl::StatusCode::kResourceExhausted}),
    [](const auto& test) { return test.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Noise, RefusedControlsTest,
    ::testing::Values(BadControl{"Temperature", [](auto& i) { i.set_temperature(-0.5); },
                                 "input.temperature: expected a number in [0, 1000], got -0.5"},
                      BadControl{"HotTemperature", [](auto& i) { i.set_temperature(1e30); },
                                 "input.temperature: expected a number in [0, 1000]"},
                      BadControl{"InitialTemperature",
                                 [](auto& i) { i.set_initial_temperature(NAN); },
                                 "input.initial_temperature: expected a number in [0, 1000]"},
                      BadControl{"NoClip", [](auto& i) { i.set_noise_clip(0); },
                                 "input.noise_clip: expected a number above 0, got 0"},
                      BadControl{"NoInitialClip", [](auto& i) { i.set_initial_noise_clip(-1); },
                                 "input.initial_noise_clip: expected a number above 0, got -1"},
                      BadControl{"ClipOfNan", [](auto& i) { i.set_noise_clip(NAN); },
                                 "input.noise_clip: expected a number above 0"}),
    [](const auto& test) { return test.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Beginnings, RefusedControlsTest,
    ::testing::Values(
        BadControl{"All", [](auto& i) { Begin(i, kSteps); },
                   "input.first_step: expected a number in [0, 7], got 8"},
        BadControl{"Negative", [](auto& i) { Begin(i, -1); },
                   "input.first_step: expected a number in [0, 7], got -1"},
        BadControl{"NoSamples", [](auto& i) { i.set_first_step(2); },
                   "input.initial_samples: expected a tensor [n, 4] beside first_step, got none"},
        BadControl{"NoFirstStep", [](auto& i) { Begin(i, 0); },
                   "input.initial_samples: expected none without first_step"},
        BadControl{"BesideNoise",
                   [](auto& i) {
                     Begin(i);
                     SetTensor({3, kState}, i.mutable_initial_noise());
                   },
                   "input.initial_noise: expected none beside initial_samples"},
        BadControl{"BesideTemperature",
                   [](auto& i) {
                     Begin(i);
                     i.set_initial_temperature(2);
                   },
                   "input.initial_temperature: expected none beside initial_samples"},
        BadControl{"Shape",
                   [](auto& i) {
                     Begin(i);
                     SetTensor({3, 3}, i.mutable_initial_samples());
                   },
                   "input.initial_samples"},
        BadControl{"Infinite",
                   [](auto& i) {
                     Begin(i);
                     SetValue(2, kInfinity, i.mutable_initial_samples());
                   },
                   "input.initial_samples"},
        BadControl{"NoRoom", [](auto& i) { Begin(i); },
                   "input.first_step: the model's server has no memory", &OnlyPlanned,
                   absl::StatusCode::kResourceExhausted}),
    [](const auto& test) { return test.param.name; });

INSTANTIATE_TEST_SUITE_P(
    KnownElements, RefusedControlsTest,
    ::testing::Values(BadControl{"NoValues", [](auto& i) { i.add_known_elements(1); },
                                 "input.known_values: expected a tensor [n, 1], got none"},
                      BadControl{"NoElements",
                                 [](auto& i) {
                                   SetTensor({3, 1}, i.mutable_known_values());
                                 },
                                 "input.known_values: expected none without known_elements"},
                      BadControl{"Twice",
                                 [](auto& i) {
                                   Know(i, {2, 2}, {3, 2});
                                 },
                                 "input.known_elements: expected every element once, got 2 twice"},
                      BadControl{"Beyond",
                                 [](auto& i) {
                                   Know(i, {4}, {3, 1});
                                 },
                                 "input.known_elements: expected a number in [0, 3], got 4"},
                      BadControl{"Negative",
                                 [](auto& i) {
                                   Know(i, {-1}, {3, 1});
                                 },
                                 "got -1"},
                      BadControl{"Many",
                                 [](auto& i) {
                                   Know(i, {0, 1, 2, 3, 0}, {3, 5});
                                 },
                                 "input.known_elements: expected at most 4 elements, got 5"},
                      BadControl{"Shape",
                                 [](auto& i) {
                                   Know(i, {0, 1}, {3, 3});
                                 },
                                 "input.known_values"},
                      BadControl{"Rows",
                                 [](auto& i) {
                                   Know(i, {0}, {2, 1});
                                 },
                                 "input.known_values"},
                      BadControl{"NotANumber",
                                 [](auto& i) {
                                   Know(i, {0}, {3, 1});
                                   SetValue(1, kNan, i.mutable_known_values());
                                 },
                                 "input.known_values"}),
    [](const auto& test) { return test.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Bounds, RefusedControlsTest,
    ::testing::Values(BadControl{"Count",
                                 [](auto& i) {
                                   i.add_lower_bounds(0);
                                   i.add_lower_bounds(0);
                                 },
                                 "input.lower_bounds: expected 1 or output_dim = 3 numbers, got 2"},
                      BadControl{"NotANumber", [](auto& i) { i.add_upper_bounds(kNan); },
                                 "input.upper_bounds: expected numbers, got NaN"},
                      BadControl{"NothingAbove", [](auto& i) { i.add_lower_bounds(kInfinity); },
                                 "input.lower_bounds: expected bounds between which numbers are"},
                      BadControl{"NothingBelow", [](auto& i) { i.add_upper_bounds(-kInfinity); },
                                 "input.upper_bounds: expected bounds between which numbers are"},
                      BadControl{
                          "Crossed",
                          [](auto& i) {
                            i.add_lower_bounds(1);
                            i.add_upper_bounds(0.5);
                          },
                          "input.lower_bounds: expected bounds at most those of upper_bounds"}),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace deeppcr::testing
