// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_INTEGRATION_SERVICE_FIXTURE_H_
#define DEEPPCR_TESTS_INTEGRATION_SERVICE_FIXTURE_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "deeppcr/v1/deeppcr.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "tests/testing/server_process.h"

namespace deeppcr {

constexpr int64_t kWidth = 8;
constexpr int64_t kLayers = 32;
constexpr int64_t kOutputs = 3;

inline std::unique_ptr<v1::DeepPcr::Stub> Connect(const std::string& address) {
  grpc::ChannelArguments arguments;
  // A distinct argument gives each test its own connection.
  arguments.SetInt(
      "test.distinct",
      static_cast<int>(std::chrono::steady_clock::now().time_since_epoch().count() & 0xfffffff));
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  return v1::DeepPcr::NewStub(
      grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
}

inline void SetTensor(const std::vector<int64_t>& shape, const std::vector<float>& values,
                      v1::Tensor* tensor) {
  tensor->clear_shape();
  tensor->mutable_shape()->Add(shape.begin(), shape.end());
  tensor->set_data(values.data(), values.size() * sizeof(float));
}

inline std::vector<float> Values(const v1::Tensor& tensor) {
  std::vector<float> values(tensor.data().size() / sizeof(float));
  std::copy_n(tensor.data().data(), tensor.data().size(), reinterpret_cast<char*>(values.data()));
  return values;
}

// A request for n samples that differ, for a model of this width.
inline v1::ForwardRequest MakeRequest(int64_t n = 2, const std::string& model = "net",
                                      int64_t width = kWidth) {
  v1::ForwardRequest request;
  request.set_model(model);
  std::vector<float> values;
  for (int64_t i = 0; i < n * width; ++i) {
    values.push_back(0.1f * static_cast<float>(i % 17) - 0.8f);
  }
  SetTensor({n, width}, values, request.mutable_inputs());
  return request;
}

inline grpc::Status Call(v1::DeepPcr::Stub& stub, const v1::ForwardRequest& request,
                         v1::ForwardResponse* response) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  return stub.Forward(&context, request, response);
}

// A comparison that takes minutes on a model of 2048 layers.
inline v1::CompareRequest LongComparison(const std::string& model) {
  v1::CompareRequest request;
  request.set_model(model);
  *request.mutable_inputs() = MakeRequest(16).inputs();
  for (int i = 0; i < 16; ++i) {
    request.add_options()->set_solver("newton");
    request.mutable_options(i)->set_rtol(1e-7);
  }
  request.set_repetitions(100);
  return request;
}

// One server for all tests of a suite, with the models "net" and "rough" by default.
class ServiceTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    repository_ = std::make_unique<testing::TemporaryDirectory>();
    testing::WriteRandomModel(repository_->File("net/1"), {});
    // Newton does not converge in two iterations on this model.
    testing::WriteRandomModel(repository_->File("rough/1"), {.gain = 3.0, .type = "mlp"});
    server_ = testing::ServerProcess::Start(repository_->path(), {"--shadow_rate=1"});
  }
  static void TearDownTestSuite() {
    server_.reset();
    repository_.reset();
  }

  void SetUp() override {
    ASSERT_NE(server_, nullptr);
    stub_ = Connect(server_->address());
  }

  // Expects the service to answer, and correctly.
  void ExpectServing() {
    v1::ForwardResponse response;
    const grpc::Status status = Call(*stub_, MakeRequest(), &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(response.outputs().data().size(), 2u * kOutputs * sizeof(float));
  }

  // Expects that nothing is in progress or waits, and that the service answers.
  void ExpectIdle() {
    for (const char* series : {"deeppcr_requests_in_flight{method=\"Forward\"}",
                               "deeppcr_requests_in_flight{method=\"Compare\"}"}) {
      for (int i = 0; i < 2000 && Metric(series) != 0; ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      EXPECT_EQ(Metric(series), 0) << series;
    }
    EXPECT_EQ(Metric("deeppcr_queue_depth{model=\"net\",version=\"1\"}"), 0);
    ExpectServing();
  }

  // The value of the series whose line starts with `series`, or -1.
  double Metric(const std::string& series) {
    const std::string text = server_->Get("/metrics");
    const size_t at = text.find("\n" + series + " ");
    return at == std::string::npos ? -1 : std::stod(text.substr(at + series.size() + 2));
  }

  static inline std::unique_ptr<testing::TemporaryDirectory> repository_;
  static inline std::unique_ptr<testing::ServerProcess> server_;
  std::unique_ptr<v1::DeepPcr::Stub> stub_;
};

}  // namespace deeppcr

#endif  // DEEPPCR_TESTS_INTEGRATION_SERVICE_FIXTURE_H_
