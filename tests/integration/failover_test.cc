// SPDX-License-Identifier: Apache-2.0
// Two servers behind a client that balances load and retries calls by the service config of
// deploy/README.md.
#include <array>
#include <atomic>
#include <csignal>
#include <thread>

#include "client/client.h"
#include "tests/integration/documented_service_config.h"
#include "tests/integration/service_fixture.h"

namespace deeppcr::testing {
namespace {

// That of deploy/README.md without retries.
constexpr char kBalancesOnly[] =
    R"({"loadBalancingConfig": [{"round_robin": {}}], "healthCheckConfig": {"serviceName": ""}})";

class FailoverTest : public ::testing::Test {
 protected:
  void SetUp() override {
    WriteRandomModel(folder_.File("net/1"), {});
    for (auto& server : servers_) {
      server = ServerProcess::Start(folder_.path(), {"--drain_pause_seconds=2"});
      ASSERT_NE(server, nullptr);
    }
  }

  std::unique_ptr<v1::DeepPcr::Stub> ConnectToBoth(int connection) const {
    grpc::ChannelArguments arguments;
    arguments.SetServiceConfigJSON(service_config_);
    arguments.SetInt("test.distinct", connection);
    return v1::DeepPcr::NewStub(
        grpc::CreateCustomChannel("ipv4:" + servers_[0]->address() + "," + servers_[1]->address(),
                                  grpc::InsecureChannelCredentials(), arguments));
  }

