// SPDX-License-Identifier: Apache-2.0
// Addresses that the service listens on, and how many connections it takes.
#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include "inference/grpc_service.grpc.pb.h"
#include "tests/integration/service_fixture.h"

namespace deeppcr::testing {
namespace {

using ::testing::HasSubstr;

class ConnectionsTest : public ::testing::Test {
 protected:
  void SetUp() override { WriteRandomModel(repository_.File("net/1"), {}); }

  static grpc::Status Forward(const std::string& address) {
    v1::ForwardResponse response;
    return Call(*Connect(address), MakeRequest(), &response);
  }

  TemporaryDirectory repository_, folder_;
};

TEST_F(ConnectionsTest, ASocketIsAddressEnough) {
  const std::string address = "unix:" + folder_.File("socket");
  const auto server = ServerProcess::Start(repository_.path(), {"--listen=" + address});
  ASSERT_NE(server, nullptr);
  EXPECT_EQ(server->grpc_port(), 0);
  const grpc::Status status = Forward(address);
  EXPECT_TRUE(status.ok()) << status.error_message();
}

TEST_F(ConnectionsTest, Ipv6IsServed) {
  const int probe = socket(AF_INET6, SOCK_STREAM, 0);
  sockaddr_in6 loopback = {};
  loopback.sin6_family = AF_INET6;
  loopback.sin6_addr = in6addr_loopback;
  const bool has_ipv6 =
      probe >= 0 && bind(probe, reinterpret_cast<sockaddr*>(&loopback), sizeof(loopback)) == 0;
  if (probe >= 0) close(probe);
  if (!has_ipv6) GTEST_SKIP() << "this machine has no IPv6";
  const auto server = ServerProcess::Start(repository_.path(), {"--listen=[::1]:0"});
  ASSERT_NE(server, nullptr);
  const grpc::Status status = Forward("[::1]:" + std::to_string(server->grpc_port()));
  EXPECT_TRUE(status.ok()) << status.error_message();
}

// A stream costs memory whether or not a request ever comes on it.
TEST_F(ConnectionsTest, OpenStreamsAreBounded) {
  constexpr int kLimit = 64;
  const auto server = ServerProcess::Start(repository_.path(), {"--max_queue_bytes=1MiB"});
  ASSERT_NE(server, nullptr);
  const auto stub = inference::GRPCInferenceService::NewStub(
      grpc::CreateChannel(server->address(), grpc::InsecureChannelCredentials()));
  struct Stream {
    grpc::ClientContext context;
    std::unique_ptr<
        grpc::ClientReaderWriter<inference::ModelInferRequest, inference::ModelStreamInferResponse>>
        calls;
  };
  std::vector<std::unique_ptr<Stream>> streams;
  const auto open = [&]() -> Stream& {
    streams.push_back(std::make_unique<Stream>());
    streams.back()->calls = stub->ModelStreamInfer(&streams.back()->context);
    return *streams.back();
  };
  inference::ModelStreamInferResponse response;
  for (int i = 0; i < kLimit; ++i) {
    // A request without a model is answered: the stream is open.
    Stream& stream = open();
    ASSERT_TRUE(stream.calls->Write(inference::ModelInferRequest()));
    ASSERT_TRUE(stream.calls->Read(&response)) << i;
  }
  Stream& beyond = open();
  EXPECT_FALSE(beyond.calls->Read(&response));
  const grpc::Status refused = beyond.calls->Finish();
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(refused.error_message(), "the server has 64 open streams already");
  // One that ends makes room.
  streams.front()->calls->WritesDone();
  EXPECT_TRUE(streams.front()->calls->Finish().ok());
  bool opened = false;
  for (int i = 0; i < 200 && !opened; ++i) {
    Stream& stream = open();
    opened = stream.calls->Write(inference::ModelInferRequest()) && stream.calls->Read(&response);
    if (!opened) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_TRUE(opened);
  for (const auto& stream : streams) stream->context.TryCancel();
}

// Silent connections take every place; one that ends gives its place back.
TEST_F(ConnectionsTest, AreBounded) {
  constexpr int kLimit = 8;
  const auto server =
      ServerProcess::Start(repository_.path(), {"--max_connections=" + std::to_string(kLimit)});
  ASSERT_NE(server, nullptr);
  std::vector<int> silent;
  for (int i = 0; i < kLimit; ++i) {
    silent.push_back(socket(AF_INET, SOCK_STREAM, 0));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(server->grpc_port()));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ASSERT_EQ(connect(silent.back(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  for (int i = 0;
       i < 2000 && server->Get("/metrics").find("deeppcr_connections 8\n") == std::string::npos;
       ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(Forward(server->address()).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(server->LogOnceItHas("connection_refused"), HasSubstr("connection_refused"));
  EXPECT_THAT(server->Get("/metrics"), Not(HasSubstr("deeppcr_connections_refused_total 0\n")));
  for (const int socket_fd : silent) close(socket_fd);
  grpc::Status status;
  for (int i = 0; i < 200 && !(status = Forward(server->address())).ok(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_TRUE(status.ok()) << status.error_message();
}

}  // namespace
}  // namespace deeppcr::testing
