// SPDX-License-Identifier: Apache-2.0
// Starting and stopping the real server.
#include <net/if.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include "nlohmann/json.hpp"
#include "tests/integration/service_fixture.h"

namespace deeppcr::testing {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

class LifecycleTest : public ::testing::Test {
 protected:
  LifecycleTest() { WriteRandomModel(repository_.File("net/1"), {}); }

  std::vector<std::string> Flags(std::vector<std::string> more) {
    more.insert(more.end(), {"--model_repository=" + repository_.path()});
    return more;
  }

  TemporaryDirectory repository_;
};

TEST_F(LifecycleTest, BadFlagsExitWithTwo) {
  for (const auto& [flag, message] :
       {std::pair<std::string, std::string>{"--no_such_flag=1", "unknown flag"},
        {"--max_queue=none", "--max_queue: expected"},
        {"extra", "unexpected argument"}}) {
    const Finished finished = RunProgram(DEEPPCR_SERVER_BINARY, Flags({flag}));
    EXPECT_EQ(finished.exit_code, 2) << flag;
    EXPECT_THAT(finished.output, HasSubstr(message));
  }
  EXPECT_EQ(RunProgram(DEEPPCR_SERVER_BINARY, {}).exit_code, 2);
}

TEST_F(LifecycleTest, HelpAndVersionExitWithZero) {
  const Finished help = RunProgram(DEEPPCR_SERVER_BINARY, {"--help"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_THAT(help.output, HasSubstr("--model_repository"));
  const Finished version = RunProgram(DEEPPCR_SERVER_BINARY, {"--version"});
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_THAT(version.output, HasSubstr("deeppcr-server "));
}

TEST_F(LifecycleTest, AMissingRepositoryOrBackendIsAClearError) {
  const Finished missing = RunProgram(
      DEEPPCR_SERVER_BINARY,
      {"--model_repository=/nowhere", "--listen=127.0.0.1:0", "--http_listen=127.0.0.1:0"});
  EXPECT_EQ(missing.exit_code, 1);
  EXPECT_THAT(missing.output, HasSubstr("'/nowhere' is not a directory"));
}

TEST_F(LifecycleTest, APortFileThatCannotBeWrittenIsAClearError) {
  const auto finished = RunProgram(
      DEEPPCR_SERVER_BINARY,
      {"--model_repository=" + repository_.path(), "--listen=127.0.0.1:0",
       "--http_listen=127.0.0.1:0", "--port_file=" + repository_.File("no/such/folder/ports")});
  EXPECT_EQ(finished.exit_code, 1);
  EXPECT_THAT(finished.output, HasSubstr("--port_file"));
}

TEST_F(LifecycleTest, APortClashIsAClearError) {
  const auto server = ServerProcess::Start(repository_.path());
  ASSERT_NE(server, nullptr);
  const std::string http = "127.0.0.1:" + std::to_string(server->http_port());

  const Finished grpc_clash = RunProgram(
      DEEPPCR_SERVER_BINARY, Flags({"--listen=" + server->address(), "--http_listen=127.0.0.1:0"}));
  const Finished http_clash =
      RunProgram(DEEPPCR_SERVER_BINARY, Flags({"--listen=127.0.0.1:0", "--http_listen=" + http}));

  EXPECT_EQ(grpc_clash.exit_code, 1);
  EXPECT_THAT(grpc_clash.output, HasSubstr("cannot listen on " + server->address()));
  EXPECT_EQ(http_clash.exit_code, 1);
  EXPECT_THAT(http_clash.output, HasSubstr("cannot listen on " + http));
}

TEST_F(LifecycleTest, ABrokenModelLeavesTheOthersButNotReadiness) {
  std::filesystem::create_directories(repository_.File("broken/1"));
  std::ofstream(repository_.File("broken/1/config.json")) << "{}";
  const auto server = ServerProcess::Start(repository_.path());
  ASSERT_NE(server, nullptr);

  EXPECT_FALSE(server->ready());
  EXPECT_THAT(server->Get("/readyz"), AllOf(HasSubstr("503"), HasSubstr("broken/1 has failed")));
  EXPECT_EQ(RunProgram(DEEPPCR_SERVER_BINARY, {"--probe=" + server->address()}).exit_code, 1);
  const auto stub = Connect(server->address());
  v1::ForwardResponse response;
  EXPECT_TRUE(Call(*stub, MakeRequest(), &response).ok());
  const grpc::Status refused = Call(*stub, MakeRequest(1, "broken"), &response);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(refused.error_message(), HasSubstr("config.json"));
}

TEST_F(LifecycleTest, TheProbeOfNothingFails) {
  EXPECT_EQ(RunProgram(DEEPPCR_SERVER_BINARY, {"--probe=127.0.0.1:1"}).exit_code, 1);
}

TEST_F(LifecycleTest, StopsAtOnceWithIdleConnections) {
  const auto server = ServerProcess::Start(repository_.path(), {"--drain_seconds=60"});
  ASSERT_NE(server, nullptr);
  const auto stub = Connect(server->address());
  v1::ForwardResponse response;
  ASSERT_TRUE(Call(*stub, MakeRequest(), &response).ok());

  server->Signal(SIGTERM);

  EXPECT_EQ(server->Wait(20), 0);
}

// Counts the lines of the server's log whose Forward call was answered OK.
int64_t AnswersInLog(const std::string& log) {
  std::istringstream lines(log);
  int64_t count = 0;
  for (std::string line; std::getline(lines, line);) {
    const auto parsed = nlohmann::json::parse(line, nullptr, false);
    if (!parsed.is_object() || parsed["event"] != "request") continue;
    count += parsed["method"] == "Forward" && parsed["code"] == "OK" ? 1 : 0;
  }
  return count;
}

TEST_F(LifecycleTest, DrainsUnderLoadWithoutLosingAnAcceptedRequest) {
  const auto server =
      ServerProcess::Start(repository_.path(), {"--log_level=debug", "--drain_seconds=30"});
  ASSERT_NE(server, nullptr);
  std::atomic<int64_t> answered{0};
  std::vector<std::thread> clients;
  for (int t = 0; t < 6; ++t) {
    clients.emplace_back([&] {
      const auto stub = Connect(server->address());
      while (true) {
        v1::ForwardResponse response;
        const grpc::Status status = Call(*stub, MakeRequest(4), &response);
        if (!status.ok()) {
          EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << status.error_message();
          return;
        }
        EXPECT_EQ(response.outputs().data().size(), 4u * kOutputs * sizeof(float));
        ++answered;
      }
    });
  }
  while (answered < 200) std::this_thread::sleep_for(std::chrono::milliseconds(1));

  server->Signal(SIGTERM);

  const auto code = server->Wait(40);
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(code, 0) << server->Log().substr(0, 4000);
  // Every answer that the server sent with OK reached its client.
  EXPECT_EQ(AnswersInLog(server->Log()), answered);
}

// True if the server closes the channel's connection within this time after an answered call.
bool ClosedWithin(const ServerProcess& server, std::chrono::milliseconds time) {
  grpc::ChannelArguments arguments;
  arguments.SetInt("test.distinct", static_cast<int>(time.count()));
  const auto channel =
      grpc::CreateCustomChannel(server.address(), grpc::InsecureChannelCredentials(), arguments);
  const auto stub = v1::DeepPcr::NewStub(channel);
  v1::ForwardResponse response;
  EXPECT_TRUE(Call(*stub, MakeRequest(), &response).ok());
  const bool closed =
      channel->WaitForStateChange(GRPC_CHANNEL_READY, std::chrono::system_clock::now() + time);
  EXPECT_TRUE(Call(*stub, MakeRequest(), &response).ok());
  return closed;
}

TEST_F(LifecycleTest, ConnectionsHaveAnAgeAndMayIdleForSoLong) {
  constexpr std::chrono::seconds kPatience(20), kMoment(1);
  for (const char* limit :
       {"--max_connection_age_seconds=0.2", "--max_connection_idle_seconds=0.2"}) {
    const auto server = ServerProcess::Start(repository_.path(), {limit});
    ASSERT_NE(server, nullptr);
    EXPECT_TRUE(ClosedWithin(*server, kPatience)) << limit;
  }
  const auto server = ServerProcess::Start(
      repository_.path(), {"--max_connection_age_seconds=0", "--max_connection_idle_seconds=0"});
  ASSERT_NE(server, nullptr);
  EXPECT_FALSE(ClosedWithin(*server, kMoment));
}

// Connections end beneath the calls again and again.
TEST_F(LifecycleTest, CallsDoNotNoticeThatTheirConnectionIsOld) {
  const auto server =
      ServerProcess::Start(repository_.path(), {"--max_connection_age_seconds=0.2"});
  ASSERT_NE(server, nullptr);
  std::atomic<int> closed{0};
  std::vector<std::thread> clients;
  for (int c = 0; c < 4; ++c) {
    clients.emplace_back([&, c] {
      grpc::ChannelArguments arguments;
      arguments.SetInt("test.distinct", c);
      const auto channel = grpc::CreateCustomChannel(server->address(),
                                                     grpc::InsecureChannelCredentials(), arguments);
      const auto stub = v1::DeepPcr::NewStub(channel);
      const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(3);
      while (std::chrono::steady_clock::now() < end) {
        v1::ForwardResponse response;
        const grpc::Status status = Call(*stub, MakeRequest(), &response);
        EXPECT_TRUE(status.ok()) << status.error_code() << ": " << status.error_message();
        // Calls follow one another closely, so that some meet a connection as it ends.
        std::this_thread::sleep_for(std::chrono::microseconds(200));
        closed += channel->GetState(false) != GRPC_CHANNEL_READY;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_GE(closed.load(), 4);
}

TEST_F(LifecycleTest, IsNotReadyButServesDuringThePause) {
  const auto server = ServerProcess::Start(repository_.path(), {"--drain_pause_seconds=30"});
  ASSERT_NE(server, nullptr);
  EXPECT_TRUE(server->ready());
  server->Signal(SIGTERM);
  for (int i = 0; i < 1000 && server->Get("/readyz").find("503") == std::string::npos; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }

  EXPECT_THAT(server->Get("/readyz"), AllOf(HasSubstr("503"), HasSubstr("shutting down")));
  const auto stub = Connect(server->address());
  v1::ForwardResponse response;
  EXPECT_TRUE(Call(*stub, MakeRequest(), &response).ok());
  EXPECT_EQ(RunProgram(DEEPPCR_SERVER_BINARY, {"--probe=" + server->address()}).exit_code, 1);

  // A second signal ends the pause.
  server->Signal(SIGTERM);
  EXPECT_EQ(server->Wait(20), 0);
}

// Comparisons that would take minutes, each sent by a thread of its own.
class Comparisons {
 public:
  Comparisons(const std::string& address, int count) : contexts_(count), codes_(count) {
    for (int i = 0; i < count; ++i) {
      threads_.emplace_back([this, address, i] {
        v1::CompareResponse response;
        codes_[i] = Connect(address)
                        ->Compare(&contexts_[i], LongComparison("long"), &response)
                        .error_code();
        ++ended_;
      });
    }
  }
  ~Comparisons() {
    for (std::thread& thread : threads_) thread.join();
  }

  int ended() const { return ended_; }
  void Cancel() {
    for (grpc::ClientContext& context : contexts_) context.TryCancel();
  }
  // Waits for the end of all; returns how many ended in this way.
  int64_t Count(grpc::StatusCode code) {
    for (std::thread& thread : std::exchange(threads_, {})) thread.join();
    return std::ranges::count(codes_, code);
  }

 private:
  std::deque<grpc::ClientContext> contexts_;
  std::vector<grpc::StatusCode> codes_;
  std::atomic<int> ended_{0};
  std::vector<std::thread> threads_;
};

bool AwaitComparisons(const ServerProcess& server, int in_flight) {
  const std::string wanted =
      "deeppcr_requests_in_flight{method=\"Compare\"} " + std::to_string(in_flight) + "\n";
  for (int i = 0; i < 2000; ++i) {
    if (server.Get("/metrics").find(wanted) != std::string::npos) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

TEST_F(LifecycleTest, CancelsWhatDoesNotEndInTime) {
  WriteRandomModel(repository_.File("long/1"), {.layers = 2048});
  const auto server = ServerProcess::Start(repository_.path(), {"--drain_seconds=0.2"});
  ASSERT_NE(server, nullptr);
  Comparisons comparisons(server->address(), 3);  // one runs, two wait for it
  ASSERT_TRUE(AwaitComparisons(*server, 3));

  server->Signal(SIGTERM);

  EXPECT_EQ(server->Wait(20), 1) << server->Log();
  EXPECT_EQ(comparisons.Count(grpc::StatusCode::UNAVAILABLE), 3);
}

TEST_F(LifecycleTest, AComparisonThatIsGivenUpDoesNotWaitForItsTurn) {
  WriteRandomModel(repository_.File("long/1"), {.layers = 2048});
  const auto server = ServerProcess::Start(repository_.path(), {});
  ASSERT_NE(server, nullptr);
  Comparisons running(server->address(), 1);
  ASSERT_TRUE(AwaitComparisons(*server, 1));
  Comparisons waiting(server->address(), 2);
  ASSERT_TRUE(AwaitComparisons(*server, 3));

  waiting.Cancel();

  EXPECT_TRUE(AwaitComparisons(*server, 1));
  EXPECT_EQ(running.ended(), 0);
  running.Cancel();
  EXPECT_EQ(running.Count(grpc::StatusCode::CANCELLED), 1);
  server->Signal(SIGTERM);
  EXPECT_EQ(server->Wait(20), 0) << server->Log();
}

TEST_F(LifecycleTest, ComparisonsHoldUpNoRequestAndAreBounded) {
  WriteRandomModel(repository_.File("long/1"), {.layers = 2048});
  const auto server = ServerProcess::Start(repository_.path(), {"--workers=1"});
  ASSERT_NE(server, nullptr);
  constexpr int kSent = 20, kMayWait = 16;
  Comparisons comparisons(server->address(), kSent);
  // All but the one that runs and those that may wait are refused.
  for (int i = 0; i < 2000 && comparisons.ended() < kSent - kMayWait - 1; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }

  v1::ForwardResponse response;
  const grpc::Status status = Call(*Connect(server->address()), MakeRequest(), &response);

  EXPECT_TRUE(status.ok()) << status.error_message();
  comparisons.Cancel();
  const int64_t refused = comparisons.Count(grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_GE(refused, kSent - kMayWait - 1);
  EXPECT_EQ(comparisons.Count(grpc::StatusCode::CANCELLED), kSent - refused);
  server->Signal(SIGTERM);
  EXPECT_EQ(server->Wait(20), 0) << server->Log();
}

TEST_F(LifecycleTest, AFullQueueRefusesWithItsDepth) {
  WriteRandomModel(repository_.File("long/1"), {.layers = 2048});
  const auto server = ServerProcess::Start(repository_.path(), {"--max_queue=16", "--workers=1"});
  ASSERT_NE(server, nullptr);
  std::atomic<int> refused{0}, ok{0};
  std::vector<std::thread> clients;
  for (int t = 0; t < 16; ++t) {
    clients.emplace_back([&] {
      const auto stub = Connect(server->address());
      for (int i = 0; i < 20 && refused == 0; ++i) {
        v1::ForwardRequest request = MakeRequest(16, "long");
        request.mutable_options()->set_solver("newton");
        grpc::ClientContext context;
        v1::ForwardResponse response;
        const grpc::Status status = stub->Forward(&context, request, &response);
        if (status.ok()) ++ok;
        if (status.ok()) continue;
        EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED)
            << status.error_message();
        EXPECT_THAT(status.error_message(),
                    HasSubstr("the queue of model 'long' holds 16 samples"));
        const auto& trailer = context.GetServerTrailingMetadata();
        EXPECT_EQ(trailer.count("deeppcr-queue-depth"), 1u);
        ++refused;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_GT(refused, 0);
  EXPECT_GT(ok, 0);
  server->Signal(SIGINT);
  EXPECT_EQ(server->Wait(20), 0);
}

}  // namespace
}  // namespace deeppcr::testing
