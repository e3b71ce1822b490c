// SPDX-License-Identifier: Apache-2.0
// Requests that a client may send to a diffusion model: Compare with `generation`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "tests/server/codec/generation_codec_fixture.h"
#include "tests/testing/expect_error.h"

namespace deeppcr::testing {
namespace {

using ::testing::ElementsAre;

v1::CompareRequest GoodCompare() {
  v1::CompareRequest request;
  request.set_model("m");
  request.mutable_generation()->set_num_samples(3);
  return request;
}

absl::StatusOr<CompareInput> Decode(const v1::CompareRequest& request,
                                    const ModelInfo& info = Plain()) {
  return DecodeCompare(request, info, kMessageLimit);
}

TEST(CompareGenerationTest, ReadsTheGeneration) {
  v1::CompareRequest request = GoodCompare();
  v1::GenerationInput& message = *request.mutable_generation();
  message.set_seed(9);
  message.set_first_sample(5);
  message.set_num_inference_steps(3);
  message.add_class_labels(2);
  SetTensor({3, 3, kState}, message.mutable_step_noise());
  request.add_options()->set_solver("picard");
  request.mutable_options(0)->set_initial_guess(v1::INITIAL_GUESS_COARSE);

  const auto input = Decode(request, WithClasses()).value();

  const SampleInputs item = input.request.Samples();
  EXPECT_EQ(item.num_samples, 3);
  EXPECT_EQ(item.seed, 9u);
  EXPECT_EQ(item.first_sample, 5u);
  EXPECT_THAT(item.labels, ElementsAre(2, 2, 2));
  EXPECT_EQ(item.step_noise.size(), 36u);
  EXPECT_EQ(input.request.num_steps, 3);
  ASSERT_EQ(input.rows.size(), 2u);
  EXPECT_EQ(input.rows[0].solver, "sequential");
  EXPECT_EQ(input.rows[1].solver, "picard");
  EXPECT_EQ(input.rows[1].initial_guess, InitialGuess::kCoarse);
}

TEST(CompareGenerationTest, WithoutGenerationItIsOneSample) {
  v1::CompareRequest request;
  request.set_model("m");

  const auto input = Decode(request).value();

  EXPECT_EQ(input.request.num_samples, 1);
  EXPECT_EQ(input.request.num_steps, kSteps);
  EXPECT_EQ(input.rows.size(), 3u);
}

struct BadCompare {
  std::string name;
  std::function<void(v1::CompareRequest&)> spoil;
  std::string message_part;
  ModelInfo (*info)() = &Plain;
};

class RefusedCompareGenerationTest : public ::testing::TestWithParam<BadCompare> {};

TEST_P(RefusedCompareGenerationTest, NamesTheField) {
  v1::CompareRequest request = GoodCompare();
  ASSERT_TRUE(Decode(request).ok());
  GetParam().spoil(request);

  ExpectError(Decode(request, GetParam().info()), absl::StatusCode::kInvalidArgument,
              GetParam().message_part);
}

// Compare calls the fields `generation.*`; it has no `input`.
INSTANTIATE_TEST_SUITE_P(
    Fields, RefusedCompareGenerationTest,
    ::testing::Values(
        BadCompare{"Inputs",
                   [](auto& r) {
                     SetTensor({3, 2}, r.mutable_inputs());
                   },
                   "inputs: expected none for a diffusion model: set generation, got a tensor"},
        BadCompare{"GenerationOfMlp",
                   [](auto& r) {
                     SetTensor({3, 2}, r.mutable_inputs());
                   },
                   "generation: expected none: the model is no diffusion model, got one", &Mlp},
        BadCompare{"NoInputsOfMlp", [](auto& r) { r.clear_generation(); },
                   "inputs: expected a tensor [n, 2], got none", &Mlp},
        BadCompare{"NumSamples", [](auto& r) { r.mutable_generation()->set_num_samples(17); },
                   "generation.num_samples: expected a number in [1, 16], got 17"},
        BadCompare{"NumSteps", [](auto& r) { r.mutable_generation()->set_num_inference_steps(5); },
                   "generation.num_inference_steps: expected one of 8, 3, 12"},
        BadCompare{"FirstSample",
                   [](auto& r) { r.mutable_generation()->set_first_sample(UINT64_MAX); },
                   "generation.first_sample: expected"},
        BadCompare{"NoLabels", [](auto&) {}, "generation.class_labels: expected 1 or",
                   &WithClasses},
        BadCompare{"NoConditioning", [](auto&) {}, "generation.conditioning: expected a tensor",
                   &WithConditioning},
        BadCompare{"InitialNoise",
                   [](auto& r) {
                     SetTensor({2, kState}, r.mutable_generation()->mutable_initial_noise());
                   },
                   "generation.initial_noise.shape: expected"},
        BadCompare{"StepNoise",
                   [](auto& r) {
                     SetTensor({3, 3, kState}, r.mutable_generation()->mutable_step_noise());
                   },
                   "generation.step_noise.shape: expected"},
        BadCompare{"RowSolver", [](auto& r) { r.add_options()->set_solver("quasi_newton"); },
                   "options[0].solver: expected one of sequential"},
        BadCompare{"RowPrevious",
                   [](auto& r) {
                     r.add_options()->set_solver("newton");
                     r.mutable_options(0)->set_initial_guess(v1::INITIAL_GUESS_PREVIOUS);
                   },
                   "options[0].initial_guess: expected CONSTANT, COARSE or CALIBRATED"},
        BadCompare{"RowInterval",
                   [](auto& r) {
                     r.add_options()->set_solver("newton");
                     r.mutable_options(0)->set_shooting_interval(kLongest + 1);
                   },
                   "options[0].shooting_interval: expected a number in [0, 8], got 13"}),
    [](const auto& test) { return test.param.name; });

TEST(CompareGenerationTest, NamesTheTensorThatIsNotFinite) {
  v1::CompareRequest request = GoodCompare();
  SetTensor({3, kState}, request.mutable_generation()->mutable_initial_noise());
  SetValue(7, std::nanf(""), request.mutable_generation()->mutable_initial_noise());
  const auto input = Decode(request).value();

  ExpectError(CheckFinite(input.request), absl::StatusCode::kInvalidArgument,
              "generation.initial_noise.data: expected finite values, got nan at flat index 7");
}

TEST(CompareGenerationTest, BoundsTheWork) {
  ModelInfo info = Plain();
  info.max_batch_size = 4096;
  v1::CompareRequest request = GoodCompare();
  request.mutable_generation()->set_num_samples(4096);
  request.set_repetitions(5);
  EXPECT_TRUE(Decode(request, info).ok()) << Decode(request, info).status();
  request.set_repetitions(6);

  ExpectError(Decode(request, info), absl::StatusCode::kInvalidArgument, "got 4096 * 6 * 3");
}

}  // namespace
}  // namespace deeppcr::testing
