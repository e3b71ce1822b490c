// SPDX-License-Identifier: Apache-2.0
// Guidance, noise, beginnings, known elements and bounds, from the real server, by both protocols.
#include <algorithm>

#include "inference/grpc_service.grpc.pb.h"
#include "tests/integration/generation_fixture.h"
#include "tests/testing/difference.h"
#include "tests/testing/larger.h"

namespace deeppcr {
namespace {

using testing::Difference;
using ::testing::HasSubstr;
using testing::Larger;

class GenerateControlsTest : public GenerationFixture {
 protected:
  static void SetUpTestSuite() {
    GenerationFixture::SetUpTestSuite();
    // Clips nothing, so that noise has an effect to the end.
    WriteDiffusionModel(repository_->File("open/1"), DdpmConfig(), "DDPMScheduler");
    std::ofstream(repository_->File("open/1/scheduler_config.json"))
        << R"({"_class_name": "DDPMScheduler", "clip_sample": false})";
    with_gradients_ = StartServer({"--gradients", "--shadow_rate=1"});
  }
  static void TearDownTestSuite() {
    with_gradients_.reset();
    GenerationFixture::TearDownTestSuite();
  }
  void SetUp() override {
    GenerationFixture::SetUp();
    ASSERT_NE(with_gradients_, nullptr);
    gradients_ = Connect(with_gradients_->address());
  }

