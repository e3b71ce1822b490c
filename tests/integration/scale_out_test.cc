// SPDX-License-Identifier: Apache-2.0
// Servers that are added to a fleet get their share of the load of clients that are connected.
#include <array>
#include <atomic>
#include <thread>

#include "tests/integration/documented_service_config.h"
#include "tests/integration/service_fixture.h"
#include "tests/testing/dns_server.h"

namespace deeppcr::testing {
namespace {

constexpr int kServers = 3, kClients = 4;

std::string HostOf(int server) { return "127.0.0." + std::to_string(server + 1); }

TEST(ScaleOutTest, LoadComesToServersThatAreAdded) {
  TemporaryDirectory folder;
  WriteRandomModel(folder.File("net/1"), {});
  std::array<std::unique_ptr<ServerProcess>, kServers> servers;
  int port = 0;
  const auto start = [&](int i) {
    servers[i] = ServerProcess::Start(
        folder.path(),
        {"--max_connection_age_seconds=1", "--listen=" + HostOf(i) + ":" + std::to_string(port)});
    ASSERT_NE(servers[i], nullptr);
    port = servers[i]->grpc_port();
  };
  start(0);
  DnsServer names;
  names.SetAddresses({HostOf(0)});

  std::atomic<bool> done{false};
  std::atomic<int64_t> answered{0};
  // By the last part of the address of the server that answered.
  std::array<std::atomic<int64_t>, kServers> answers_of{};
  std::vector<std::jthread> clients;
  for (int t = 0; t < kClients; ++t) {
    clients.emplace_back([&, t] {
      grpc::ChannelArguments arguments;
      arguments.SetServiceConfigJSON(DocumentedServiceConfig());
      arguments.SetInt("test.distinct", t);
      // Half a minute otherwise.
      arguments.SetInt(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, 100);
      const auto stub = v1::DeepPcr::NewStub(grpc::CreateCustomChannel(
          "dns://" + names.address() + "/fleet.test:" + std::to_string(port),
          grpc::InsecureChannelCredentials(), arguments));
      while (!done.load()) {
        v1::ForwardResponse response;
        grpc::ClientContext context;
        context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
        const grpc::Status status = stub->Forward(&context, MakeRequest(), &response);
        EXPECT_TRUE(status.ok()) << status.error_code() << " " << status.error_message();
        ++answered;
        for (int i = 0; i < kServers; ++i)
          if (context.peer().find(HostOf(i) + ":") != std::string::npos) ++answers_of[i];
      }
    });
  }
  const auto await = [&](int64_t more) {
    const int64_t target = answered + more;
    for (int i = 0; i < 4000 && answered < target; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_GE(answered, target);
  };
  await(500);
  start(1);
  start(2);
  names.SetAddresses({HostOf(0), HostOf(1), HostOf(2)});
  // Every connection has come of age by then, with what gRPC adds of its own.
  std::this_thread::sleep_for(std::chrono::milliseconds(2500));
  std::array<int64_t, kServers> before;
  for (int i = 0; i < kServers; ++i) before[i] = answers_of[i];
  await(3000);
  done.store(true);
  clients.clear();
  int64_t all = 0;
  for (int i = 0; i < kServers; ++i) all += answers_of[i] - before[i];
  for (int i = 0; i < kServers; ++i)
    EXPECT_GT(answers_of[i] - before[i], all / 5) << HostOf(i) << " of " << all;
}

}  // namespace
}  // namespace deeppcr::testing
