// SPDX-License-Identifier: Apache-2.0
// Requests that take minutes to go back, as many as there are workers and more, beside short ones.
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/integration/gradient_fixture.h"

namespace deeppcr {
namespace {

constexpr int kLongRequests = 3;

class GradientFairnessTest : public ServiceTest {
 protected:
  static void SetUpTestSuite() {
    repository_ = std::make_unique<testing::TemporaryDirectory>();
    for (const std::string name : {"digits-resnet", "digits-ddpm"})
      std::filesystem::copy(kModels + name, repository_->File(name),
                            std::filesystem::copy_options::recursive);
    server_ = testing::ServerProcess::Start(repository_->path(), {"--gradients", "--workers=2"});
  }

  // A request counts until a little after its reply has come.
  void AwaitInFlight(int wanted) {
    const std::string in_flight = "deeppcr_requests_in_flight{method=\"Gradient\"}";
    for (int i = 0; i < 2000 && Metric(in_flight) != wanted; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    ASSERT_EQ(Metric(in_flight), wanted);
  }
  static v1::GradientRequest LongRequest() {
    constexpr int64_t kCount = 8, kColumns = 4096;
    v1::GradientRequest request = OfDdpm(Normals(kCount * kLatent, 3));
    request.mutable_generation()->set_num_inference_steps(1000);
    SetTensor({kCount, kColumns, kLatent}, Normals(kCount * kColumns * kLatent, 4),
              request.mutable_final_state_cotangents());
    return request;
  }
};

TEST_F(GradientFairnessTest, ShortRequestsAreServedBesideLongOnes) {
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::thread> clients;
  for (int i = 0; i < kLongRequests; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    clients.emplace_back([&, context = contexts.back().get()] {
      v1::GradientResponse response;
      const grpc::Status status = stub_->Gradient(context, LongRequest(), &response);
      EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED) << status.error_message();
    });
  }
  AwaitInFlight(kLongRequests);
  std::this_thread::sleep_for(std::chrono::seconds(1));  // all workers go back by now

  v1::ForwardRequest forward;
  forward.set_model("digits-resnet");
  SetTensor({1, kPixels}, Normals(kPixels, 5), forward.mutable_inputs());
  v1::GradientRequest gradient = OfResnet(Normals(kPixels, 6));
  SetTensor({1, kClasses}, Normals(kClasses, 7), gradient.mutable_cotangents());
  for (int i = 0; i < 5; ++i) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    v1::ForwardResponse answer;
    grpc::Status status = stub_->Forward(&context, forward, &answer);
    EXPECT_TRUE(status.ok()) << status.error_message();
    v1::GradientResponse response;
    status = Call(*stub_, gradient, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
  }

  AwaitInFlight(kLongRequests);  // none has ended meanwhile
  for (const auto& context : contexts) context->TryCancel();
  for (std::thread& client : clients) client.join();
  AwaitInFlight(0);
}

// A batch holds as many cotangents as it may hold samples: one of many is computed for itself, and
// its answer does not wait for those of others.
TEST_F(GradientFairnessTest, LongRequestsAreAnsweredOneByOne) {
  v1::GradientRequest request = OfDdpm(Normals(kLatent, 3));
  SetTensor({1, 512, kLatent}, Normals(512 * kLatent, 4), request.mutable_final_state_cotangents());
  std::vector<std::thread> clients;
  for (int i = 0; i < 6; ++i) {
    clients.emplace_back([&] {
      v1::GradientResponse response;
      const grpc::Status status = Call(*stub_, request, &response);
      EXPECT_TRUE(status.ok()) << status.error_message();
      EXPECT_EQ(response.report().batch_samples(), 1);
    });
  }
  for (std::thread& client : clients) client.join();
}

}  // namespace
}  // namespace deeppcr
