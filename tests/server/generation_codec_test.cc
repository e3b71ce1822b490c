// SPDX-License-Identifier: Apache-2.0
// What a client may say to a diffusion model: Generate.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "tests/server/generation_codec_fixture.h"
#include "tests/testing/expect_error.h"

namespace deeppcr {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using testing::ExpectError;

v1::GenerateRequest GoodRequest(int32_t num_samples = 3) {
  v1::GenerateRequest request;
  request.set_model("m");
  request.mutable_input()->set_num_samples(num_samples);
  return request;
}

absl::StatusOr<SolveInput> Decode(const v1::GenerateRequest& request,
                                  const ModelInfo& info = Plain()) {
  return DecodeGenerate(request, info, kMessageLimit);
}

TEST(GenerationCodecTest, AnEmptyRequestIsOneSampleWithEveryDefault) {
  const auto input = Decode(v1::GenerateRequest());

  ASSERT_TRUE(input.ok()) << input.status();
  EXPECT_EQ(input->num_samples, 1);
  EXPECT_EQ(input->seed, 0u);
  EXPECT_EQ(input->first_sample, 0u);
  EXPECT_EQ(input->num_steps, kSteps);
  EXPECT_EQ(input->options.num_inference_steps, 0);  // the engine's default
  EXPECT_EQ(input->options.solver, "auto");
  EXPECT_EQ(input->options.initial_guess, InitialGuess::kFromPlan);
  const RunItem item = input->Item();
  EXPECT_EQ(item.num_samples, 1);
  EXPECT_TRUE(item.inputs.empty());
  EXPECT_TRUE(item.labels.empty());
  EXPECT_TRUE(item.initial_noise.empty());
  EXPECT_TRUE(item.step_noise.empty());
  EXPECT_TRUE(item.initial_states.empty());
}

TEST(GenerationCodecTest, ReadsEveryField) {
  v1::GenerateRequest request = GoodRequest();
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

  const auto input = Decode(request, WithClasses());

  ASSERT_TRUE(input.ok()) << input.status();
  EXPECT_EQ(input->num_steps, 3);
  EXPECT_EQ(input->options.num_inference_steps, 3);
  EXPECT_EQ(input->options.solver, "picard");
  const RunItem item = input->Item();
  EXPECT_EQ(item.num_samples, 3);
  EXPECT_EQ(item.seed, std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(item.first_sample, 77u);
  EXPECT_THAT(item.labels, ElementsAre(4, 0, 2));
  EXPECT_EQ(item.initial_noise.size(), 12u);
  EXPECT_EQ(item.initial_noise.back(), 11.5f);
  EXPECT_EQ(item.step_noise.size(), 36u);
  EXPECT_EQ(item.step_noise.back(), 35.5f);
  EXPECT_EQ(item.initial_states.size(), 48u);
  EXPECT_GE(input->request_bytes, 4 * (12 + 36 + 48));
}

TEST(GenerationCodecTest, OneLabelIsForAllSamples) {
  v1::GenerateRequest request = GoodRequest(16);
  request.mutable_input()->add_class_labels(4);

  const auto input = Decode(request, WithClasses());

  ASSERT_TRUE(input.ok()) << input.status();
  EXPECT_EQ(input->labels.size(), 16u);
  EXPECT_THAT(input->labels, Each(4));
}

TEST(GenerationCodecTest, ReadsConditioningInPlace) {
  v1::GenerateRequest request = GoodRequest();
  SetTensor({3, 2}, request.mutable_input()->mutable_conditioning());

  const auto input = Decode(request, WithConditioning());

  ASSERT_TRUE(input.ok()) << input.status();
  EXPECT_THAT(input->Item().inputs, ElementsAre(0.5f, 1.5f, 2.5f, 3.5f, 4.5f, 5.5f));
  EXPECT_EQ(reinterpret_cast<const char*>(input->inputs.values.data()),
            request.input().conditioning().data().data());
}

TEST(GenerationCodecTest, EachNoiseMayComeWithoutTheOther) {
  v1::GenerateRequest initial = GoodRequest(), steps = GoodRequest();
  SetTensor({3, kState}, initial.mutable_input()->mutable_initial_noise());
  SetTensor({3, kSteps, kState}, steps.mutable_input()->mutable_step_noise());

  const auto with_initial = Decode(initial), with_steps = Decode(steps);

  ASSERT_TRUE(with_initial.ok()) << with_initial.status();
  EXPECT_EQ(with_initial->initial_noise.values.size(), 12u);
  EXPECT_TRUE(with_initial->step_noise.values.empty());
  ASSERT_TRUE(with_steps.ok()) << with_steps.status();
  EXPECT_TRUE(with_steps->initial_noise.values.empty());
  EXPECT_EQ(with_steps->step_noise.values.size(), 96u);
}

TEST(GenerationCodecTest, EveryListedNumberOfStepsMayBeAskedFor) {
  for (const int32_t steps : {3, kSteps, kLongest}) {
    v1::GenerateRequest request = GoodRequest();
    request.mutable_input()->set_num_inference_steps(steps);
    const auto input = Decode(request);
    ASSERT_TRUE(input.ok()) << input.status();
    EXPECT_EQ(input->num_steps, steps);
    EXPECT_EQ(input->options.num_inference_steps, steps);
  }
}

// Whether it fits the L of the request is for Resolve to say.
TEST(GenerationCodecTest, ShootingIntervalsGoUpToTheLargestL) {
  v1::GenerateRequest request = GoodRequest();
  request.mutable_options()->set_shooting_interval(kLongest);
  const auto input = Decode(request);
  ASSERT_TRUE(input.ok()) << input.status();
  EXPECT_EQ(input->options.shooting_interval, kLongest);

  request.mutable_options()->set_shooting_interval(kLongest + 1);
  ExpectError(Decode(request), absl::StatusCode::kInvalidArgument,
              "options.shooting_interval: expected a number in [0, 12], got 13");
}

TEST(GenerationCodecTest, SampleIndicesReachTheEndOfTheirRange) {
  constexpr uint64_t kEnd = std::numeric_limits<uint64_t>::max();
  for (const int32_t n : {1, 3, 16}) {
    v1::GenerateRequest request = GoodRequest(n);
    request.mutable_input()->set_first_sample(kEnd - static_cast<uint64_t>(n));
    const auto input = Decode(request);
    ASSERT_TRUE(input.ok()) << input.status();
    EXPECT_EQ(input->first_sample, kEnd - static_cast<uint64_t>(n));
    for (const uint64_t beyond : {kEnd - static_cast<uint64_t>(n) + 1, kEnd}) {
      request.mutable_input()->set_first_sample(beyond);
      ExpectError(Decode(request), absl::StatusCode::kInvalidArgument,
                  "input.first_sample: expected first_sample + num_samples below 2^64, got " +
                      std::to_string(beyond));
    }
  }
}

TEST(GenerationCodecTest, CoarseIsForDiffusionModels) {
  v1::GenerateRequest request = GoodRequest();
  request.mutable_options()->set_initial_guess(v1::INITIAL_GUESS_COARSE);
  const auto input = Decode(request);
  ASSERT_TRUE(input.ok()) << input.status();
  EXPECT_EQ(input->options.initial_guess, InitialGuess::kCoarse);

  v1::ForwardRequest forward;
  SetTensor({1, 2}, forward.mutable_inputs());
  forward.mutable_options()->set_initial_guess(v1::INITIAL_GUESS_COARSE);
  ExpectError(DecodeForward(forward, Mlp(), kMessageLimit), absl::StatusCode::kInvalidArgument,
              "options.initial_guess: expected CONSTANT, CALIBRATED or PREVIOUS for a model that "
              "is no diffusion, got COARSE");
}

TEST(GenerationCodecTest, EachFamilyHasItsMethod) {
  v1::ForwardRequest forward;
  SetTensor({1, 2}, forward.mutable_inputs());
  ExpectError(DecodeForward(forward, Plain(), kMessageLimit), absl::StatusCode::kInvalidArgument,
              "model: expected a model that maps inputs to outputs for Forward, got a diffusion "
              "model: use Generate");
  ExpectError(Decode(GoodRequest(), Mlp()), absl::StatusCode::kInvalidArgument,
              "model: expected a diffusion model for Generate, got one of type mlp: use Forward");
}

struct BadRequest {
  std::string name;
  std::function<void(v1::GenerateRequest&)> spoil;
  std::string message_part;
  ModelInfo (*info)() = &Plain;
};

class RefusedGenerateTest : public ::testing::TestWithParam<BadRequest> {};

// n = 3, with whatever the model needs.
v1::GenerateRequest GoodRequestFor(const ModelInfo& info) {
  v1::GenerateRequest request = GoodRequest();
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

// Sets one field of the input.
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
        BadRequest{"RequestId", [](auto& r) { r.set_request_id("a\nb"); }, "request_id: expected"},
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

// One tensor after the other, every value that is no number.
TEST(GenerationCodecTest, ChecksThatEveryTensorIsFinite) {
  v1::GenerateRequest good = GoodRequestFor(WithConditioning());
  SetTensor({3, kState}, good.mutable_input()->mutable_initial_noise());
  SetTensor({3, kSteps, kState}, good.mutable_input()->mutable_step_noise());
  SetTensor({3, kSteps + 1, kState}, good.mutable_initial_states());
  AskForPrevious(good);
  const auto finite = Decode(good, WithConditioning());
  ASSERT_TRUE(finite.ok()) << finite.status();
  EXPECT_TRUE(CheckFinite(*finite).ok()) << CheckFinite(*finite);

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
      ASSERT_TRUE(input.ok()) << input.status();  // values are for CheckFinite
      ExpectError(CheckFinite(*input), absl::StatusCode::kInvalidArgument, "at flat index 5");
      EXPECT_THAT(std::string(CheckFinite(*input).message()),
                  ::testing::StartsWith(each.field + ".data: expected finite values"));
    }
  }
}

TEST(GenerationCodecTest, TheReplyLimitCountsTheTrajectoryOfTheStepsAskedFor) {
  v1::GenerateRequest request = GoodRequest(16);
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
  v1::GenerateRequest request = GoodRequest();
  request.mutable_options()->set_return_trajectory(true);
  for (const int64_t dim : {int64_t{1} << 20, int64_t{1} << 40, int64_t{1} << 60, kHuge}) {
    info.state_dim = dim;
    EXPECT_FALSE(Decode(request, info).ok()) << dim;
  }
  info = Plain();
  info.output_dim = std::numeric_limits<int64_t>::max();
  EXPECT_FALSE(Decode(request, info).ok());
}

// A reply whose every part is as long as it can be.
TEST(GenerationCodecTest, TheBoundHoldsForTheLongestReply) {
  constexpr int32_t kMany = std::numeric_limits<int32_t>::max();
  constexpr int64_t kVeryMany = std::numeric_limits<int64_t>::max();
  constexpr int32_t kSamples = 500;  // the slack of the envelope is not theirs
  ModelInfo info = Plain();
  info.max_batch_size = kSamples;
  v1::GenerateRequest request = GoodRequest(kSamples);
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
  }

  EXPECT_GE(Decode(request, info)->reply_bytes, static_cast<int64_t>(event.ByteSizeLong()));
}

}  // namespace
}  // namespace deeppcr
