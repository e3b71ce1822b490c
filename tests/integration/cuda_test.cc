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
  std::unique_ptr<testing::ServerProcess> Start(const std::string& backend) const {
    return testing::ServerProcess::Start(
        repository_.path(), {"--backend", backend, "--plan_cache_dir=" + plans_.path()});
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
