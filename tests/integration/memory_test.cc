// SPDX-License-Identifier: Apache-2.0
// Samplers that carry a memory, and a learned variance, served by the real server over real
// sockets: what a client has to know of the states, every solver, noise, warm starts and gradients.
#include <algorithm>
#include <cstring>

#include "kernels/base/strings.h"
#include "kernels/problem/philox.h"
#include "tests/integration/generation_fixture.h"

namespace deeppcr::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kPlain = 3;  // state_dim of config.json, and elements of noise
constexpr int64_t kRows = 17;  // evaluations

ModelConfig SamplerConfig() {
  ModelConfig config = DdimConfig();
  config.conditioning_dim = 0;
  config.num_inference_steps = {kRows};
  return config;
}

class MemoryTest : public GenerationFixture {
 protected:
  static void SetUpTestSuite() {
    repository_ = std::make_unique<TemporaryDirectory>();
    plans_ = std::make_unique<TemporaryDirectory>();
    WriteDiffusionModel(repository_->File("multistep/1"), SamplerConfig(),
                        "DPMSolverMultistepScheduler");
    WriteDiffusionModel(repository_->File("heun/1"), SamplerConfig(), "HeunDiscreteScheduler");
    ModelConfig learned = SamplerConfig();
    learned.learned_variance = true;
    WriteDiffusionModel(repository_->File("learned/1"), learned, "DDPMScheduler");
    std::ofstream(repository_->File("learned/1/scheduler_config.json"))
        << R"({"_class_name": "DDPMScheduler", "variance_type": "learned_range"})";
    server_ = StartServer({"--shadow_rate=1", "--gradients"});
  }

