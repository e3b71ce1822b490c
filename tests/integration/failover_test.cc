// SPDX-License-Identifier: Apache-2.0
// Two servers behind a client that balances load and retries calls by the service config of
// deploy/README.md.
#include <csignal>
#include <fstream>
#include <sstream>
#include <thread>

#include "tests/integration/service_fixture.h"

namespace deeppcr::testing {
namespace {

// The service config that deploy/README.md tells users to use.
std::string ServiceConfig() {
  std::ifstream file(DEEPPCR_SOURCE_DIR "/deploy/README.md");
  std::stringstream text;
  text << file.rdbuf();
  const std::string all = text.str(), fence = "```json\n";
  const size_t begin = all.find(fence), end = all.find("```\n", begin + fence.size());
  return begin == std::string::npos ? ""
                                    : all.substr(begin + fence.size(), end - begin - fence.size());
}

// The same without retries.
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

  std::string service_config_ = ServiceConfig();
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

}  // namespace
}  // namespace deeppcr::testing
