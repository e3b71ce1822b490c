// SPDX-License-Identifier: Apache-2.0
// Everything at once, for as long as DEEPPCR_TEST_SECONDS says (default 10): steady load on two
// servers while models are reloaded, one of the servers is drained and started again, calls are
// cancelled, clients misbehave and the certificate changes. No request that was accepted is lost,
// every answer is that of the first moment, and memory comes to rest.
#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <mutex>
#include <random>
#include <thread>

#include "client/client.h"
#include "tests/integration/certificates.h"
#include "tests/integration/documented_service_config.h"
#include "tests/integration/service_fixture.h"
#include "tests/testing/connection.h"

namespace deeppcr::testing {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr char kInfer[] = "infer-0123456789abcdef", kAdmin[] = "admin-0123456789abcdef";

double Seconds() {
  const char* wanted = std::getenv("DEEPPCR_TEST_SECONDS");
  return wanted == nullptr ? 10 : std::max(5.0, std::atof(wanted));
}

class SoakTest : public ::testing::Test {
 protected:
  void SetUp() override {
    WriteRandomModel(folder_.File("models/net/1"), {.width = 64});
    WriteRandomModel(folder_.File("models/long/1"), {.layers = 2048, .width = 64});
    for (int version = 1; version <= 3; ++version)
      WriteRandomModel(folder_.File("models/other/" + std::to_string(version)),
                       {.layers = 64, .width = 128, .seed = 7});
    std::ofstream(folder_.File("tokens"))
        << "infer " << kInfer << "\nadmin " << kAdmin << " name=operator\n";
    std::filesystem::permissions(folder_.File("tokens"), std::filesystem::perms::owner_read |
                                                             std::filesystem::perms::owner_write);
    MakeAuthority(folder_, "ca");
    MakeCertificate(folder_, "server", "ca");
    for (size_t i = 0; i < servers_.size(); ++i) Start(i, "127.0.0.1:0");
  }

  void Start(size_t i, const std::string& address) {
    servers_[i] = ServerProcess::Start(
        folder_.File("models"),
        {"--listen=" + address, "--rest_listen=127.0.0.1:0",
         "--token_file=" + folder_.File("tokens"), "--tls_cert=" + folder_.File("server.pem"),
         "--tls_key=" + folder_.File("server.key"), "--plan_cache_dir=" + folder_.File("plans"),
         "--drain_pause_seconds=2", "--versions=latest,other=all", "--reply_seconds=2",
         // Connections end in the middle of it all.
         "--max_connection_age_seconds=5"});
    ASSERT_NE(servers_[i], nullptr);
  }

  std::unique_ptr<Client> NewClient(const char* token) {
    absl::StatusOr<std::unique_ptr<Client>> client =
        Client::Create({.server = kept().address(),
                        .tls_ca = folder_.File("ca.pem"),
                        .token = token,
                        .connection_index = ++connections_});
    EXPECT_TRUE(client.ok()) << client.status();
    return *std::move(client);
  }
  const ServerProcess& kept() const { return *servers_[0]; }

  // Does it again and again until the end, once in every such time, in a thread of its own.
  void Repeat(milliseconds pause, std::function<void(int)> action) {
    actors_.emplace_back([this, pause, action = std::move(action)] {
      Clock::time_point next = Clock::now();
      for (int i = 0; !done_.load(); ++i) {
        action(i);
        next = std::max(next + pause, Clock::now());
        while (!done_.load() && Clock::now() < next)
          std::this_thread::sleep_for(std::min(pause, milliseconds(20)));
      }
    });
  }

  // A stub for these addresses, which heeds health, and makes a call again that none could take.
  std::shared_ptr<v1::DeepPcr::Stub> NewStub(const std::string& addresses) {
    grpc::SslCredentialsOptions tls;
    std::ifstream file(folder_.File("ca.pem"));
    tls.pem_root_certs = {std::istreambuf_iterator<char>(file), {}};
    grpc::ChannelArguments arguments;
    arguments.SetServiceConfigJSON(DocumentedServiceConfig());
    arguments.SetSslTargetNameOverride("localhost");
    arguments.SetInt("test.distinct", ++connections_);
    return v1::DeepPcr::NewStub(
        grpc::CreateCustomChannel("ipv4:" + addresses, grpc::SslCredentials(tls), arguments));
  }
  static void SayWho(grpc::ClientContext& context) {
    context.AddMetadata("authorization", std::string("Bearer ") + kInfer);
  }