  static v1::GenerateRequest Request(const std::string& model, const std::string& solver) {
    v1::GenerateRequest request;
    request.set_model(model);
    request.mutable_input()->set_num_samples(2);
    request.mutable_input()->set_seed(7);
    request.mutable_options()->set_solver(solver);
    request.mutable_options()->set_return_trajectory(true);
    return request;
  }
  v1::GenerateResponse Generate(const v1::GenerateRequest& request) const {
    v1::GenerateResponse response;
    const grpc::Status status = Call(*stub_, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }
};

void ExpectNear(const v1::Tensor& got, const v1::Tensor& want, const std::string& what) {
  const std::vector<float> a = Values(got), b = Values(want);
  ASSERT_EQ(a.size(), b.size()) << what;
  for (size_t i = 0; i < a.size(); ++i)
    EXPECT_NEAR(a[i], b[i], 1e-3 * (1 + std::abs(b[i]))) << what << " at " << i;
}

TEST_F(MemoryTest, TheModelSaysWhatItsStatesAre) {
  v1::GetModelRequest request;
  for (const auto& [name, memory] :
       {std::pair{"multistep", kPlain}, {"heun", kPlain}, {"learned", int64_t{0}}}) {
    request.set_model(name);
    v1::GetModelResponse model;
    grpc::ClientContext context;
    ASSERT_TRUE(stub_->GetModel(&context, request, &model).ok());
    EXPECT_EQ(model.summary().state_dim(), kPlain + memory) << name;
    EXPECT_EQ(model.summary().memory_dim(), memory) << name;
    EXPECT_EQ(model.output_dim(), kPlain);
    EXPECT_EQ(model.max_inference_steps(), name == std::string_view("heun") ? 1999 : 1000);
  }
}

TEST_F(MemoryTest, EverySolverAgreesWithSequential) {
  for (const char* const model : {"multistep", "heun", "learned"}) {
    const v1::GenerateResponse want = Generate(Request(model, "sequential"));
    const int64_t state = model == std::string_view("learned") ? kPlain : 2 * kPlain;
    EXPECT_THAT(want.samples().shape(), ElementsAre(2, kPlain));
    EXPECT_THAT(want.trajectory().shape(), ElementsAre(2, kRows + 1, state));
    // The answer is z_L without its memory.
    const std::vector<float> states = Values(want.trajectory());
    EXPECT_EQ(std::memcmp(states.data() + kRows * state, want.samples().data().data(), 4 * kPlain),
              0);
    for (const char* const solver : {"newton", "picard", "auto"}) {
      const v1::GenerateResponse got = Generate(Request(model, solver));
      ExpectNear(got.trajectory(), want.trajectory(), StrCat(model, " ", solver));
      for (const v1::SampleReport& report : got.report().samples())
        EXPECT_TRUE(report.converged()) << model << " " << solver;
    }
  }
}

TEST_F(MemoryTest, NoiseHasTheElementsOfTheSample) {
  for (const char* const model : {"multistep", "heun", "learned"}) {
    v1::GenerateRequest request = Request(model, "sequential");
    const v1::GenerateResponse drawn = Generate(request);
    std::vector<float> initial(2 * kPlain), steps(2 * kRows * kPlain);
    for (uint64_t s = 0; s < 2; ++s) {
      FillNormals(7, s, kInitialNoiseStep, kPlain, initial.data() + s * kPlain);
      for (uint32_t l = 0; l < kRows; ++l)
        FillNormals(7, s, l, kPlain, steps.data() + (s * kRows + l) * kPlain);
    }
    request.mutable_input()->set_seed(8);
    SetTensor({2, kPlain}, initial, request.mutable_input()->mutable_initial_noise());
    SetTensor({2, kRows, kPlain}, steps, request.mutable_input()->mutable_step_noise());
    EXPECT_EQ(Generate(request).samples().data(), drawn.samples().data()) << model;
  }
  v1::GenerateRequest wide = Request("heun", "sequential");
  SetTensor({2, 2 * kPlain}, std::vector<float>(4 * kPlain),
            wide.mutable_input()->mutable_initial_noise());
  v1::GenerateResponse response;
  EXPECT_THAT(Call(*stub_, wide, &response).error_message(),
              HasSubstr("initial_noise.shape: expected [n, 3]"));
}

TEST_F(MemoryTest, ATrajectoryIsAGuessForTheNextSolve) {
  for (const char* const model : {"multistep", "heun"}) {
    v1::GenerateRequest request = Request(model, "newton");
    request.mutable_options()->set_warm_sweeps(0);
    const v1::GenerateResponse first = Generate(request);
    *request.mutable_initial_states() = first.trajectory();
    request.mutable_options()->set_initial_guess(v1::INITIAL_GUESS_PREVIOUS);
    const v1::GenerateResponse second = Generate(request);
    for (const v1::SampleReport& report : second.report().samples())
      EXPECT_EQ(report.iterations(), 1) << model;
    ExpectNear(second.trajectory(), first.trajectory(), model);
  }
}

// Both ways back, along states that are solved for and states that are handed in.
TEST_F(MemoryTest, GradientsByNoiseHaveTheElementsOfTheSample) {
  for (const char* const model : {"multistep", "heun", "learned"}) {
    v1::GradientRequest request;
    request.set_model(model);
    *request.mutable_generation() = Request(model, "sequential").input();
    request.mutable_options()->set_solver("sequential");
    request.mutable_options()->set_return_trajectory(true);
    request.add_gradients(v1::GRADIENT_BY_INITIAL_STATE);
    request.add_gradients(v1::GRADIENT_BY_STEP_NOISE);
    SetTensor({2, kPlain}, {1, -0.5F, 0.25F, 0.5F, 1, -1}, request.mutable_cotangents());
    const auto go_back = [&] {
      grpc::ClientContext context;
      v1::GradientResponse response;
      const grpc::Status status = stub_->Gradient(&context, request, &response);
      EXPECT_TRUE(status.ok()) << model << ": " << status.error_message();
      EXPECT_THAT(response.initial_state_gradients().shape(), ElementsAre(2, kPlain));
      EXPECT_THAT(response.step_noise_gradients().shape(), ElementsAre(2, kRows, kPlain));
      return response;
    };
    const v1::GradientResponse solved = go_back();
    request.set_way(v1::BACKWARD_WAY_PARALLEL);
    const v1::GradientResponse parallel = go_back();
    ExpectNear(parallel.initial_state_gradients(), solved.initial_state_gradients(), model);
    ExpectNear(parallel.step_noise_gradients(), solved.step_noise_gradients(), model);
    request.set_way(v1::BACKWARD_WAY_SEQUENTIAL);
    *request.mutable_trajectory() = solved.trajectory();
    request.clear_options();
    const v1::GradientResponse along = go_back();
    EXPECT_EQ(along.initial_state_gradients().data(), solved.initial_state_gradients().data());
    EXPECT_EQ(along.step_noise_gradients().data(), solved.step_noise_gradients().data());
  }
}

// The displaced states of an estimate go back with the noise of their sample.
TEST_F(MemoryTest, AnErrorOfGradientsByALearnedVarianceIsEstimated) {
  v1::GradientRequest request;
  request.set_model("learned");
  *request.mutable_generation() = Request("learned", "newton").input();
  request.mutable_options()->set_solver("newton");
  request.set_estimate_error(true);
  SetTensor({2, kPlain}, {1, -0.5F, 0.25F, 0.5F, 1, -1}, request.mutable_cotangents());
  grpc::ClientContext context;
  v1::GradientResponse response;
  const grpc::Status status = stub_->Gradient(&context, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(response.backward().samples_size(), 2);
  for (const auto& sample : response.backward().samples()) {
    ASSERT_TRUE(sample.has_gradient_error_estimate());
    EXPECT_LT(sample.gradient_error_estimate(), 1e-2);
  }
}

}  // namespace
}  // namespace deeppcr::testing
