// SPDX-License-Identifier: Apache-2.0
// Resources that must not grow: memory over reloads, and whatever vanishing clients leave behind.
// DEEPPCR_TEST_CYCLES (default 40) is the number of reloads and of clients; tests/run.sh --full
// takes 500.
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <random>
#include <set>
#include <thread>

#include "tests/integration/service_fixture.h"
#include "tests/testing/sanitizers.h"

extern char** environ;

namespace deeppcr {
namespace {

int Cycles() {
  const char* wanted = std::getenv("DEEPPCR_TEST_CYCLES");
  return wanted == nullptr ? 40 : std::max(20, std::atoi(wanted));
}

class EnduranceTest : public ServiceTest {
 protected:
  static void SetUpTestSuite() {
    repository_ = std::make_unique<testing::TemporaryDirectory>();
    testing::WriteRandomModel(repository_->File("net/1"), {});
    // Each version has 4 MiB of weights.
    for (int version = 1; version <= 40; ++version)
      testing::WriteRandomModel(repository_->File("big/" + std::to_string(version)),
                                {.layers = 64, .width = 128, .seed = 7});
    server_ = testing::ServerProcess::Start(
        repository_->path(),
        // A policy that names a version retires none: these tests keep what they load.
        {"--plan_cache_dir=" + repository_->File(".plans"), "--shadow_rate=0",
         "--versions=latest,big=1"});
  }

  grpc::Status Load(int64_t version) {
    v1::LoadModelRequest request;
    request.set_model("big");
    request.set_version(version);
    v1::LoadModelResponse response;
    grpc::ClientContext context;
    return stub_->LoadModel(&context, request, &response);
  }
  grpc::Status Unload(int64_t version) {
    v1::UnloadModelRequest request;
    request.set_model("big");
    request.set_version(version);
    v1::UnloadModelResponse response;
    grpc::ClientContext context;
    return stub_->UnloadModel(&context, request, &response);
  }
  double Resident() { return Metric("process_resident_memory_bytes"); }

  // True if memory has come to rest: the least size in the last quarter of the cycles is less than
  // two models above the least size in the second. Memory that is only slow to be freed comes and
  // goes; a leak stays.
  template <typename Cycle>
  bool Plateaus(int cycles, const Cycle& cycle) {
    double least[4] = {HUGE_VAL, HUGE_VAL, HUGE_VAL, HUGE_VAL};
    for (int i = 0; i < cycles; ++i) {
      cycle(i);
      double& quarter = least[4 * i / cycles];
      quarter = std::min(quarter, Resident());
    }
    const double grown = least[3] - least[1];
    std::printf("%d cycles: %.1f MiB in the second quarter, %+.1f MiB in the last\n", cycles,
                least[1] / (1 << 20), grown / (1 << 20));
    return grown < 8 * (1 << 20);
  }
};

TEST_F(EnduranceTest, ReloadsPlateau) {
  if (testing::kAddressSanitizer)
    GTEST_SKIP() << "AddressSanitizer keeps what is freed, and finds leaks by itself";
  // Every cycle loads, replaces and unloads the model, and so ends as it began.
  EXPECT_TRUE(Plateaus(Cycles(), [&](int) {
    ASSERT_TRUE(Load(1).ok());
    ASSERT_TRUE(Load(1).ok());
    ASSERT_TRUE(Unload(1).ok());
    v1::ForwardResponse response;
    ASSERT_TRUE(Call(*stub_, MakeRequest(), &response).ok());
  }));
  ASSERT_TRUE(Load(1).ok());
}

// These cycles keep the model that they load.
TEST_F(EnduranceTest, AModelThatIsKeptEachTimeIsNoticed) {
  EXPECT_FALSE(Plateaus(20, [&](int i) { ASSERT_TRUE(Load(2 + i).ok()); }));
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(Unload(2 + i).ok());
}

// Over a thousand calls are cancelled at random moments.
TEST_F(EnduranceTest, CancelledCallsLeaveNothing) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      const auto stub = Connect(server_->address());
      for (int i = 0; i < 260; ++i) {
        v1::ForwardRequest request = MakeRequest(16, "big", 128);
        request.mutable_options()->set_solver(i % 2 == 0 ? "newton" : "sequential");
        grpc::ClientContext context;
        std::thread cancel([&context, pause = random() % 4000] {
          std::this_thread::sleep_for(std::chrono::microseconds(pause));
          context.TryCancel();
        });
        v1::ForwardResponse response;
        const grpc::Status status = stub->Forward(&context, request, &response);
        // Calls may fill the queue while the server has not heard of their end.
        const std::set<grpc::StatusCode> expected = {grpc::StatusCode::OK,
                                                     grpc::StatusCode::CANCELLED,
                                                     grpc::StatusCode::RESOURCE_EXHAUSTED};
        EXPECT_TRUE(expected.contains(status.error_code()))
            << status.error_code() << ": " << status.error_message();
        cancel.join();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ExpectIdle();
}

// Clients are killed in the middle of their work.
TEST_F(EnduranceTest, KilledClientsLeaveNothing) {
  const std::string answered =
      "deeppcr_requests_total{code=\"OK\",method=\"Forward\",model=\"net\"}";
  ExpectServing();
  const double before = Metric(answered);
  std::mt19937 random(1);
  const std::string address = server_->address();
  for (int i = 0; i < Cycles() / 2; ++i) {
    const char* arguments[] = {DEEPPCR_CLIENT_BINARY, "bench",     "net", "--server",
                               address.c_str(),       "--seconds", "30",  nullptr};
    posix_spawn_file_actions_t quiet;
    posix_spawn_file_actions_init(&quiet);
    posix_spawn_file_actions_addopen(&quiet, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&quiet, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    pid_t client = 0;
    ASSERT_EQ(posix_spawn(&client, DEEPPCR_CLIENT_BINARY, &quiet, nullptr,
                          const_cast<char**>(arguments), environ),
              0);
    posix_spawn_file_actions_destroy(&quiet);
    // Some time after its first answers, however long it takes to start.
    const double others = Metric(answered);
    for (int wait = 0; wait < 4000 && Metric(answered) < others + 3; ++wait)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 120));
    kill(client, SIGKILL);
    int status = 0;
    waitpid(client, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status)) << "it ended by itself, with " << WEXITSTATUS(status);
  }
  ExpectIdle();
  EXPECT_GT(Metric(answered), before + Cycles());
}

}  // namespace
}  // namespace deeppcr