  // Requests whose answers have to be the same bits whatever happens.
  void AddLoad(const std::string& addresses) {
    const auto call = [stub = NewStub(addresses)](v1::ForwardResponse* response) {
      grpc::ClientContext context;
      SayWho(context);
      context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
      return stub->Forward(&context, MakeRequest(4, "net", 64), response);
    };
    v1::ForwardResponse first;
    const grpc::Status status = call(&first);
    ASSERT_TRUE(status.ok()) << status.error_message();
    Repeat(milliseconds(10), [this, call, expected = first.outputs().data()](int) {
      v1::ForwardResponse response;
      const grpc::Status end = call(&response);
      ++(end.ok() ? answered_ : lost_);
      EXPECT_TRUE(end.ok()) << end.error_code() << " " << end.error_message();
      if (end.ok()) {
        EXPECT_TRUE(response.outputs().data() == expected);
      }
    });
  }

  void ReloadModels() {
    std::shared_ptr<Client> client = NewClient(kAdmin);
    Repeat(milliseconds(500), [this, client](int i) {
      // The model under load is replaced by itself; the other one comes and goes.
      const auto loaded = client->LoadModel("net", 1, absl::Seconds(60));
      EXPECT_TRUE(loaded.ok()) << loaded.status();
      const int version = 1 + i % 3;
      const auto other = client->LoadModel("other", version, absl::Seconds(60));
      EXPECT_TRUE(other.ok()) << other.status();
      const absl::Status unloaded = client->UnloadModel("other", version, absl::Seconds(60));
      EXPECT_TRUE(unloaded.ok()) << unloaded;
      ++reloads_;
    });
  }

  void DrainTheOtherServer() {
    Repeat(milliseconds(2000), [this](int) {
      const std::string address = servers_[1]->address();
      servers_[1]->Signal(SIGTERM);
      EXPECT_EQ(servers_[1]->Wait(60), 0) << servers_[1]->Log();
      Start(1, address);
      // A channel tries again within a second or two.
      std::this_thread::sleep_for(std::chrono::seconds(3));
      ++drains_;
    });
  }

  void CancelCalls() {
    Repeat(milliseconds(50), [this, stub = NewStub(kept().address())](int i) {
      grpc::ClientContext context;
      SayWho(context);
      // Half of them by their deadline.
      const auto length =
          std::chrono::microseconds(std::mt19937(static_cast<unsigned>(i))() % 9000);
      context.set_deadline(std::chrono::system_clock::now() +
                           (i % 2 == 0 ? length : std::chrono::microseconds(10'000'000)));
      std::thread cancel([&] {
        std::this_thread::sleep_for(length);
        if (i % 2 == 1) context.TryCancel();
      });
      v1::ForwardResponse response;
      stub->Forward(&context, MakeRequest(8, "long", 64), &response);
      cancel.join();
      ++cancelled_;
    });
  }

  // Half of what a client would send, or none of it.
  void Misbehave() {
    Repeat(milliseconds(50), [this](int i) {
      std::mt19937 random(static_cast<unsigned>(i));
      std::string noise(1 + random() % 4000, '\0');
      for (char& c : noise) c = static_cast<char>(random());
      const std::string texts[] = {
          "",
          noise,
          "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + noise,
          "GET /metrics HTTP/1.1\r\nHost: " + std::string(2000, 'x'),
          "POST /v2/models/net/infer HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " +
              std::string(kInfer) + "\r\nContent-Length: 100000\r\n\r\n{\"inputs\":[",
          "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + noise,
      };
      const int ports[] = {kept().grpc_port(), kept().http_port(), kept().rest_port()};
      held_.push_back(std::make_unique<Connection>(ports[i % 3]));
      const Connection& connection = *held_.back();
      connection.Send(texts[static_cast<size_t>(i) % std::size(texts)]);
      // Some stay for a while.
      if (held_.size() > 40) held_.erase(held_.begin(), held_.begin() + 20);
    });
    Repeat(milliseconds(200), [this](int) {
      const auto stranger = NewClient("stranger-0123456789ab");
      const auto reply = stranger->Forward(MakeRequest(1, "net", 64), absl::Seconds(20));
      EXPECT_EQ(reply.status().code(), absl::StatusCode::kUnauthenticated);
    });
  }