  v1::GenerateResponse Answer(const v1::GenerateRequest& request) {
    v1::GenerateResponse response;
    const grpc::Status status = Call(*stub_, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }
  std::vector<float> Samples(const v1::GenerateRequest& request) {
    return Values(Answer(request).samples());
  }

  static std::unique_ptr<testing::ServerProcess> with_gradients_;
  std::unique_ptr<v1::DeepPcr::Stub> gradients_;
};
std::unique_ptr<testing::ServerProcess> GenerateControlsTest::with_gradients_;

// A request that uses all of them, for each kind of condition.
v1::GenerateRequest Everything(v1::GenerateRequest request, int64_t dim) {
  v1::GenerationInput& input = *request.mutable_input();
  input.set_guidance_scale(2.5);
  input.set_temperature(0.75);
  input.set_noise_clip(1.5);
  input.set_initial_noise_clip(1.25);
  input.set_initial_temperature(0.9);
  input.add_known_elements(static_cast<int32_t>(dim - 1));
  SetTensor({1, 1}, {0.375F}, input.mutable_known_values());
  input.add_lower_bounds(-0.5);
  input.add_upper_bounds(0.625);
  return request;
}

TEST_F(GenerateControlsTest, GuidanceMovesFromTheNullConditionThroughTheCondition) {
  for (const bool classes : {true, false}) {
    v1::GenerateRequest request =
        classes ? DdpmRequest(2, "sequential") : DdimRequest(2, "sequential");
    const std::vector<float> plain = Samples(request);
    v1::GenerateRequest null = request;
    if (classes) {
      null.mutable_input()->clear_class_labels();
      null.mutable_input()->add_class_labels(kClasses - 1);
    } else {
      SetTensor({1, kConditioning}, std::vector<float>(kConditioning),
                null.mutable_input()->mutable_conditioning());
    }
    const std::vector<float> without = Samples(null);
    ASSERT_GT(Difference(plain, without), 1e-3);
    request.mutable_input()->set_guidance_scale(1);
    EXPECT_EQ(Samples(request), plain) << "the very bits: no guidance";
    request.mutable_input()->set_guidance_scale(0);
    EXPECT_LE(Difference(Samples(request), without), 1e-4);
    request.mutable_input()->set_guidance_scale(1.0001);
    EXPECT_LE(Difference(Samples(request), plain), 1e-2);
    request.mutable_input()->set_guidance_scale(3);
    EXPECT_GT(Difference(Samples(request), plain), 1e-3);
  }
}

TEST_F(GenerateControlsTest, TheRequestsNullConditionTakesTheModelsPlace) {
  v1::GenerateRequest request = DdimRequest(2, "sequential");
  request.mutable_input()->set_guidance_scale(0);
  SetTensor({1, kConditioning}, {1, 2, 3, 4, 5},
            request.mutable_input()->mutable_null_conditioning());
  v1::GenerateRequest plain = DdimRequest(2, "sequential");
  SetTensor({1, kConditioning}, {1, 2, 3, 4, 5}, plain.mutable_input()->mutable_conditioning());
  EXPECT_LE(Difference(Samples(request), Samples(plain)), 1e-4);
}

// Samples depend on the solver within the tolerance, and not at all on the batch, on the protocol,
// or on who else asks.
TEST_F(GenerateControlsTest, SamplesAreThoseOfEverySolverAndEverySplit) {
  for (const bool classes : {true, false}) {
    const int64_t dim = classes ? kState : 3;
    const auto with = [&](const std::string& solver) {
      v1::GenerateRequest request =
          Everything(classes ? DdpmRequest(3, solver) : DdimRequest(3, solver), dim);
      if (solver != "sequential") request.mutable_options()->set_shooting_interval(2);
      return request;
    };
    const std::vector<float> sequential = Samples(with("sequential"));
    EXPECT_EQ(Samples(with("sequential")), sequential) << "the same request, the same bits";
    const v1::GenerateResponse newton = Answer(with("newton"));
    for (const auto& report : newton.report().samples()) {
      EXPECT_EQ(report.termination(), "converged");
      EXPECT_FALSE(report.fallback());
    }
    EXPECT_LE(Difference(Values(newton.samples()), sequential), 1e-3);
    const std::vector<float> together = Values(newton.samples());
    const int64_t out = std::ssize(together) / 3;
    for (int32_t i = 0; i < 3; ++i) {
      v1::GenerateRequest one = with("newton");
      v1::GenerationInput& input = *one.mutable_input();
      input.set_num_samples(1);
      input.set_first_sample(input.first_sample() + static_cast<uint64_t>(i));
      if (classes) {
        const int32_t label = input.class_labels(i);
        input.clear_class_labels();
        input.add_class_labels(label);
      } else {
        const std::vector<float> all = Values(input.conditioning());
        SetTensor({1, kConditioning},
                  {all.begin() + i * kConditioning, all.begin() + (i + 1) * kConditioning},
                  input.mutable_conditioning());
      }
      const std::vector<float> alone = Samples(one);
      EXPECT_TRUE(std::equal(alone.begin(), alone.end(), together.begin() + i * out)) << i;
    }
  }
}

TEST_F(GenerateControlsTest, KnownElementsStayAndBoundsHold) {
  v1::GenerateRequest request = Everything(DdimRequest(3, "newton"), 3);
  request.mutable_options()->set_return_trajectory(true);
  const v1::GenerateResponse response = Answer(request);
  const std::vector<float> samples = Values(response.samples());
  for (size_t i = 0; i < samples.size(); ++i) {
    EXPECT_GE(samples[i], -0.5F);
    EXPECT_LE(samples[i], 0.625F);
    EXPECT_TRUE(i % 3 != 2 || samples[i] == 0.375F);
  }
  const std::vector<float> states = Values(response.trajectory());
  for (size_t l = 1; l <= 16; ++l) EXPECT_EQ(states[l * 3 + 2], 0.375F) << "step " << l;
}

TEST_F(GenerateControlsTest, OneConditionIsForAllCandidates) {
  v1::GenerateRequest each = DdimRequest(3, "sequential");
  const std::vector<float> row = {0.5F, -1, 2, 0, 1};
  std::vector<float> rows;
  for (int i = 0; i < 3; ++i) rows.insert(rows.end(), row.begin(), row.end());
  SetTensor({3, kConditioning}, rows, each.mutable_input()->mutable_conditioning());
  v1::GenerateRequest one = each;
  SetTensor({1, kConditioning}, row, one.mutable_input()->mutable_conditioning());
  EXPECT_EQ(Samples(one), Samples(each));
}

// A process that begins at a state of another with the same seed ends where that one does.
TEST_F(GenerateControlsTest, ABeginningContinuesItsProcess) {
  constexpr int64_t kFirst = 9;
  v1::GenerateRequest whole = DdpmRequest(2, "sequential");
  whole.mutable_options()->set_return_trajectory(true);
  const v1::GenerateResponse all = Answer(whole);
  const std::vector<float> states = Values(all.trajectory());
  std::vector<float> begin;
  for (int64_t i = 0; i < 2; ++i) {
    const auto at = states.begin() + (i * (kSteps + 1) + kFirst) * kState;
    begin.insert(begin.end(), at, at + kState);
  }
  v1::GenerateRequest rest = whole;
  rest.mutable_input()->set_first_step(kFirst);
  SetTensor({2, kState}, begin, rest.mutable_input()->mutable_initial_samples());
  const v1::GenerateResponse end = Answer(rest);
  EXPECT_EQ(end.report().num_steps(), kSteps - kFirst);
  EXPECT_EQ(Values(end.trajectory()).size(), 2 * (kSteps - kFirst + 1) * kState);
  EXPECT_LE(Difference(Values(end.samples()), Values(all.samples())), 1e-5);
}

TEST_F(GenerateControlsTest, TemperatureZeroIsNoNoise) {
  v1::GenerateRequest request = DdpmRequest(2, "sequential");
  request.mutable_input()->set_temperature(0);
  v1::GenerateRequest given = DdpmRequest(2, "sequential");
  SetTensor({2, kSteps, kState}, std::vector<float>(2 * kSteps * kState),
            given.mutable_input()->mutable_step_noise());
  EXPECT_EQ(Samples(request), Samples(given));
  EXPECT_GT(Difference(Samples(request), Samples(DdpmRequest(2, "sequential"))), 1e-3);
}

TEST_F(GenerateControlsTest, V2SaysTheSame) {
  const auto stub = inference::GRPCInferenceService::NewStub(
      grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials()));
  const v1::GenerateRequest same = Everything(DdimRequest(3, "newton"), 3);
  inference::ModelInferRequest request;
  request.set_model_name("ddim");
  const auto add = [&](const char* name, const char* type, const auto& shape,
                       const std::string& bytes) {
    auto* input = request.add_inputs();
    input->set_name(name);
    input->set_datatype(type);
    for (const int64_t extent : shape) input->add_shape(extent);
    request.add_raw_input_contents(bytes);
  };
  const v1::GenerationInput& input = same.input();
  add("conditioning", "FP32", input.conditioning().shape(), input.conditioning().data());
  const int32_t known = 2;
  add("known_elements", "INT32", std::vector<int64_t>{1},
      std::string(reinterpret_cast<const char*>(&known), sizeof(known)));
  add("known_values", "FP32", std::vector<int64_t>{1, 1}, input.known_values().data());
  auto& parameters = *request.mutable_parameters();
  parameters["solver"].set_string_param("newton");
  parameters["guidance_scale"].set_double_param(2.5);
  parameters["temperature"].set_double_param(0.75);
  parameters["initial_temperature"].set_double_param(0.9);
  parameters["noise_clip"].set_double_param(1.5);
  parameters["initial_noise_clip"].set_double_param(1.25);
  parameters["lower_bounds"].set_double_param(-0.5);
  parameters["upper_bounds"].set_double_param(0.625);
  inference::ModelInferResponse response;
  grpc::ClientContext context;
  const grpc::Status status = stub->ModelInfer(&context, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_GE(response.raw_output_contents_size(), 1);
  EXPECT_EQ(response.raw_output_contents(0), Answer(same).samples().data());
}

// The gradient of a guided process is the derivative of its samples, by the initial noise and by
// the condition, at a point that no clipped sample is near; its states may stay on the server, and
// pairs of it are right.
TEST_F(GenerateControlsTest, GradientsAreThoseOfTheGuidedProcess) {
  v1::GenerateRequest forward = DdimRequest(1, "sequential");
  v1::GenerationInput& input = *forward.mutable_input();
  input.set_guidance_scale(2);
  SetTensor({1, 3}, {-1.25F, 0.375F, 0.875F}, input.mutable_initial_noise());
  const auto sum_at = [&](const v1::GenerateRequest& request) {
    double sum = 0;
    for (const float value : Samples(request)) sum += value;
    return sum;
  };
  v1::GradientRequest request;
  request.set_model("ddim");
  *request.mutable_generation() = input;
  *request.mutable_options() = forward.options();
  SetTensor({1, 3}, {1, 1, 1}, request.mutable_cotangents());
  request.add_gradients(v1::GRADIENT_BY_INPUTS);
  request.add_gradients(v1::GRADIENT_BY_INITIAL_STATE);
  request.set_estimate_error(true);
  request.mutable_options()->set_keep_trajectory(true);
  v1::GradientResponse response;
  grpc::ClientContext context;
  const grpc::Status status = gradients_->Gradient(&context, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.input_gradients().shape(1), kConditioning) << "no part of null or scale";
  const auto check = [&](const std::vector<float>& gradient, v1::Tensor* tensor) {
    const std::vector<float> before = Values(*tensor);
    ASSERT_EQ(gradient.size(), before.size());
    for (size_t i = 0; i < before.size(); ++i) {
      const auto at = [&](float by) {
        std::vector<float> values = before;
        values[i] += by;
        SetTensor({1, std::ssize(values)}, values, tensor);
        return sum_at(forward);
      };
      const double high = at(1.0F / 1024), low = at(-1.0F / 1024);
      EXPECT_NEAR(gradient[i], (high - low) * 512, 2e-2 * Larger(1, std::fabs(gradient[i]))) << i;
    }
    SetTensor({1, std::ssize(before)}, before, tensor);
  };
  check(Values(response.input_gradients()), input.mutable_conditioning());
  check(Values(response.initial_state_gradients()), input.mutable_initial_noise());

  v1::GradientRequest again = request;
  again.clear_options();
  again.set_estimate_error(false);
  again.set_trajectory_handle(response.trajectory_handle());
  v1::GradientResponse followed;
  grpc::ClientContext second;
  const grpc::Status kept = gradients_->Gradient(&second, again, &followed);
  ASSERT_TRUE(kept.ok()) << kept.error_message();
  EXPECT_EQ(followed.input_gradients().data(), response.input_gradients().data());
  again.mutable_generation()->set_guidance_scale(3);
  grpc::ClientContext third;
  EXPECT_THAT(gradients_->Gradient(&third, again, &followed).error_message(),
              HasSubstr("trajectory_handle: expected the samples that its states were solved for"));
}

// Noise is what the request says, before it is scaled and clipped: what a clip holds has no part.
TEST_F(GenerateControlsTest, GradientsByNoiseAreThoseBeforeItIsShaped) {
  v1::GradientRequest request;
  request.set_model("open");
  v1::GenerationInput& input = *request.mutable_generation();
  input = DdpmRequest(1).input();
  SetTensor({1, kState}, {0.5F, -2, 0.25F, 1}, input.mutable_initial_noise());
  SetTensor({1, kSteps, kState}, std::vector<float>(kSteps * kState, 0.05F),
            input.mutable_step_noise());
  request.mutable_options()->set_solver("sequential");
  SetTensor({1, kImage}, std::vector<float>(kImage, 1), request.mutable_cotangents());
  request.add_gradients(v1::GRADIENT_BY_INITIAL_STATE);
  request.add_gradients(v1::GRADIENT_BY_STEP_NOISE);
  // The same process, of noise that is shaped beforehand.
  v1::GradientRequest beforehand = request;
  SetTensor({1, kState}, {0.25F, -0.75F, 0.125F, 0.5F},
            beforehand.mutable_generation()->mutable_initial_noise());
  SetTensor({1, kSteps, kState}, std::vector<float>(kSteps * kState, 0.1F),
            beforehand.mutable_generation()->mutable_step_noise());
  input.set_initial_temperature(0.5);
  input.set_initial_noise_clip(1.5);
  input.set_temperature(2);
  v1::GradientResponse shaped, plain;
  grpc::ClientContext first, second;
  ASSERT_TRUE(gradients_->Gradient(&first, request, &shaped).ok());
  ASSERT_TRUE(gradients_->Gradient(&second, beforehand, &plain).ok());
  const std::vector<float> by_initial = Values(shaped.initial_state_gradients());
  const std::vector<float> of_initial = Values(plain.initial_state_gradients());
  for (size_t i = 0; i < kState; ++i)
    EXPECT_EQ(by_initial[i], i == 1 ? 0 : 0.5F * of_initial[i]) << i;
  const std::vector<float> by_steps = Values(shaped.step_noise_gradients());
  const std::vector<float> of_steps = Values(plain.step_noise_gradients());
  for (size_t i = 0; i < by_steps.size(); ++i) EXPECT_EQ(by_steps[i], 2 * of_steps[i]) << i;
  EXPECT_TRUE(std::ranges::any_of(by_steps, [](float value) { return value != 0; }));
  EXPECT_TRUE(std::ranges::any_of(by_initial, [](float value) { return value != 0; }));

  input.set_temperature(0);
  grpc::ClientContext third;
  ASSERT_TRUE(gradients_->Gradient(&third, request, &shaped).ok());
  for (const float value : Values(shaped.step_noise_gradients())) EXPECT_EQ(value, 0);
}

// States of a process that begins later are not those of another with as many steps left.
TEST_F(GenerateControlsTest, AHandleIsOfItsOwnBeginning) {
  v1::GradientRequest request;
  request.set_model("ddim");
  v1::GenerationInput& input = *request.mutable_generation();
  input = DdimRequest(1).input();
  input.set_num_inference_steps(10);
  input.set_first_step(5);
  SetTensor({1, 3}, {0.5F, -0.25F, 0.75F}, input.mutable_initial_samples());
  request.mutable_options()->set_solver("sequential");
  request.mutable_options()->set_keep_trajectory(true);
  SetTensor({1, 3}, {1, 1, 1}, request.mutable_cotangents());
  v1::GradientResponse response;
  grpc::ClientContext context;
  const grpc::Status status = gradients_->Gradient(&context, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  request.clear_options();
  request.set_trajectory_handle(response.trajectory_handle());
  grpc::ClientContext same;
  EXPECT_TRUE(gradients_->Gradient(&same, request, &response).ok());
  input.set_num_inference_steps(12);
  input.set_first_step(7);
  grpc::ClientContext other;
  EXPECT_THAT(gradients_->Gradient(&other, request, &response).error_message(),
              HasSubstr("others: another number of steps"));
}

// A pair of a guided request is one of guided solves: its error is a rounding error.
TEST_F(GenerateControlsTest, ShadowsAreOfTheSameProcess) {
  v1::GenerateRequest request = DdpmRequest(2, "newton");
  request.mutable_input()->set_guidance_scale(4);
  const std::vector<std::string> labels = {"model=\"ddpm\"", "solver=\"newton\"",
                                           "method=\"Generate\""};
  for (int i = 0; i < 500; ++i) {
    v1::GenerateResponse response;
    ASSERT_TRUE(Call(*gradients_, request, &response).ok());
    if (Metric(*with_gradients_, "deeppcr_shadow_relative_error_count", labels) >= 1) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  const double count = Metric(*with_gradients_, "deeppcr_shadow_relative_error_count", labels);
  ASSERT_GE(count, 1);
  EXPECT_LT(Metric(*with_gradients_, "deeppcr_shadow_relative_error_sum", labels) / count, 1e-4);
}

TEST_F(GenerateControlsTest, CompareTakesGuidanceAndNoBounds) {
  v1::CompareRequest request;
  request.set_model("ddpm");
  *request.mutable_generation() = DdpmRequest(2).input();
  request.mutable_generation()->set_guidance_scale(2);
  request.set_repetitions(1);
  v1::CompareResponse response;
  grpc::ClientContext context;
  const grpc::Status status = stub_->Compare(&context, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  for (const v1::CompareRow& row : response.rows()) {
    EXPECT_TRUE(row.error().empty()) << row.error();
    EXPECT_LE(row.max_state_error(), 1e-4);
  }
  request.mutable_generation()->add_upper_bounds(1);
  grpc::ClientContext second;
  const grpc::Status refused = stub_->Compare(&second, request, &response);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(refused.error_message(), HasSubstr("generation.upper_bounds: expected none"));
}

TEST_F(GenerateControlsTest, AStreamIsGuidedToo) {
  v1::GenerateRequest request = Everything(DdpmRequest(2, "newton"), kState);
  const Streamed streamed = Stream(*stub_, request);
  ASSERT_TRUE(streamed.status.ok()) << streamed.status.error_message();
  ASSERT_EQ(streamed.results.size(), 1u);
  EXPECT_EQ(streamed.results[0].samples().data(), Answer(request).samples().data());
}

TEST_F(GenerateControlsTest, WithoutMemoryForThemTheFieldIsNamed) {
  const auto small = StartServer({"--max_unplanned_bytes=0"});
  ASSERT_NE(small, nullptr);
  const auto stub = Connect(small->address());
  v1::GenerateRequest request = DdpmRequest(2);
  request.mutable_input()->set_guidance_scale(2);
  v1::GenerateResponse response;
  const grpc::Status status = Call(*stub, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("input.guidance_scale: "));
}

// Noise that is shaped is made beside the request: here 64 samples of 101 times 64 values.
TEST_F(GenerateControlsTest, CompareCountsWhatItMakes) {
  testing::TemporaryDirectory folder;
  ModelConfig config = DdimConfig();
  config.state_dim = config.output_dim = 64;
  config.num_inference_steps = {100};
  config.conditioning_dim = 0;
  config.max_batch_size = 64;
  WriteDiffusionModel(folder.File("wide/1"), config, "DDPMScheduler");
  const auto small = testing::ServerProcess::Start(
      folder.path(), {"--max_queue_bytes=1MiB", "--plan=measure", "--gradients=false"});
  ASSERT_NE(small, nullptr);
  const auto stub = Connect(small->address());
  v1::CompareRequest request;
  request.set_model("wide");
  request.mutable_generation()->set_temperature(0.5);
  request.mutable_generation()->set_initial_temperature(0.5);
  request.set_repetitions(1);
  v1::CompareResponse response;
  request.mutable_generation()->set_num_samples(2);
  grpc::ClientContext few;
  const grpc::Status fits = stub->Compare(&few, request, &response);
  EXPECT_TRUE(fits.ok()) << fits.error_message();
  request.mutable_generation()->set_num_samples(64);
  grpc::ClientContext many;
  const grpc::Status status = stub->Compare(&many, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(status.error_message(), "the noise and inputs that are made would have " +
                                        std::to_string(64 * 101 * 64 * 4) +
                                        " bytes; the limit is 1048576. Ask for fewer samples");
}

TEST_F(GenerateControlsTest, ATrajectoryIsKeptWithWhatWasMade) {
  const auto small = StartServer({"--gradients", "--max_trajectory_bytes=8KiB"});
  ASSERT_NE(small, nullptr);
  const auto stub = Connect(small->address());
  v1::GenerateRequest request = DdpmRequest(12);
  request.mutable_options()->set_keep_trajectory(true);
  v1::GenerateResponse response;
  const grpc::Status fits = Call(*stub, request, &response);
  EXPECT_TRUE(fits.ok()) << fits.error_message();
  EXPECT_NE(response.trajectory_handle(), "");
  request.mutable_input()->set_temperature(0.5);
  const grpc::Status status = Call(*stub, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("options.keep_trajectory: the trajectory would "));
}

}  // namespace
}  // namespace deeppcr
