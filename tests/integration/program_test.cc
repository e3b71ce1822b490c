// SPDX-License-Identifier: Apache-2.0
// A network that torch.onnx.export wrote, served by the real server over real sockets: samples of
// every solver, numbers of steps that config.json does not name, and files that are refused while
// others go on.
#include <filesystem>

#include "tests/integration/generation_fixture.h"

namespace deeppcr::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ProgramTest : public GenerationFixture {
 protected:
  static void SetUpTestSuite() {
    repository_ = std::make_unique<TemporaryDirectory>();
    plans_ = std::make_unique<TemporaryDirectory>();
    WriteDiffusionModel(repository_->File("ddpm/1"), DdpmConfig(), "DDPMScheduler");
    WritePolicy(repository_->File("policy/1"), kPolicyState, 50);
    server_ = StartServer({"--shadow_rate=1"});
  }

  static v1::GenerateRequest Request(int32_t n, const std::string& solver) {
    v1::GenerateRequest request = DdimRequest(n, solver);
    request.set_model("policy");
    return request;
  }
};

TEST_F(ProgramTest, EverySolverAgreesWithSequential) {
  v1::GenerateResponse want;
  ASSERT_TRUE(Call(*stub_, Request(4, "sequential"), &want).ok());
  EXPECT_THAT(want.samples().shape(), ElementsAre(4, kPolicyState));
  const std::vector<float> expected = Values(want.samples());
  for (const char* solver : {"newton", "picard", "auto"}) {
    v1::GenerateResponse got;
    const grpc::Status status = Call(*stub_, Request(4, solver), &got);
    ASSERT_TRUE(status.ok()) << status.error_message();
    const std::vector<float> values = Values(got.samples());
    ASSERT_EQ(values.size(), expected.size());
    for (size_t i = 0; i < values.size(); ++i)
      EXPECT_NEAR(values[i], expected[i], 2e-4) << solver << " " << i;
    for (const v1::SampleReport& report : got.report().samples())
      EXPECT_TRUE(report.converged()) << solver;
  }
}

TEST_F(ProgramTest, TakesAnyNumberOfSteps) {
  v1::GenerateRequest request = Request(2, "sequential");
  request.mutable_input()->set_num_inference_steps(7);
  v1::GenerateResponse response;
  const grpc::Status status = Call(*stub_, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_THAT(response.samples().shape(), ElementsAre(2, kPolicyState));
}

TEST_F(ProgramTest, SamplesDoNotDependOnTheirNeighbours) {
  v1::GenerateResponse together;
  ASSERT_TRUE(Call(*stub_, Request(6, "sequential"), &together).ok());
  const std::vector<float> all = Values(together.samples());
  v1::GenerateResponse first;
  ASSERT_TRUE(Call(*stub_, Request(1, "sequential"), &first).ok());
  EXPECT_EQ(Values(first.samples()), std::vector<float>(all.begin(), all.begin() + kPolicyState));
}

TEST_F(ProgramTest, AFileThatDoesNotFitIsRefusedAndOthersGoOn) {
  WritePolicy(repository_->File("misfit/1"), kPolicyState + 1, 50);
  v1::LoadModelRequest request;
  request.set_model("misfit");
  v1::LoadModelResponse response;
  grpc::ClientContext context;
  const grpc::Status status = stub_->LoadModel(&context, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("denoiser.onnx: the state has 3 elements"));
  std::ofstream(repository_->File("misfit/1") + "/denoiser.onnx") << "no graph";
  grpc::ClientContext again;
  EXPECT_EQ(stub_->LoadModel(&again, request, &response).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  ExpectServing();
}

TEST_F(ProgramTest, SaysWhatItServes) {
  const v1::GetModelResponse policy = Describe("policy");
  EXPECT_EQ(policy.input_dim(), kConditioning);
  EXPECT_EQ(policy.summary().state_dim(), kPolicyState);
  EXPECT_EQ(policy.summary().model_type(), "diffusion");
  EXPECT_GT(policy.plan().entries_size(), 0);
}

}  // namespace
}  // namespace deeppcr::testing
