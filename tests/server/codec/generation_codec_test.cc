// SPDX-License-Identifier: Apache-2.0
// Requests that a client may send to a diffusion model: Generate. generation_refusals_test.cc has
// the refused ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "tests/server/codec/generation_codec_fixture.h"
#include "tests/testing/expect_error.h"

namespace deeppcr::testing {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

TEST(GenerationCodecTest, AnEmptyRequestIsOneSampleWithEveryDefault) {
  const auto input = Decode(v1::GenerateRequest()).value();

  EXPECT_EQ(input.num_samples, 1);
  EXPECT_EQ(input.seed, 0u);
  EXPECT_EQ(input.first_sample, 0u);
  EXPECT_EQ(input.num_steps, kSteps);
  EXPECT_EQ(input.options.solver, "auto");
  EXPECT_EQ(input.options.initial_guess, InitialGuess::kFromPlan);
  const SampleInputs item = input.Samples();
  EXPECT_EQ(item.num_samples, 1);
  EXPECT_TRUE(item.inputs.empty());
  EXPECT_TRUE(item.labels.empty());
  EXPECT_TRUE(item.initial_noise.empty());
  EXPECT_TRUE(item.step_noise.empty());
  EXPECT_TRUE(item.initial_states.empty());
}

TEST(GenerationCodecTest, ReadsEveryField) {
  v1::GenerateRequest request = GoodGenerate();
  v1::GenerationInput& message = *request.mutable_input();
  message.set_seed(std::numeric_limits<uint64_t>::max());
  message.set_first_sample(77);
  message.set_num_inference_steps(3);
  for (const int32_t label : {4, 0, 2}) message.add_class_labels(label);
  SetTensor({3, kState}, message.mutable_initial_noise());
  SetTensor({3, 3, kState}, message.mutable_step_noise());
  SetTensor({3, 4, kState}, request.mutable_initial_states());
  request.mutable_options()->set_initial_guess(v1::INITIAL_GUESS_PREVIOUS);
  request.mutable_options()->set_solver("picard");

  const auto input = Decode(request, WithClasses()).value();

  EXPECT_EQ(input.num_steps, 3);
  EXPECT_EQ(input.options.solver, "picard");
  const SampleInputs item = input.Samples();
  EXPECT_EQ(item.num_samples, 3);
  EXPECT_EQ(item.seed, std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(item.first_sample, 77u);
  EXPECT_THAT(item.labels, ElementsAre(4, 0, 2));
  EXPECT_EQ(item.initial_noise.size(), 12u);
  EXPECT_EQ(item.initial_noise.back(), 11.5f);
  EXPECT_EQ(item.step_noise.size(), 36u);
  EXPECT_EQ(item.step_noise.back(), 35.5f);
  EXPECT_EQ(item.initial_states.size(), 48u);
}

TEST(GenerationCodecTest, OneLabelIsForAllSamples) {
  v1::GenerateRequest request = GoodGenerate(16);
  request.mutable_input()->add_class_labels(4);

  const auto input = Decode(request, WithClasses()).value();

  EXPECT_EQ(input.labels.size(), 16u);
  EXPECT_THAT(input.labels, Each(4));
}

TEST(GenerationCodecTest, ReadsConditioningInPlace) {
  v1::GenerateRequest request = GoodGenerate();
  SetTensor({3, 2}, request.mutable_input()->mutable_conditioning());

  const auto input = Decode(request, WithConditioning()).value();

  EXPECT_THAT(input.Samples().inputs, ElementsAre(0.5f, 1.5f, 2.5f, 3.5f, 4.5f, 5.5f));
  EXPECT_EQ(reinterpret_cast<const char*>(input.inputs.values.data()),
            request.input().conditioning().data().data());
}

TEST(GenerationCodecTest, EachNoiseMayComeWithoutTheOther) {
  v1::GenerateRequest initial = GoodGenerate(), steps = GoodGenerate();
  SetTensor({3, kState}, initial.mutable_input()->mutable_initial_noise());
  SetTensor({3, kSteps, kState}, steps.mutable_input()->mutable_step_noise());

  const auto with_initial = Decode(initial).value(), with_steps = Decode(steps).value();

  EXPECT_EQ(with_initial.initial_noise.values.size(), 12u);
  EXPECT_TRUE(with_initial.step_noise.values.empty());
  EXPECT_TRUE(with_steps.initial_noise.values.empty());
  EXPECT_EQ(with_steps.step_noise.values.size(), 96u);
}

TEST(GenerationCodecTest, EveryListedNumberOfStepsMayBeAskedFor) {
  for (const int32_t steps : {3, kSteps, kLongest}) {
    v1::GenerateRequest request = GoodGenerate();
    request.mutable_input()->set_num_inference_steps(steps);
    const auto input = Decode(request).value();
    EXPECT_EQ(input.num_steps, steps);
  }
}

TEST(GenerationCodecTest, ShootingIntervalsGoUpToTheLOfTheRequest) {
  for (const int32_t steps : {0, 3, kLongest}) {
    const int32_t longest = steps == 0 ? kSteps : steps;
    v1::GenerateRequest request = GoodGenerate();
    request.mutable_input()->set_num_inference_steps(steps);
    request.mutable_options()->set_shooting_interval(longest);
    const auto input = Decode(request).value();
    EXPECT_EQ(input.options.shooting_interval, longest);

    request.mutable_options()->set_shooting_interval(longest + 1);
    ExpectError(Decode(request), absl::StatusCode::kInvalidArgument,
                "options.shooting_interval: expected a number in [0, " + std::to_string(longest) +
                    "], got " + std::to_string(longest + 1));
  }
}

TEST(GenerationCodecTest, SampleIndicesReachTheEndOfTheirRange) {
  constexpr uint64_t kEnd = std::numeric_limits<uint64_t>::max();
  for (const int32_t n : {1, 3, 16}) {
    v1::GenerateRequest request = GoodGenerate(n);
    request.mutable_input()->set_first_sample(kEnd - static_cast<uint64_t>(n));
    const auto input = Decode(request).value();
    EXPECT_EQ(input.first_sample, kEnd - static_cast<uint64_t>(n));
    for (const uint64_t beyond : {kEnd - static_cast<uint64_t>(n) + 1, kEnd}) {
      request.mutable_input()->set_first_sample(beyond);
      ExpectError(Decode(request), absl::StatusCode::kInvalidArgument,
                  "input.first_sample: expected first_sample + num_samples below 2^64, got " +
                      std::to_string(beyond));
    }
  }
}

TEST(GenerationCodecTest, CoarseIsForDiffusionModels) {
  v1::GenerateRequest request = GoodGenerate();
  request.mutable_options()->set_initial_guess(v1::INITIAL_GUESS_COARSE);
  const auto input = Decode(request).value();
  EXPECT_EQ(input.options.initial_guess, InitialGuess::kCoarse);

  v1::ForwardRequest forward;
  SetTensor({1, 2}, forward.mutable_inputs());
  forward.mutable_options()->set_initial_guess(v1::INITIAL_GUESS_COARSE);
  ExpectError(DecodeForward(forward, Mlp(), kMessageLimit), absl::StatusCode::kInvalidArgument,
              "options.initial_guess: expected CONSTANT, CALIBRATED or PREVIOUS, as this is no "
              "diffusion model, got COARSE");
}

TEST(GenerationCodecTest, TakesAnyNumberOfStepsThatTheModelMakes) {
  ModelInfo info = Plain();
  info.max_inference_steps = 100;
  for (const int32_t steps : {1, 5, kLongest, 100}) {
    v1::GenerateRequest request = GoodGenerate();
    request.mutable_input()->set_num_inference_steps(steps);
    request.mutable_options()->set_shooting_interval(steps);
    SetTensor({3, steps, kState}, request.mutable_input()->mutable_step_noise());
    const auto input = Decode(request, info).value();
    EXPECT_EQ(input.num_steps, steps);
  }
  for (const int32_t steps : {-1, 101, INT32_MAX}) {
    v1::GenerateRequest request = GoodGenerate();
    request.mutable_input()->set_num_inference_steps(steps);
    ExpectError(
        Decode(request, info), absl::StatusCode::kInvalidArgument,
        "input.num_inference_steps: expected an integer in [0, 100], or one of 8, 3, 12, got ");
  }
}

TEST(GenerationCodecTest, ErrorsAboutStepsNameTheFieldOfTheProtocol) {
  const absl::Status status = absl::InvalidArgumentError("num_inference_steps: expected more");
  const SystemKey steps(20);
  EXPECT_EQ(AboutSteps(kV1Fields, steps, status).message(),
            "input.num_inference_steps: expected more");
  EXPECT_EQ(AboutSteps(kV2Fields, steps, absl::InvalidArgumentError("betas: too small")).message(),
            "parameters.num_inference_steps: betas: too small");
  EXPECT_EQ(
      AboutSteps(kSourceFields, steps, absl::ResourceExhaustedError("num_inference_steps: full")),
      absl::ResourceExhaustedError("generation.num_inference_steps: full"));
  const absl::Status gone = absl::UnavailableError("the device has failed");
  EXPECT_EQ(AboutSteps(kV1Fields, steps, gone), gone);

  const absl::Status full = absl::ResourceExhaustedError("20 steps: full");
  SystemKey known = steps, guided = steps, later = steps;
  known.known = guided.guided = true;
  later.first_step = 3;
  EXPECT_EQ(AboutSteps(kV1Fields, known, full).message(), "input.known_elements: 20 steps: full");
  EXPECT_EQ(AboutSteps(kV2Fields, known, full).message(), "known_elements: 20 steps: full");
  EXPECT_EQ(
      AboutSteps(kV2Fields, known, absl::InvalidArgumentError("known_elements: none")).message(),
      "known_elements: none");
  // A schedule that has no such steps has none with known elements either.
  EXPECT_EQ(AboutSteps(kV1Fields, known, absl::InvalidArgumentError("step 0: inf")).message(),
            "input.num_inference_steps: step 0: inf");
  EXPECT_EQ(AboutSteps(kV1Fields, guided, full).message(), "input.guidance_scale: 20 steps: full");
  EXPECT_EQ(AboutSteps(kV2Fields, later, full).message(), "parameters.first_step: 20 steps: full");
}

TEST(GenerationCodecTest, EachFamilyHasItsMethod) {
  v1::ForwardRequest forward;
  SetTensor({1, 2}, forward.mutable_inputs());
  ExpectError(DecodeForward(forward, Plain(), kMessageLimit), absl::StatusCode::kInvalidArgument,
              "model: expected a model that maps inputs to outputs for Forward, got a diffusion "
              "model: use Generate");
  ExpectError(Decode(GoodGenerate(), Mlp()), absl::StatusCode::kInvalidArgument,
              "model: expected a diffusion model for Generate, got one of type mlp: use Forward");
}

TEST(GenerationCodecTest, TheReplyLimitCountsTheTrajectoryOfTheStepsAskedFor) {
  v1::GenerateRequest request = GoodGenerate(16);
  const int64_t without = Decode(request)->reply_bytes;
  request.mutable_options()->set_return_trajectory(true);
  for (const int32_t steps : {0, 3, kSteps, kLongest}) {
    request.mutable_input()->set_num_inference_steps(steps);
    const int64_t states = (steps == 0 ? kSteps : steps) + 1;
    const int64_t bytes = without + 16 * states * kState * 4;
    ASSERT_TRUE(Decode(request).ok());
    EXPECT_EQ(Decode(request)->reply_bytes, bytes);
    EXPECT_TRUE(DecodeGenerate(request, Plain(), bytes).ok());
    ExpectError(DecodeGenerate(request, Plain(), bytes - 1), absl::StatusCode::kResourceExhausted,
                "the reply would have " + std::to_string(bytes) + " bytes; the limit is " +
                    std::to_string(bytes - 1));
  }
}

TEST(GenerationCodecTest, RepliesBeyondAllLimitsAreRefusedWithoutOverflow) {
  ModelInfo info = Plain();
  v1::GenerateRequest request = GoodGenerate();
  request.mutable_options()->set_return_trajectory(true);
  for (const int64_t dim :
       {int64_t{1} << 20, int64_t{1} << 40, int64_t{1} << 60, int64_t{1} << 62}) {
    info.state_dim = dim;
    EXPECT_FALSE(Decode(request, info).ok()) << dim;
  }
  info = Plain();
  info.output_dim = std::numeric_limits<int64_t>::max();
  EXPECT_FALSE(Decode(request, info).ok());
}

// Every part of this reply is as long as it can be.
TEST(GenerationCodecTest, TheBoundHoldsForTheLongestReply) {
  constexpr int32_t kMany = std::numeric_limits<int32_t>::max();
  constexpr int64_t kVeryMany = std::numeric_limits<int64_t>::max();
  constexpr int32_t kSamples = 500;  // so many that the slack of the envelope does not cover them
  ModelInfo info = Plain();
  info.max_batch_size = kSamples;
  v1::GenerateRequest request = GoodGenerate(kSamples);
  request.mutable_options()->set_return_trajectory(true);
  v1::StreamGenerateResponse event;
  v1::GenerateResponse& reply = *event.mutable_result();
  reply.set_request_id(std::string(128, 'a'));
  SetTensor({kSamples, 3}, reply.mutable_samples());
  SetTensor({kSamples, kState}, reply.mutable_latents());
  SetTensor({kSamples, kSteps + 1, kState}, reply.mutable_trajectory());
  v1::SolveReport& report = *reply.mutable_report();
  report.set_device(std::string(64, 'd'));
  report.set_plan_id(std::string(16, 'p'));
  report.set_initial_guess("calibrated");
  report.set_model_version(kVeryMany);
  report.set_num_steps(kVeryMany);
  report.set_batch_samples(kMany);
  report.set_shooting_interval(kMany);
  report.set_queue_seconds(0.1);
  report.set_encode_seconds(0.1);
  report.set_solve_seconds(0.1);
  report.set_decode_seconds(0.1);
  for (int i = 0; i < kSamples; ++i) {
    v1::SampleReport& sample = *report.add_samples();
    sample.set_solver("quasi_newton");
    sample.set_termination("precision_limited");
    sample.set_converged(true);
    sample.set_fallback(true);
    sample.set_iterations(kMany);
    sample.set_chord_corrections(kMany);
    sample.set_warm_sweeps(kMany);
    sample.set_dependent_stages(kVeryMany);
    sample.set_column_passes(kVeryMany);
    sample.set_error_estimate(0.1);
    sample.set_output_error_estimate(0.1);
    sample.set_rounding_estimate(0.1);
    sample.set_update(0.1);
    v1::Attempt& attempt = *sample.mutable_attempt();
    attempt.set_solver("quasi_newton");
    attempt.set_termination("precision_limited");
    attempt.set_iterations(kMany);
    attempt.set_chord_corrections(kMany);
    attempt.set_warm_sweeps(kMany);
    attempt.set_update(0.1);
    attempt.set_error_estimate(0.1);
    attempt.set_rounding_estimate(0.1);
  }

  EXPECT_GE(Decode(request, info)->reply_bytes, static_cast<int64_t>(event.ByteSizeLong()));
}

}  // namespace
}  // namespace deeppcr::testing
