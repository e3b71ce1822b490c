// SPDX-License-Identifier: Apache-2.0
// Clients that do not read their replies, and an operator who is in a hurry.
#include <arpa/inet.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "grpcpp/generic/generic_stub.h"
#include "inference/grpc_service.grpc.pb.h"
#include "tests/integration/service_fixture.h"

namespace deeppcr::testing {
namespace {

constexpr int64_t kWideWidth = 64;
constexpr int64_t kDeepLayers = 256;
constexpr int64_t kSamples = 16;
// A connection takes less than this before its client reads.
constexpr int64_t kReplyBytes = kSamples * (kDeepLayers + 1) * kWideWidth * 4;
static_assert(kReplyBytes > int64_t{1} << 20);

v1::ForwardRequest LargeReplyRequest() {
  v1::ForwardRequest request = MakeRequest(kSamples, "wide", kWideWidth);
  request.mutable_options()->set_return_trajectory(true);
  return request;
}

// A call whose reply is never read.
class StalledCall {
 public:
  StalledCall(const std::string& address, const std::string& body)
      : stub_(
            grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), SmallWindow())),
        call_(stub_.PrepareCall(&context_, "/deeppcr.v1.DeepPcr/Forward", &queue_)) {
    call_->StartCall(nullptr);
    Next();
    const grpc::Slice slice(body);
    call_->WriteLast(grpc::ByteBuffer(&slice, 1), grpc::WriteOptions(), nullptr);
    Next();
  }
  ~StalledCall() { Cancel(); }

  void Cancel() {
    context_.TryCancel();
    if (std::exchange(finished_, true)) return;
    call_->Finish(&status_, nullptr);
    Next();
  }

 private:
  static grpc::ChannelArguments SmallWindow() {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 65535);
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    return arguments;
  }

  void Next() {
    void* tag = nullptr;
    bool ok = false;
    queue_.Next(&tag, &ok);
  }

  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
  grpc::Status status_;
  bool finished_ = false;
};

class StalledTest : public ::testing::Test {
 protected:
  StalledTest() {
    WriteRandomModel(repository_.File("wide/1"), {.layers = kDeepLayers, .width = kWideWidth});
  }

  static bool WaitForMetric(const ServerProcess& server, const std::string& line) {
    for (int i = 0; i < 4000; ++i) {
      if (server.Get("/metrics").find("\n" + line + "\n") != std::string::npos) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
  }

  const std::string answered_ =
      "deeppcr_requests_total{code=\"OK\",method=\"Forward\",model=\"wide\"} 1";
  TemporaryDirectory repository_;
};

TEST_F(StalledTest, AnUnreadReplyKeepsItsShareOfTheBudget) {
  const auto server = ServerProcess::Start(repository_.path(), {"--max_queue_bytes=1MiB"});
  ASSERT_NE(server, nullptr);
  StalledCall stalled(server->address(), LargeReplyRequest().SerializeAsString());
  ASSERT_TRUE(WaitForMetric(*server, answered_));

  const auto stub = Connect(server->address());
  v1::ForwardResponse response;
  const grpc::Status refused = Call(*stub, MakeRequest(1, "wide", kWideWidth), &response);

  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.error_message(), ::testing::HasSubstr("requests in progress hold"));
  // A full server says what it serves: balancers would move its load to the next one.
  const auto v2 = inference::GRPCInferenceService::NewStub(
      grpc::CreateChannel(server->address(), grpc::InsecureChannelCredentials()));
  inference::ModelReadyRequest wide;
  wide.set_name("wide");
  inference::ModelReadyResponse ready;
  grpc::ClientContext readiness, listing;
  EXPECT_TRUE(v2->ModelReady(&readiness, wide, &ready).ok());
  EXPECT_TRUE(ready.ready());
  v1::ListModelsResponse list;
  EXPECT_TRUE(stub->ListModels(&listing, v1::ListModelsRequest(), &list).ok());
  EXPECT_TRUE(WaitForMetric(*server, "deeppcr_requests_in_flight{method=\"Forward\"} 1"));
  stalled.Cancel();
  EXPECT_TRUE(WaitForMetric(*server, "deeppcr_requests_in_flight{method=\"Forward\"} 0"));
  EXPECT_TRUE(Call(*stub, MakeRequest(1, "wide", kWideWidth), &response).ok());
}

