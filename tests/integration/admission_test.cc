// SPDX-License-Identifier: Apache-2.0
// What a server lets in: by the time that a request would wait, by the share of its client, and by
// what a model asks for in its serving.json; and what it writes of administrators.
#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "inference/grpc_service.grpc.pb.h"
#include "tests/integration/service_fixture.h"

namespace deeppcr::testing {
namespace {

using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

constexpr char kRobot[] = "robot-0123456789abcdef", kAdmin[] = "admin-0123456789abcdef";
constexpr int64_t kSlowBatch = 256;

class AdmissionTest : public ::testing::Test {
 protected:
  AdmissionTest() {
    // A full batch takes some hundredths of a second.
    WriteRandomModel(File("slow/1"), {.layers = 1024, .width = 32, .max_batch_size = kSlowBatch});
    WriteRandomModel(File("net/1"), {});
  }
  std::string File(const std::string& name) const { return repository_.File(name); }

  static v1::ForwardRequest Slow(int64_t samples = kSlowBatch) {
    v1::ForwardRequest request = MakeRequest(samples, "slow", 32);
    request.mutable_options()->set_solver("sequential");
    return request;
  }
  struct Reply {
    grpc::Status status;
    std::string depth, wait;  // trailers
    double seconds = 0;       // until the answer
  };
  static Reply Send(const ServerProcess& server, const v1::ForwardRequest& request,
                    std::chrono::microseconds patience = std::chrono::seconds(60),
                    const std::string& token = "") {
    const auto stub = Connect(server.address());
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + patience);
    if (!token.empty()) context.AddMetadata("authorization", "Bearer " + token);
    v1::ForwardResponse response;
    const Clock::time_point start = Clock::now();
    Reply reply{.status = stub->Forward(&context, request, &response)};
    reply.seconds = std::chrono::duration<double>(Clock::now() - start).count();
    for (const auto& [key, value] : context.GetServerTrailingMetadata()) {
      if (key == "deeppcr-queue-depth") reply.depth = {value.data(), value.size()};
      if (key == "deeppcr-predicted-wait-seconds") reply.wait = {value.data(), value.size()};
    }
    return reply;
  }
  // What a full batch takes on this machine, which sanitizers and neighbours make slower.
  double BatchSeconds() {
    const auto server =
        ServerProcess::Start(repository_.path(), {"--workers=1", "--shadow_rate=0"});
    if (server == nullptr) return 0;
    double least = Send(*server, Slow()).seconds;
    for (int i = 0; i < 4; ++i) least = std::min(least, Send(*server, Slow()).seconds);
    return least;
  }
  // Sends full batches from so many threads until the test ends.
  void Flood(int threads, const std::string& token = "") {
    for (int i = 0; i < threads; ++i) {
      floods_.emplace_back([this, token] {
        while (!done_.load()) Send(*server_, Slow(), std::chrono::seconds(60), token);
      });
    }
  }
  // The first refusal of what `send` sends.
  template <typename SendOne>
  static Reply UntilRefused(const SendOne& send) {
    Reply reply;
    for (int i = 0; i < 500; ++i) {
      reply = send();
      if (reply.status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED) break;
    }
    return reply;
  }
  void TearDown() override {
    done_.store(true);
    for (std::thread& flood : floods_) flood.join();
  }

