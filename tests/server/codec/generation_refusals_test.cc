// SPDX-License-Identifier: Apache-2.0
// Requests that a client may not send to a diffusion model: Generate.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "tests/server/codec/generation_codec_fixture.h"
#include "tests/testing/expect_error.h"

namespace deeppcr::testing {
namespace {

struct BadRequest {
  std::string name;
  std::function<void(v1::GenerateRequest&)> spoil;
  std::string message_part;
  ModelInfo (*info)() = &Plain;
};

class RefusedGenerateTest : public ::testing::TestWithParam<BadRequest> {};

// A request for 3 samples, with everything that the model needs.
v1::GenerateRequest GoodRequestFor(const ModelInfo& info) {
  v1::GenerateRequest request = GoodGenerate();
  if (info.num_classes > 0) request.mutable_input()->add_class_labels(0);
  if (info.input_dim > 0) SetTensor({3, 2}, request.mutable_input()->mutable_conditioning());
  return request;
}

TEST_P(RefusedGenerateTest, NamesTheField) {
  v1::GenerateRequest request = GoodRequestFor(GetParam().info());
  ASSERT_TRUE(Decode(request, GetParam().info()).ok());
  GetParam().spoil(request);

  ExpectError(Decode(request, GetParam().info()), absl::StatusCode::kInvalidArgument,
              GetParam().message_part);
}

// A change of one field of the input.
template <typename Set>
auto Input(Set set) {
  return [set](v1::GenerateRequest& request) { set(*request.mutable_input()); };
}
void SetLabels(const std::vector<int32_t>& labels, v1::GenerationInput& input) {
  input.mutable_class_labels()->Assign(labels.begin(), labels.end());
}
constexpr int64_t kHuge = int64_t{1} << 62;
constexpr int32_t kLargest = std::numeric_limits<int32_t>::max();
constexpr int32_t kLeast = std::numeric_limits<int32_t>::min();

INSTANTIATE_TEST_SUITE_P(
    Counts, RefusedGenerateTest,
    ::testing::Values(
        BadRequest{"ManySamples", Input([](auto& i) { i.set_num_samples(17); }),
                   "input.num_samples: expected a number in [1, 16], got 17"},
        BadRequest{"NegativeSamples", Input([](auto& i) { i.set_num_samples(-1); }),
                   "input.num_samples: expected a number in [1, 16], got -1"},
        BadRequest{"MostSamples", Input([](auto& i) { i.set_num_samples(kLargest); }),
                   "got 2147483647"},
        BadRequest{"LeastSamples", Input([](auto& i) { i.set_num_samples(kLeast); }),
                   "got -2147483648"},
        BadRequest{
            "Steps", Input([](auto& i) { i.set_num_inference_steps(5); }),
            "input.num_inference_steps: expected one of 8, 3, 12 (those of the model's config"},
        BadRequest{"NegativeSteps", Input([](auto& i) { i.set_num_inference_steps(-8); }),
                   "got -8"},
        BadRequest{"Solver", [](auto& r) { r.mutable_options()->set_solver("quasi_newton"); },
                   "options.solver: expected one of sequential, newton, picard, jacobi, auto, got "
                   "\"quasi_newton\""},
        BadRequest{"Rtol", [](auto& r) { r.mutable_options()->set_rtol(1); }, "options.rtol"}),
    [](const auto& test) { return test.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Conditions, RefusedGenerateTest,
    ::testing::Values(
        BadRequest{"NoLabels", Input([](auto& i) { i.clear_class_labels(); }),
                   "input.class_labels: expected 1 or num_samples = 3 of them, got 0",
                   &WithClasses},
        BadRequest{"TwoLabels", Input([](auto& i) {
                     SetLabels({0, 1}, i);
                   }),
                   "input.class_labels: expected 1 or num_samples = 3 of them, got 2",
                   &WithClasses},
        BadRequest{"FourLabels", Input([](auto& i) {
                     SetLabels({0, 1, 2, 3}, i);
                   }),
                   "got 4", &WithClasses},
        BadRequest{"LabelHigh", Input([](auto& i) {
                     SetLabels({0, 4, 5}, i);
                   }),
                   "input.class_labels: expected a number in [0, 4], got 5", &WithClasses},
        BadRequest{"LabelNegative", Input([](auto& i) { SetLabels({-1}, i); }),
                   "input.class_labels: expected a number in [0, 4], got -1", &WithClasses},
        BadRequest{"LabelHuge", Input([](auto& i) { SetLabels({kLargest}, i); }), "got 2147483647",
                   &WithClasses},
        BadRequest{"LabelsUnasked", Input([](auto& i) { SetLabels({0}, i); }),
                   "input.class_labels: expected none: the model has no classes, got 1 of them"},
        BadRequest{"LabelsOfConditioned", Input([](auto& i) {
                     SetLabels({0, 0, 0}, i);
                   }),
                   "got 3 of them", &WithConditioning},
        BadRequest{"NoConditioning", Input([](auto& i) { i.clear_conditioning(); }),
                   "input.conditioning: expected a tensor [n, 2], got none", &WithConditioning},
        BadRequest{"ConditioningUnasked", Input([](auto& i) {
                     SetTensor({3, 2}, i.mutable_conditioning());
                   }),
                   "input.conditioning: expected none: the model takes none, got a tensor"},
        BadRequest{"EmptyConditioningUnasked", Input([](auto& i) { i.mutable_conditioning(); }),
                   "input.conditioning: expected none"},
        BadRequest{"ConditioningOfOtherSamples", Input([](auto& i) {
                     SetTensor({2, 2}, i.mutable_conditioning());
                   }),
                   "input.conditioning.shape: expected [n, 2] with n = 3, got [2, 2]",
                   &WithConditioning},
        BadRequest{"ConditioningWidth", Input([](auto& i) {
                     SetTensor({3, 3}, i.mutable_conditioning());
                   }),
                   "input.conditioning.shape: expected [n, 2] with n = 3, got [3, 3]",
                   &WithConditioning},
        BadRequest{"ConditioningBytes",
                   Input([](auto& i) { i.mutable_conditioning()->mutable_data()->pop_back(); }),
                   "input.conditioning.data: expected 24 bytes for shape [3, 2], got 23 bytes",
                   &WithConditioning}),
    [](const auto& test) { return test.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Noise, RefusedGenerateTest,
    ::testing::Values(
        BadRequest{"InitialOfOtherSamples", Input([](auto& i) {
                     SetTensor({1, kState}, i.mutable_initial_noise());
                   }),
                   "input.initial_noise.shape: expected [n, 4] with n = 3, got [1, 4]"},
        BadRequest{"InitialWidth", Input([](auto& i) {
                     SetTensor({3, 3}, i.mutable_initial_noise());
                   }),
                   "input.initial_noise.shape: expected [n, 4] with n = 3, got [3, 3]"},
        BadRequest{"InitialRank",
                   Input([](auto& i) { SetTensor({12}, i.mutable_initial_noise()); }), "got [12]"},
        BadRequest{"InitialEmpty", Input([](auto& i) { i.mutable_initial_noise(); }),
                   "input.initial_noise.shape: expected [n, 4] with n = 3, got []"},
        BadRequest{"InitialHuge", Input([](auto& i) {
                     SetTensor({3, kState}, i.mutable_initial_noise());
                     i.mutable_initial_noise()->set_shape(0, kHuge);
                   }),
                   "got [4611686018427387904, 4]"},
        BadRequest{"InitialBytes", Input([](auto& i) {
                     SetTensor({3, kState}, i.mutable_initial_noise());
                     i.mutable_initial_noise()->mutable_data()->push_back(0);
                   }),
                   "input.initial_noise.data: expected 48 bytes for shape [3, 4], got 49 bytes"},
        BadRequest{"StepsOfOtherL", Input([](auto& i) {
                     SetTensor({3, 3, kState}, i.mutable_step_noise());
                   }),
                   "input.step_noise.shape: expected [n, 8, 4] with n = 3, got [3, 3, 4]"},
        BadRequest{"StepsOfDefaultL", Input([](auto& i) {
                     i.set_num_inference_steps(3);
                     SetTensor({3, kSteps, kState}, i.mutable_step_noise());
                   }),
                   "input.step_noise.shape: expected [n, 3, 4] with n = 3, got [3, 8, 4]"},
        BadRequest{"StepsOfOtherSamples", Input([](auto& i) {
                     SetTensor({4, kSteps, kState}, i.mutable_step_noise());
                   }),
                   "got [4, 8, 4]"},
        BadRequest{"StepsHuge", Input([](auto& i) {
                     SetTensor({3, kSteps, kState}, i.mutable_step_noise());
                     i.mutable_step_noise()->set_shape(1, kHuge);
                   }),
                   "got [3, 4611686018427387904, 4]"},
        BadRequest{"StepsBytes", Input([](auto& i) {
                     SetTensor({3, kSteps, kState}, i.mutable_step_noise());
                     i.mutable_step_noise()->clear_data();
                   }),
                   "input.step_noise.data: expected 384 bytes"}),
    [](const auto& test) { return test.param.name; });

void AskForPrevious(v1::GenerateRequest& request) {
  request.mutable_options()->set_initial_guess(v1::INITIAL_GUESS_PREVIOUS);
}

INSTANTIATE_TEST_SUITE_P(
    InitialStates, RefusedGenerateTest,
    ::testing::Values(
        BadRequest{"Unasked",
                   [](auto& r) {
                     SetTensor({3, kSteps + 1, kState}, r.mutable_initial_states());
                   },
                   "initial_states: expected none unless options.initial_guess is PREVIOUS"},
        BadRequest{"Missing", &AskForPrevious,
                   "initial_states: expected a tensor [n, 9, 4] for PREVIOUS, got none"},
        BadRequest{"OfDefaultL",
                   [](auto& r) {
                     AskForPrevious(r);
                     r.mutable_input()->set_num_inference_steps(kLongest);
                     SetTensor({3, kSteps + 1, kState}, r.mutable_initial_states());
                   },
                   "initial_states.shape: expected [n, 13, 4] with n = 3, got [3, 9, 4]"},
        BadRequest{"WithoutTheLastState",
                   [](auto& r) {
                     AskForPrevious(r);
                     SetTensor({3, kSteps, kState}, r.mutable_initial_states());
                   },
                   "initial_states.shape: expected [n, 9, 4] with n = 3, got [3, 8, 4]"},
        BadRequest{"OfOtherSamples",
                   [](auto& r) {
                     AskForPrevious(r);
                     SetTensor({1, kSteps + 1, kState}, r.mutable_initial_states());
                   },
                   "got [1, 9, 4]"}),
    [](const auto& test) { return test.param.name; });

// Puts NaN and infinity into one tensor after the other.
TEST(GenerationRefusalsTest, ChecksThatEveryTensorIsFinite) {
  v1::GenerateRequest good = GoodRequestFor(WithConditioning());
  SetTensor({3, kState}, good.mutable_input()->mutable_initial_noise());
  SetTensor({3, kSteps, kState}, good.mutable_input()->mutable_step_noise());
  SetTensor({3, kSteps + 1, kState}, good.mutable_initial_states());
  AskForPrevious(good);
  const auto finite = Decode(good, WithConditioning()).value();
  EXPECT_TRUE(CheckFinite(finite).ok()) << CheckFinite(finite);

  struct Case {
    std::string field;
    v1::Tensor* (*tensor)(v1::GenerateRequest&);
  };
  for (const Case& each :
       {Case{"input.conditioning",
             [](auto& r) { return r.mutable_input()->mutable_conditioning(); }},
        Case{"input.initial_noise",
             [](auto& r) { return r.mutable_input()->mutable_initial_noise(); }},
        Case{"input.step_noise", [](auto& r) { return r.mutable_input()->mutable_step_noise(); }},
        Case{"initial_states", [](auto& r) { return r.mutable_initial_states(); }}}) {
    for (const float value : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
      v1::GenerateRequest request = good;
      SetValue(5, value, each.tensor(request));
      const auto input = Decode(request, WithConditioning());
      ASSERT_TRUE(input.ok()) << input.status();  // CheckFinite looks at values
      ExpectError(CheckFinite(*input), absl::StatusCode::kInvalidArgument, "at flat index 5");
      EXPECT_THAT(std::string(CheckFinite(*input).message()),
                  ::testing::StartsWith(each.field + ".data: expected finite values"));
    }
  }
}

}  // namespace
}  // namespace deeppcr::testing