TEST_F(StalledTest, BytesOfUnknownFieldsCountToo) {
  const auto server = ServerProcess::Start(repository_.path(), {"--max_queue_bytes=3MiB"});
  ASSERT_NE(server, nullptr);
  StalledCall stalled(server->address(), LargeReplyRequest().SerializeAsString());
  ASSERT_TRUE(WaitForMetric(*server, answered_));
  const auto v2 = inference::GRPCInferenceService::NewStub(
      grpc::CreateChannel(server->address(), grpc::InsecureChannelCredentials()));
  inference::ModelInferRequest request;
  request.set_model_name("wide");
  auto* const input = request.add_inputs();
  input->set_name("inputs");
  input->set_datatype("FP32");
  input->add_shape(1);
  input->add_shape(kWideWidth);
  request.add_raw_input_contents(std::string(kWideWidth * sizeof(float), '\0'));
  const auto infer = [&] {
    grpc::ClientContext context;
    inference::ModelInferResponse response;
    return v2->ModelInfer(&context, request, &response);
  };
  ASSERT_TRUE(infer().ok());

  request.GetReflection()->MutableUnknownFields(&request)->AddLengthDelimited(
      1000, std::string(size_t{2} << 20, 'x'));

  EXPECT_EQ(infer().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST_F(StalledTest, AnUnreadReplyIsDroppedInTheEnd) {
  const auto server =
      ServerProcess::Start(repository_.path(), {"--max_queue_bytes=1MiB", "--reply_seconds=0.1"});
  ASSERT_NE(server, nullptr);
  StalledCall stalled(server->address(), LargeReplyRequest().SerializeAsString());
  ASSERT_TRUE(WaitForMetric(*server, answered_));

  // The server allows a megabyte eight seconds.
  EXPECT_TRUE(WaitForMetric(*server, "deeppcr_replies_dropped_total 1"));

  EXPECT_TRUE(WaitForMetric(*server, "deeppcr_requests_in_flight{method=\"Forward\"} 0"));
  v1::ForwardResponse response;
  EXPECT_TRUE(
      Call(*Connect(server->address()), MakeRequest(1, "wide", kWideWidth), &response).ok());
}

TEST_F(StalledTest, AnUnreadReplyDoesNotHoldItsModel) {
  const auto server =
      ServerProcess::Start(repository_.path(), {"--reply_seconds=600", "--drain_seconds=600"});
  ASSERT_NE(server, nullptr);
  StalledCall stalled(server->address(), LargeReplyRequest().SerializeAsString());
  ASSERT_TRUE(WaitForMetric(*server, answered_));
  v1::UnloadModelRequest request;
  request.set_model("wide");
  v1::UnloadModelResponse response;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));

  const grpc::Status status = Connect(server->address())->UnloadModel(&context, request, &response);

  EXPECT_TRUE(status.ok()) << status.error_message();
}

// Opens a connection to the port and sends half a request.
int HalfARequest(int port) {
  const int half = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(half, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_EQ(write(half, "GET /", 5), 5);
  return half;
}

TEST_F(StalledTest, SlowHttpConnectionsDoNotStarveTheProbes) {
  const auto server = ServerProcess::Start(repository_.path());
  ASSERT_NE(server, nullptr);
  std::vector<int> slow;
  for (int i = 0; i < 40; ++i) slow.push_back(HalfARequest(server->http_port()));
  const auto start = std::chrono::steady_clock::now();

  EXPECT_THAT(server->Get("/livez"), ::testing::HasSubstr("200 OK"));

  // Each of the 40 connections holds for a second, 16 at a time.
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(8));
  for (const int half : slow) close(half);
}

TEST_F(StalledTest, AnUnreadReplyHoldsUpNoExit) {
  const auto server = ServerProcess::Start(repository_.path(), {"--drain_seconds=60"});
  ASSERT_NE(server, nullptr);
  StalledCall stalled(server->address(), LargeReplyRequest().SerializeAsString());
  ASSERT_TRUE(WaitForMetric(*server, answered_));

  server->Signal(SIGTERM);

  EXPECT_EQ(server->Wait(20), 0) << server->Log();
}

TEST_F(StalledTest, ASecondSignalEndsEveryWait) {
  WriteRandomModel(repository_.File("long/1"), {.layers = 2048});
  const auto server =
      ServerProcess::Start(repository_.path(), {"--drain_pause_seconds=60", "--drain_seconds=60"});
  ASSERT_NE(server, nullptr);
  const v1::CompareRequest request = LongComparison("long");
  std::thread client([&] {
    v1::CompareResponse response;
    grpc::ClientContext context;
    const grpc::Status status = Connect(server->address())->Compare(&context, request, &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << status.error_message();
  });
  EXPECT_TRUE(WaitForMetric(*server, "deeppcr_requests_in_flight{method=\"Compare\"} 1"));

  server->Signal(SIGTERM);
  for (int i = 0; i < 1000 && server->Get("/readyz").find("503") == std::string::npos; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  server->Signal(SIGTERM);

  EXPECT_EQ(server->Wait(20), 1) << server->Log();
  client.join();
}

}  // namespace
}  // namespace deeppcr::testing
