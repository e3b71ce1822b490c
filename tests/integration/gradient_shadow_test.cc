// SPDX-License-Identifier: Apache-2.0
// Shadow pairs of the ways back, from the real server.
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/integration/gradient_fixture.h"

namespace deeppcr {
namespace {

// Kept states may go to make room for others before the pair of their request has copied them.
constexpr int kKeepers = 4, kKept = 60;

class GradientShadowTest : public ServiceTest {
 protected:
  static void SetUpTestSuite() {
    repository_ = std::make_unique<testing::TemporaryDirectory>();
    testing::WriteRandomModel(repository_->File("net/1"), {});
    for (const std::string name : {"digits-resnet", "digits-ddpm"})
      std::filesystem::copy(kModels + name, repository_->File(name),
                            std::filesystem::copy_options::recursive);
    server_ =
        testing::ServerProcess::Start(repository_->path(), {"--gradients", "--shadow_rate=1"});
  }

  // Sends the request until its pair was measured, which other pairs may put off; the sums are then
  // those of one pair or more.
  void AwaitPair(const v1::GradientRequest& request, const std::string& way) {
    const std::string labels = "{method=\"Gradient\",model=\"" + request.model() + "\",solver=\"" +
                               way + "\",version=\"1\"}";
    const std::string count = "deeppcr_speedup_ratio_count" + labels;
    v1::GradientResponse response;
    for (int i = 0; i < 1500 && Metric(count) < 1; ++i) {
      const grpc::Status status = Call(*stub_, request, &response);
      ASSERT_TRUE(status.ok()) << status.error_message();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    ASSERT_GE(Metric(count), 1) << server_->Get("/metrics");
    EXPECT_GT(Metric("deeppcr_speedup_ratio_sum" + labels), 0);
    EXPECT_GE(Metric("deeppcr_shadow_relative_error_count" + labels), 1);
    // The ways add up in different orders, and nothing else tells them apart.
    const double error = Metric("deeppcr_shadow_relative_error_sum" + labels) /
                         Metric("deeppcr_shadow_relative_error_count" + labels);
    EXPECT_GT(error, 0);
    EXPECT_LT(error, 1e-4);
  }
};

TEST_F(GradientShadowTest, PairsBothWaysOfAStackAndOfAGeneration) {
  v1::GradientRequest of_resnet = OfResnet(Normals(kSamples * kPixels, 3));
  of_resnet.set_loss(v1::LOSS_CROSS_ENTROPY);
  for (int i = 0; i < kSamples; ++i) of_resnet.add_target_classes(i);
  v1::GradientRequest of_ddpm = OfDdpm(Normals(kSamples * kLatent, 3));
  SetTensor({kSamples, 3, kPixels}, Normals(kSamples * 3 * kPixels, 8),
            of_ddpm.mutable_cotangents());
  of_ddpm.add_gradients(v1::GRADIENT_BY_STEP_NOISE);
  for (v1::GradientRequest* request : {&of_resnet, &of_ddpm}) {
    request->set_way(v1::BACKWARD_WAY_SEQUENTIAL);
    AwaitPair(*request, "sequential");
    request->set_way(v1::BACKWARD_WAY_PARALLEL);
    AwaitPair(*request, "parallel");
  }
  EXPECT_EQ(Metric("deeppcr_shadow_runs_total{outcome=\"failed\"}"), 0);
  // The pairs of the solves before are not made: nothing but the way back is repeated.
  EXPECT_EQ(Metric("deeppcr_speedup_ratio_count{method=\"Forward\",model=\"digits-resnet\","
                   "solver=\"sequential\",version=\"1\"}"),
            -1);
}

// A pair may begin after its request's trajectory has left the server.
TEST_F(GradientShadowTest, PairsRequestsWithAHandleToo) {
  v1::ForwardRequest forward = MakeRequest();
  forward.mutable_options()->set_keep_trajectory(true);
  v1::ForwardResponse solved;
  ASSERT_TRUE(deeppcr::Call(*stub_, forward, &solved).ok());
  v1::GradientRequest request;
  request.set_model("net");
  *request.mutable_inputs() = forward.inputs();
  request.set_trajectory_handle(solved.trajectory_handle());
  SetTensor({2, kOutputs}, {1, 1, 1, 1, 1, 1}, request.mutable_cotangents());
  AwaitPair(request, "sequential");
}

TEST_F(GradientShadowTest, PairsOfRequestsWhoseStatesAreGoneAreRight) {
  const auto server = testing::ServerProcess::Start(
      repository_->path(),
      {"--gradients", "--shadow_rate=1", "--workers=2", "--max_trajectory_bytes=80KiB"});
  ASSERT_NE(server, nullptr);
  std::vector<std::thread> keepers;
  for (int k = 0; k < kKeepers; ++k) {
    keepers.emplace_back([&, k] {
      const auto stub = Connect(server->address());
      v1::GradientRequest request = OfResnet(Normals(kPixels, static_cast<uint64_t>(k)));
      SetTensor({1, kClasses}, Normals(kClasses, 7), request.mutable_cotangents());
      request.mutable_options()->set_keep_trajectory(true);
      for (int i = 0; i < kKept; ++i) {
        v1::GradientResponse response;
        const grpc::Status status = Call(*stub, request, &response);
        EXPECT_TRUE(status.ok()) << status.error_message();
        EXPECT_FALSE(response.trajectory_handle().empty());
      }
    });
  }
  for (std::thread& keeper : keepers) keeper.join();
  // The server is there, and ends in peace.
  v1::GradientResponse response;
  v1::GradientRequest last = OfResnet(Normals(kPixels, 9));
  SetTensor({1, kClasses}, Normals(kClasses, 7), last.mutable_cotangents());
  EXPECT_TRUE(Call(*Connect(server->address()), last, &response).ok());
}

}  // namespace
}  // namespace deeppcr
