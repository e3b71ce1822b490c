// SPDX-License-Identifier: Apache-2.0
// Answers of the real server over real sockets.
#include <cmath>
#include <thread>

#include "tests/integration/service_fixture.h"

namespace deeppcr {
namespace {

using ::testing::HasSubstr;

class ForwardTest : public ServiceTest {};

TEST_F(ForwardTest, EverySolverAgreesWithSequential) {
  v1::GetModelRequest model_request;
  model_request.set_model("net");
  v1::GetModelResponse model;
  grpc::ClientContext context;
  ASSERT_TRUE(stub_->GetModel(&context, model_request, &model).ok());
  ASSERT_GE(model.solvers_size(), 6);
  v1::ForwardRequest request = MakeRequest(3);
  request.mutable_options()->set_solver("sequential");
  v1::ForwardResponse expected;
  ASSERT_TRUE(Call(*stub_, request, &expected).ok());

  for (const std::string& solver : model.solvers()) {
    request.mutable_options()->set_solver(solver);
    request.set_request_id("id-" + solver);
    v1::ForwardResponse response;
    const grpc::Status status = Call(*stub_, request, &response);

    ASSERT_TRUE(status.ok()) << solver << ": " << status.error_message();
    EXPECT_THAT(response.outputs().shape(), ::testing::ElementsAre(3, kOutputs));
    const std::vector<float> got = Values(response.outputs());
    const std::vector<float> want = Values(expected.outputs());
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-3) << solver;
    EXPECT_EQ(response.request_id(), "id-" + solver);
    const v1::SolveReport& report = response.report();
    ASSERT_EQ(report.samples_size(), 3);
    EXPECT_TRUE(report.samples(0).converged());
    EXPECT_GT(report.samples(0).dependent_stages(), 0);
    EXPECT_EQ(report.model_version(), 1);
    EXPECT_EQ(report.plan_id(), model.plan().id());
    EXPECT_FALSE(report.device().empty());
    EXPECT_GE(report.batch_samples(), 3);
    EXPECT_GT(report.solve_seconds(), 0);
  }
}

TEST_F(ForwardTest, TheTrajectoryLeadsToTheOutputsAndBackIn) {
  v1::ForwardRequest request = MakeRequest(2);
  request.mutable_options()->set_solver("newton");
  request.mutable_options()->set_return_trajectory(true);
  v1::ForwardResponse response;
  ASSERT_TRUE(Call(*stub_, request, &response).ok());
  EXPECT_THAT(response.trajectory().shape(), ::testing::ElementsAre(2, kLayers + 1, kWidth));
  ASSERT_EQ(response.trajectory().data().size(), 2u * (kLayers + 1) * kWidth * sizeof(float));

  *request.mutable_initial_states() = response.trajectory();
  request.mutable_options()->set_initial_guess(v1::INITIAL_GUESS_PREVIOUS);
  v1::ForwardResponse again;
  const grpc::Status status = Call(*stub_, request, &again);

  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(again.report().initial_guess(), "previous");
  EXPECT_LE(again.report().samples(0).iterations(), response.report().samples(0).iterations());
  const std::vector<float> got = Values(again.outputs());
  const std::vector<float> want = Values(response.outputs());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-3);
}

TEST_F(ForwardTest, BatchesDoNotChangeBits) {
  v1::ForwardRequest request = MakeRequest(2);
  request.mutable_options()->set_solver("newton");
  v1::ForwardResponse alone;
  ASSERT_TRUE(Call(*stub_, request, &alone).ok());

  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      const auto stub = Connect(server_->address());
      for (int i = 0; i < 25; ++i) {
        v1::ForwardResponse response;
        const grpc::Status status = Call(*stub, request, &response);
        EXPECT_TRUE(status.ok()) << status.error_message();
        EXPECT_EQ(response.outputs().data(), alone.outputs().data());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

v1::ForwardRequest Unconverging(v1::OnNoConvergence action) {
  v1::ForwardRequest request = MakeRequest(2, "rough");
  v1::SolverOptions& options = *request.mutable_options();
  options.set_solver("newton");
  options.set_max_iterations(1);
  options.set_warm_sweeps(0);
  options.set_shooting_interval(1);
  options.set_initial_guess(v1::INITIAL_GUESS_CONSTANT);
  options.set_rtol(1e-6);
  options.set_on_no_convergence(action);
  return request;
}

TEST_F(ForwardTest, FallbackGivesTheBitsOfSequentialAndIsCounted) {
  v1::ForwardRequest sequential = MakeRequest(2, "rough");
  sequential.mutable_options()->set_solver("sequential");
  v1::ForwardResponse expected, response;
  ASSERT_TRUE(Call(*stub_, sequential, &expected).ok());
  ASSERT_TRUE(Call(*stub_, Unconverging(v1::ON_NO_CONVERGENCE_FALLBACK), &response).ok());

  EXPECT_EQ(response.outputs().data(), expected.outputs().data());
  const v1::SampleReport& sample = response.report().samples(0);
  EXPECT_TRUE(sample.fallback());
  EXPECT_EQ(sample.solver(), "sequential");
  EXPECT_GE(Metric("deeppcr_fallbacks_total{model=\"rough\",reason=\"" +
                   sample.attempt().termination() + "\",version=\"1\"}"),
            2);
}

TEST_F(ForwardTest, NoConvergenceIsReturnedOrAnErrorAsAsked) {
  v1::ForwardResponse response;
  ASSERT_TRUE(Call(*stub_, Unconverging(v1::ON_NO_CONVERGENCE_RETURN), &response).ok());
  EXPECT_FALSE(response.report().samples(0).converged());
  EXPECT_FALSE(response.report().samples(0).fallback());

  const grpc::Status status = Call(*stub_, Unconverging(v1::ON_NO_CONVERGENCE_ERROR), &response);

  EXPECT_EQ(status.error_code(), grpc::StatusCode::ABORTED);
  EXPECT_THAT(status.error_message(), HasSubstr("sample 0 did not converge: "));
}

TEST_F(ForwardTest, CompareReportsEveryRow) {
  v1::CompareRequest request;
  request.set_model("net");
  *request.mutable_inputs() = MakeRequest(2).inputs();
  for (const char* solver : {"newton", "quasi_newton"}) request.add_options()->set_solver(solver);
  // quasi_newton works elementwise: it takes no longer interval, and its row says so.
  request.mutable_options(1)->set_shooting_interval(4);
  request.set_repetitions(7);
  v1::CompareResponse response;
  grpc::ClientContext context;

  const grpc::Status status = stub_->Compare(&context, request, &response);

  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(response.rows_size(), 2);
  const v1::CompareRow& newton = response.rows(0);
  EXPECT_EQ(newton.requested_solver(), "newton");
  EXPECT_EQ(newton.solver(), "newton");
  EXPECT_TRUE(newton.converged());
  EXPECT_GT(newton.min_seconds(), 0);
  EXPECT_LE(newton.min_seconds(), newton.median_seconds());
  EXPECT_LE(newton.median_seconds(), newton.p99_seconds());
  EXPECT_GT(newton.speedup(), 0);
  EXPECT_LT(newton.max_state_error(), 1e-3);
  EXPECT_EQ(newton.outputs().data().size(), 2u * kOutputs * sizeof(float));
  EXPECT_EQ(response.sequential_stages(), kLayers);
  EXPECT_THAT(response.rows(1).error(), HasSubstr("shooting_interval"));
  EXPECT_EQ(response.rows(1).median_seconds(), 0);
}

}  // namespace
}  // namespace deeppcr