  void ChangeCertificates() {
    Repeat(milliseconds(3000), [this](int) {
      MakeCertificate(folder_, "next", "ca");
      // Never at one moment: there is a time when they do not fit.
      std::filesystem::rename(folder_.File("next.key"), folder_.File("server.key"));
      std::this_thread::sleep_for(milliseconds(10));
      std::filesystem::rename(folder_.File("next.pem"), folder_.File("server.pem"));
      ++certificates_;
    });
  }

  static double Resident(const ServerProcess& server) {
    const std::string text = server.Get("/metrics"), series = "\nprocess_resident_memory_bytes ";
    const size_t at = text.find(series);
    return at == std::string::npos ? 0 : std::stod(text.substr(at + series.size()));
  }

  // The mean of the resident memory of the server that stays, over a tenth of the time up to here.
  struct Memory {
    double total = 0;
    int count = 0;
    double mean() const { return total / std::max(count, 1); }
  };

  TemporaryDirectory folder_;
  std::array<std::unique_ptr<ServerProcess>, 2> servers_;
  std::vector<std::unique_ptr<Connection>> held_;
  std::atomic<bool> done_{false};
  std::atomic<int> connections_{0};
  std::atomic<int64_t> answered_{0}, lost_{0}, reloads_{0}, drains_{0}, cancelled_{0},
      certificates_{0};
  std::vector<std::thread> actors_;
};

TEST_F(SoakTest, LosesNoRequestAndKeepsNoMemory) {
  const std::string both = kept().address() + "," + servers_[1]->address();
  for (const std::string& server : {kept().address(), both, both}) AddLoad(server);
  ReloadModels();
  DrainTheOtherServer();
  CancelCalls();
  Misbehave();
  ChangeCertificates();

  const double seconds = Seconds();
  const Clock::time_point start = Clock::now();
  Memory early, late;
  for (double part = 0; part < 1;) {
    std::this_thread::sleep_for(milliseconds(500));
    part = std::chrono::duration<double>(Clock::now() - start).count() / seconds;
    Memory* const memory = part > 0.28 && part < 0.38 ? &early : part > 0.9 ? &late : nullptr;
    if (memory == nullptr) continue;
    memory->total += Resident(kept());
    ++memory->count;
  }
  done_.store(true);
  for (std::thread& actor : actors_) actor.join();

  const double growth = late.mean() / early.mean() - 1;
  std::printf(
      "%.0f s: %lld answered, %lld lost, %lld reloads, %lld drains, %lld cancelled, %lld "
      "certificates; %.1f MiB at a third of the time, %+.2f %% at the end\n",
      seconds, static_cast<long long>(answered_), static_cast<long long>(lost_),
      static_cast<long long>(reloads_), static_cast<long long>(drains_),
      static_cast<long long>(cancelled_), static_cast<long long>(certificates_),
      early.mean() / (1 << 20), 100 * growth);
  EXPECT_EQ(lost_, 0);
  EXPECT_GT(answered_, static_cast<int64_t>(10 * seconds));
  for (const auto* count : {&reloads_, &drains_, &cancelled_, &certificates_}) EXPECT_GT(*count, 0);
  // A server that has just started still grows into its caches.
  if (seconds >= 900) {
    EXPECT_LT(std::fabs(growth), 0.02);
  }
  held_.clear();
  for (const auto& server : servers_) {
    server->Signal(SIGTERM);
    EXPECT_EQ(server->Wait(60), 0) << server->Log();
  }
}

}  // namespace
}  // namespace deeppcr::testing