  // Starts clients that call until done_ is set, and counts their answers and errors.
  void CallUntilDone() {
    for (int t = 0; t < 6; ++t) {
      clients_.emplace_back([&, t] {
        const auto stub = ConnectToBoth(t);
        while (!done_.load()) {
          v1::ForwardResponse response;
          grpc::ClientContext context;
          context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(5));
          const grpc::Status status = stub->Forward(&context, MakeRequest(), &response);
          EXPECT_TRUE(status.ok()) << status.error_code() << " " << status.error_message();
          ++(status.ok() ? answered_ : failed_);
        }
      });
    }
  }
  void AwaitAnswers(int64_t more) {
    const int64_t target = answered_ + more;
    for (int i = 0; i < 4000 && answered_ < target; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_GE(answered_, target);
  }
  void Finish() {
    done_.store(true);
    for (std::thread& client : clients_) client.join();
    EXPECT_EQ(failed_, 0);
  }
  // The number of Forward calls that this server answered, by its own metrics.
  static double Answered(const ServerProcess& server) {
    const std::string text = server.Get("/metrics"),
                      series =
                          "\ndeeppcr_requests_total{code=\"OK\",method=\"Forward\",model=\"net\"} ";
    const size_t at = text.find(series);
    return at == std::string::npos ? 0 : std::stod(text.substr(at + series.size()));
  }

  std::string service_config_ = DocumentedServiceConfig();
  TemporaryDirectory folder_;
  std::array<std::unique_ptr<ServerProcess>, 2> servers_;
  std::vector<std::thread> clients_;
  std::atomic<bool> done_{false};
  std::atomic<int64_t> answered_{0}, failed_{0};
};

TEST_F(FailoverTest, AServerThatIsKilledCostsNoCall) {
  ASSERT_NE(service_config_.find("retryPolicy"), std::string::npos);
  ASSERT_NE(service_config_.find("healthCheckConfig"), std::string::npos);
  CallUntilDone();
  AwaitAnswers(2000);
  EXPECT_GT(Answered(*servers_[0]), 100);
  EXPECT_GT(Answered(*servers_[1]), 100);

  servers_[0]->Signal(SIGKILL);

  AwaitAnswers(2000);
  Finish();
}

TEST_F(FailoverTest, AServerThatIsStoppedCostsNoCallEvenWithoutRetries) {
  service_config_ = kBalancesOnly;
  CallUntilDone();
  AwaitAnswers(1000);
  servers_[1]->Signal(SIGTERM);
  EXPECT_EQ(servers_[1]->Wait(30), 0) << servers_[1]->Log();
  AwaitAnswers(1000);
  Finish();
}

// Connections that are old are told to go while their calls are still taken. (gRPC makes a call
// that a connection did not take any more again by itself, on another one.)
TEST(AgeingTest, AServerThatIsStoppedCostsNoCallOfClientsThatHeedNothing) {
  TemporaryDirectory folder;
  WriteRandomModel(folder.File("net/1"), {});
  std::array<std::unique_ptr<ServerProcess>, 2> servers;
  std::string list;
  for (auto& server : servers) {
    server = ServerProcess::Start(folder.path(),
                                  {"--max_connection_age_seconds=1", "--drain_pause_seconds=4"});
    ASSERT_NE(server, nullptr);
    list += (list.empty() ? "ipv4:" : ",") + server->address();
  }
  std::atomic<bool> done{false};
  std::atomic<int64_t> answered{0};
  std::vector<std::jthread> clients;
  for (int t = 0; t < 6; ++t) {
    clients.emplace_back([&, t] {
      grpc::ChannelArguments arguments;
      arguments.SetServiceConfigJSON(R"({"loadBalancingConfig": [{"round_robin": {}}]})");
      arguments.SetInt("test.distinct", t);
      const auto stub = v1::DeepPcr::NewStub(
          grpc::CreateCustomChannel(list, grpc::InsecureChannelCredentials(), arguments));
      while (!done.load()) {
        v1::ForwardResponse response;
        const grpc::Status status = Call(*stub, MakeRequest(), &response);
        EXPECT_TRUE(status.ok()) << status.error_code() << " " << status.error_message();
        ++answered;
      }
    });
  }
  const auto await = [&](int64_t more) {
    const int64_t target = answered + more;
    for (int i = 0; i < 4000 && answered < target; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_GE(answered, target);
  };
  await(1000);
  servers[1]->Signal(SIGTERM);
  EXPECT_EQ(servers[1]->Wait(30), 0) << servers[1]->Log();
  await(1000);
  done.store(true);
}

// Three servers, each stopped and started again in turn, under clients of two kinds: ours, which
// takes a list of servers and repeats what none could take, and one that only heeds health.
TEST(RollingRestartTest, CostsNoCall) {
  TemporaryDirectory folder;
  WriteRandomModel(folder.File("net/1"), {});
  std::array<std::unique_ptr<ServerProcess>, 3> servers;
  const auto start = [&](size_t i, const std::string& address) {
    servers[i] =
        ServerProcess::Start(folder.path(), {"--drain_pause_seconds=2", "--listen=" + address});
    ASSERT_NE(servers[i], nullptr);
  };
  std::string list;
  for (size_t i = 0; i < servers.size(); ++i) {
    start(i, "127.0.0.1:0");
    list += (list.empty() ? "" : ",") + servers[i]->address();
  }
  std::atomic<bool> done{false};
  std::atomic<int64_t> answered{0}, failed{0};
  std::vector<std::thread> clients;
  const auto count = [&](bool ok, const std::string& error) {
    EXPECT_TRUE(ok) << error;
    ++(ok ? answered : failed);
  };
  for (int t = 0; t < 3; ++t) {
    clients.emplace_back([&, t] {
      const auto client = Client::Create({.server = list, .connection_index = t});
      ASSERT_TRUE(client.ok()) << client.status();
      while (!done.load()) {
        const auto reply = (*client)->Forward(MakeRequest(), absl::Seconds(5));
        count(reply.ok(), std::string(reply.status().message()));
      }
    });
    clients.emplace_back([&, t] {
      grpc::ChannelArguments arguments;
      arguments.SetServiceConfigJSON(kBalancesOnly);
      arguments.SetInt("test.distinct", t);
      const auto stub = v1::DeepPcr::NewStub(
          grpc::CreateCustomChannel("ipv4:" + list, grpc::InsecureChannelCredentials(), arguments));
      while (!done.load()) {
        v1::ForwardResponse response;
        const grpc::Status status = Call(*stub, MakeRequest(), &response);
        count(status.ok(), status.error_message());
      }
    });
  }
  for (size_t i = 0; i < servers.size(); ++i) {
    const int64_t target = answered + 500;
    while (answered < target && failed == 0)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    const std::string address = servers[i]->address();
    servers[i]->Signal(SIGTERM);
    EXPECT_EQ(servers[i]->Wait(30), 0) << servers[i]->Log();
    start(i, address);
    // A channel tries again within a second or two.
    std::this_thread::sleep_for(std::chrono::seconds(3));
  }
  done.store(true);
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(failed, 0);
  EXPECT_GT(answered, 1500);
}

}  // namespace
}  // namespace deeppcr::testing
