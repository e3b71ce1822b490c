// SPDX-License-Identifier: Apache-2.0
// The server with the CUDA module, and the SIMT executor as its GPU: the server finds, loads and
// uses the module, and names what the module cannot do.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "tests/integration/generation_fixture.h"

namespace deeppcr {
namespace {

using ::testing::HasSubstr;

class CudaServerTest : public ::testing::Test {
 protected:
  CudaServerTest() {
    setenv("DEEPPCR_MODULE_DIR", FAKE_CUDA_FOLDER, 1);
    testing::WriteRandomModel(repository_.File("net/1"), {.gain = 0.5, .seed = 1});
  }
  ~CudaServerTest() override {
    unsetenv("DEEPPCR_MODULE_DIR");
    unsetenv("DEEPPCR_FAKE_GPU_LAUNCHES");
  }
  std::unique_ptr<testing::ServerProcess> Start(const std::string& backend,
                                                std::vector<std::string> flags = {}) const {
    flags.insert(flags.end(), {"--backend", backend, "--plan_cache_dir=" + plans_.path()});
    return testing::ServerProcess::Start(repository_.path(), flags);
  }

  const testing::TemporaryDirectory repository_;
  // One server measures for all of them, on an executor that takes its time.
  static inline const testing::TemporaryDirectory plans_;
};

v1::ForwardRequest RequestFor(const char* solver) {
  v1::ForwardRequest request = MakeRequest(3);
  request.mutable_options()->set_solver(solver);
  request.mutable_options()->set_return_trajectory(true);
  return request;
}

TEST_F(CudaServerTest, AnswersAsTheCpuBackendDoes) {
  const auto cuda = Start("cuda"), cpu = Start("cpu");
  ASSERT_TRUE(cuda != nullptr && cpu != nullptr);
  EXPECT_TRUE(cuda->ready());
  const auto on_cuda = Connect(cuda->address()), on_cpu = Connect(cpu->address());
  for (const char* solver : {"sequential", "newton", "quasi_newton", "picard", "jacobi", "auto"}) {
    v1::ForwardResponse got, want;
    ASSERT_TRUE(Call(*on_cuda, RequestFor(solver), &got).ok()) << solver;
    ASSERT_TRUE(Call(*on_cpu, RequestFor("sequential"), &want).ok());
    EXPECT_EQ(got.report().device(), "cuda-sm90-SIMT executor");
    for (const v1::SampleReport& sample : got.report().samples())
      EXPECT_TRUE(sample.converged()) << solver;
    const std::vector<float> a = Values(got.trajectory()), b = Values(want.trajectory());
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 2e-4 * (1 + std::fabs(b[i])));
  }
}

// A network that an exporter wrote, with a vector of conditions.
TEST_F(CudaServerTest, GeneratesByAGraphAsTheCpuBackendDoes) {
  WritePolicy(repository_.File("policy/1"), kPolicyState, 12);
  const auto cuda = Start("cuda"), cpu = Start("cpu");
  ASSERT_TRUE(cuda != nullptr && cpu != nullptr);
  EXPECT_TRUE(cuda->ready()) << cuda->Log();
  const auto on_cuda = Connect(cuda->address()), on_cpu = Connect(cpu->address());
  const auto request = [](const char* solver) {
    v1::GenerateRequest made = DdimRequest(2, solver);
    made.set_model("policy");
    return made;
  };
  for (const char* solver : {"sequential", "newton", "picard", "auto"}) {
    v1::GenerateResponse got, want;
    const grpc::Status status = Call(*on_cuda, request(solver), &got);
    ASSERT_TRUE(status.ok()) << solver << ": " << status.error_message();
    ASSERT_TRUE(Call(*on_cpu, request("sequential"), &want).ok());
    EXPECT_EQ(got.report().device(), "cuda-sm90-SIMT executor");
    for (const v1::SampleReport& sample : got.report().samples())
      EXPECT_TRUE(sample.converged()) << solver;
    const std::vector<float> a = Values(got.samples()), b = Values(want.samples());
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 2e-4 * (1 + std::fabs(b[i])));
  }
}