  TemporaryDirectory repository_;
  std::unique_ptr<ServerProcess> server_;  // outlives the threads that flood it
  std::atomic<bool> done_{false};
  std::vector<std::thread> floods_;
};

TEST_F(AdmissionTest, WhoWouldWaitTooLongIsToldAtOnce) {
  // Room for the batch that is computed and a few more, not for sixty.
  const double limit = 12 * BatchSeconds();
  ASSERT_GT(limit, 0);
  server_ = ServerProcess::Start(repository_.path(),
                                 {"--workers=1", "--max_queue_seconds=" + std::to_string(limit),
                                  "--max_queue=100000", "--shadow_rate=0"});
  ASSERT_NE(server_, nullptr);
  Flood(60);

  const Reply refused = UntilRefused([&] { return Send(*server_, Slow()); });

  ASSERT_EQ(refused.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.status.error_message(), HasSubstr("a request for model 'slow' would wait"));
  EXPECT_THAT(refused.status.error_message(), HasSubstr("the limit is "));
  EXPECT_GT(std::stod(refused.wait), limit);
  EXPECT_GE(std::stoll(refused.depth), 0);
  // The queue of one model is none for another: a small request waits for a batch at most.
  EXPECT_TRUE(Send(*server_, MakeRequest(1)).status.ok());
}

TEST_F(AdmissionTest, WhoWouldMissItsDeadlineIsToldBeforeIt) {
  server_ = ServerProcess::Start(repository_.path(), {"--workers=1", "--max_queue_seconds=600",
                                                      "--max_queue=100000", "--shadow_rate=0"});
  ASSERT_NE(server_, nullptr);
  Flood(16);
  // The wait depends on the machine: the deadline is a part of what one was.
  double waited = 0;
  for (int i = 0; i < 100 && waited < 0.1; ++i) waited = Send(*server_, Slow()).seconds;
  const auto deadline = std::chrono::microseconds(static_cast<int64_t>(waited * 1e6 / 4));

  const Reply refused = UntilRefused([&] { return Send(*server_, Slow(), deadline); });

  ASSERT_EQ(refused.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.status.error_message(), HasSubstr("its deadline is in"));
  EXPECT_LT(refused.seconds, waited / 4);
}

TEST_F(AdmissionTest, AClientTakesItsShareAndNoMore) {
  const std::string tokens = File("tokens");
  std::ofstream(tokens) << "infer " << kRobot << " name=robot share=0.5\nadmin " << kAdmin << "\n";
  server_ =
      ServerProcess::Start(repository_.path(), {"--workers=1", "--max_queue=1000", "--allow_failed",
                                                "--shadow_rate=0", "--token_file=" + tokens});
  ASSERT_NE(server_, nullptr);
  Flood(6, kRobot);

  const Reply refused =
      UntilRefused([&] { return Send(*server_, Slow(), std::chrono::seconds(60), kRobot); });

  ASSERT_EQ(refused.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.status.error_message(), HasSubstr("client 'robot' has"));
  EXPECT_THAT(refused.status.error_message(), HasSubstr("its share is 500"));
  // Half of the queue is left to others.
  EXPECT_TRUE(Send(*server_, Slow(), std::chrono::seconds(60), kAdmin).status.ok());
}

TEST_F(AdmissionTest, AModelHasSettingsOfItsOwn) {
  std::ofstream(File("net/serving.json")) << R"({"max_queue": 3, "max_instances": 1,
                                                 "batch_delay_seconds": 0.25})";
  server_ = ServerProcess::Start(repository_.path(), {"--workers=2"});
  ASSERT_NE(server_, nullptr);
  const auto config_of = [&](const std::string& name) {
    const auto v2 = inference::GRPCInferenceService::NewStub(
        grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    inference::ModelConfigRequest request;
    request.set_name(name);
    inference::ModelConfigResponse response;
    EXPECT_TRUE(v2->ModelConfig(&context, request, &response).ok());
    return response.config();
  };
  EXPECT_EQ(config_of("net").dynamic_batching().max_queue_delay_microseconds(), 250000u);
  EXPECT_EQ(config_of("net").instance_group(0).count(), 1);
  EXPECT_EQ(config_of("slow").dynamic_batching().max_queue_delay_microseconds(), 0u);
  EXPECT_EQ(config_of("slow").instance_group(0).count(), 2);

  // A batch that is not full waits.
  EXPECT_GE(Send(*server_, MakeRequest(1)).seconds, 0.2);

  // What is wrong refuses a load, and the model serves on.
  std::ofstream(File("net/serving.json")) << R"({"weight": 0})";
  const auto stub = Connect(server_->address());
  grpc::ClientContext context;
  v1::LoadModelRequest load;
  load.set_model("net");
  v1::LoadModelResponse loaded;
  const grpc::Status status = stub->LoadModel(&context, load, &loaded);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("net/serving.json: weight"));
  EXPECT_TRUE(Send(*server_, MakeRequest(1)).status.ok());
}

TEST_F(AdmissionTest, TheLogSaysWhoChangedWhatIsServed) {
  std::filesystem::create_directory(File("secrets"));
  const std::string tokens = File("secrets/tokens");
  std::ofstream(tokens) << "infer " << kRobot << " name=robot\nadmin " << kAdmin << " name=ada\n";
  server_ = ServerProcess::Start(repository_.path(),
                                 {"--token_file=" + tokens, "--allow_failed", "--versions=net=1"});
  ASSERT_NE(server_, nullptr);
  const auto unload = [&](const std::string& model, const std::string& token) {
    const auto stub = Connect(server_->address());
    grpc::ClientContext context;
    context.AddMetadata("authorization", "Bearer " + token);
    v1::UnloadModelRequest request;
    request.set_model(model);
    v1::UnloadModelResponse response;
    return stub->UnloadModel(&context, request, &response).error_code();
  };
  EXPECT_EQ(unload("net", kRobot), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(unload("net", kAdmin), grpc::StatusCode::OK);
  EXPECT_EQ(unload("net", kAdmin), grpc::StatusCode::NOT_FOUND);

  const std::string log = server_->LogOnceItHas("NOT_FOUND");
  EXPECT_THAT(log, HasSubstr(R"("event":"administration","method":"UnloadModel","model":"net")"));
  EXPECT_THAT(log, HasSubstr(R"("caller":"token of ada")"));
  EXPECT_THAT(log, HasSubstr(R"("event":"model_unloaded","model":"net","version":1)"));
  EXPECT_THAT(log, HasSubstr(R"("client":"robot","peer":"ipv4:127.0.0.1)"));
  EXPECT_THAT(log, HasSubstr(R"("code":"NOT_FOUND")"));
  EXPECT_THAT(log, ::testing::Not(HasSubstr("0123456789abcdef")));
}

}  // namespace
}  // namespace deeppcr::testing