grpc::Status Differentiate(v1::DeepPcr::Stub& stub, const v1::GradientRequest& request,
                           v1::GradientResponse* response) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  return stub.Gradient(&context, request, response);
}

void ExpectNear(const v1::Tensor& got, const v1::Tensor& want) {
  const std::vector<float> a = Values(got), b = Values(want);
  ASSERT_EQ(a.size(), b.size());
  ASSERT_FALSE(a.empty());
  float largest = 0;
  for (const float x : b) largest = std::fmax(largest, std::fabs(x));
  EXPECT_GT(largest, 0);
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-3 * largest);
}

// By the condition, the initial noise and the noise of the steps, both ways, after the check that a
// load makes of the way back.
TEST_F(CudaServerTest, GoesBackThroughAGraphAsTheCpuBackendDoes) {
  WritePolicy(repository_.File("policy/1"), kPolicyState, 12);
  const auto cuda = Start("cuda", {"--gradients"}), cpu = Start("cpu", {"--gradients"});
  ASSERT_TRUE(cuda != nullptr && cpu != nullptr);
  EXPECT_TRUE(cuda->ready()) << cuda->Log();
  v1::GradientRequest request;
  request.set_model("policy");
  *request.mutable_generation() = DdimRequest(2).input();
  request.mutable_options()->set_solver("sequential");
  SetTensor({2, kPolicyState}, std::vector<float>(2 * kPolicyState, 0.5F),
            request.mutable_cotangents());
  for (const v1::GradientBy by :
       {v1::GRADIENT_BY_INPUTS, v1::GRADIENT_BY_INITIAL_STATE, v1::GRADIENT_BY_STEP_NOISE})
    request.add_gradients(by);
  v1::GradientResponse want;
  ASSERT_TRUE(Differentiate(*Connect(cpu->address()), request, &want).ok());
  for (const v1::BackwardWay way : {v1::BACKWARD_WAY_SEQUENTIAL, v1::BACKWARD_WAY_PARALLEL}) {
    request.set_way(way);
    v1::GradientResponse got;
    const grpc::Status status = Differentiate(*Connect(cuda->address()), request, &got);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(got.report().device(), "cuda-sm90-SIMT executor");
    ExpectNear(got.input_gradients(), want.input_gradients());
    ExpectNear(got.initial_state_gradients(), want.initial_state_gradients());
    ExpectNear(got.step_noise_gradients(), want.step_noise_gradients());
  }
}

TEST_F(CudaServerTest, AModelThatItCannotTakeHasItsReason) {
  testing::WriteRandomModel(repository_.File("wide/1"), {.layers = 4, .width = 300});
  const auto server = Start("cuda");
  ASSERT_NE(server, nullptr);
  EXPECT_FALSE(server->ready());
  v1::ListModelsResponse models;
  grpc::ClientContext context;
  ASSERT_TRUE(Connect(server->address())->ListModels(&context, {}, &models).ok());
  EXPECT_EQ(models.models(0).state(), v1::MODEL_STATE_READY);
  EXPECT_EQ(models.models(1).state(), v1::MODEL_STATE_FAILED);
  EXPECT_THAT(models.models(1).reason(), HasSubstr("1 .. 256, got 300; --backend cpu"));
}

// The server becomes unready, drains, and reports the loss in its exit code.
TEST_F(CudaServerTest, ALostDeviceEndsTheServer) {
  setenv("DEEPPCR_FAKE_GPU_LAUNCHES", "8000", 1);
  const auto server = Start("cuda");
  ASSERT_NE(server, nullptr);
  const auto stub = Connect(server->address());
  grpc::Status status;
  v1::ForwardResponse response;
  for (int i = 0; i < 20000 && status.ok(); ++i)
    status = Call(*stub, RequestFor("sequential"), &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(server->Wait(20), 1);
  EXPECT_THAT(server->Log(), HasSubstr("device failed"));
}

}  // namespace
}  // namespace deeppcr
