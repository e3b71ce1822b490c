// SPDX-License-Identifier: Apache-2.0
#include "client/client.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <set>
#include <thread>
#include <vector>

#include "client/array.h"
#include "tests/client/fake_service.h"

namespace deeppcr {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::unique_ptr<Client> MakeClient(const std::string& server, int connection_index = 0) {
  auto client = Client::Create({.server = server, .connection_index = connection_index});
  EXPECT_TRUE(client.ok()) << client.status();
  return *std::move(client);
}

v1::ForwardRequest OneSample() {
  v1::ForwardRequest request;
  request.set_model("fake");
  RowsToTensor({{1, 3}, {1, 2, 4}}, 0, 1, request.mutable_inputs());
  return request;
}

// A port on which nobody listens. It is bound, so that no other process takes it meanwhile.
class DeadPort {
 public:
  DeadPort() : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(::bind(socket_, generic, size), 0);
    EXPECT_EQ(::getsockname(socket_, generic, &size), 0);
    port_ = ntohs(address.sin_port);
  }
  ~DeadPort() { ::close(socket_); }
  int port() const { return port_; }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  void StartListening() const { EXPECT_EQ(::listen(socket_, 8), 0); }

 private:
  int socket_;
  int port_ = 0;
};

// Expects the code and the message; a status bears the trace id of its call too.
void ExpectEnded(const absl::Status& status, const absl::Status& expected) {
  EXPECT_EQ(status.code(), expected.code());
  EXPECT_EQ(status.message(), expected.message());
}

TEST(ClientTest, ForwardAnswers) {
  FakeService service;

  const auto reply = MakeClient(service.address())->Forward(OneSample()).value();

  EXPECT_THAT(TensorToArray(reply.outputs(), "outputs")->values, ElementsAre(3, 4));
}

TEST(ClientTest, EveryOtherCallAnswers) {
  FakeService service;
  const auto client = MakeClient(service.address());

  EXPECT_EQ(client->ListModels()->models_size(), 3);
  EXPECT_EQ(client->GetModel("fake")->input_dim(), kFakeInputs);
  EXPECT_EQ(client->LoadModel("fake")->summary().version(), 7);
  EXPECT_TRUE(client->UnloadModel("fake").ok());
  v1::CompareRequest request;
  request.add_options()->set_solver("newton");
  EXPECT_EQ(client->Compare(request)->rows(0).solver(), "newton");
}

v1::GenerateRequest TwoDrawings() {
  v1::GenerateRequest request;
  request.set_model("draw");
  request.set_request_id("mine");
  request.mutable_input()->set_num_samples(2);
  return request;
}

TEST(ClientTest, GenerateAnswers) {
  FakeService service;

  const auto reply = MakeClient(service.address())->Generate(TwoDrawings()).value();

  EXPECT_EQ(reply.samples().shape(0), 2);
  EXPECT_EQ(reply.request_id(), "mine");
}

TEST(ClientTest, StreamGenerateTellsProgressAndAnswersTheSame) {
  FakeService service;
  const auto client = MakeClient(service.address());
  std::vector<int> iterations;

  const auto reply = client->StreamGenerate(TwoDrawings(), [&](const v1::GenerateProgress& solve) {
    iterations.push_back(solve.iterations());
  });

  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_THAT(iterations, ElementsAre(1, 2, 3));
  EXPECT_EQ(reply->request_id(), "mine");
  EXPECT_EQ(reply->samples().data(), client->Generate(TwoDrawings())->samples().data());
}

TEST(ClientTest, FailuresOfGenerationComeThrough) {
  FakeService service;
  service.on_generate = [](auto*, const auto&, auto*) {
    return grpc::Status(grpc::StatusCode::ABORTED, "no convergence");
  };
  const auto client = MakeClient(service.address());
  const auto ignore = [](const v1::GenerateProgress&) {};

  ExpectEnded(client->Generate(TwoDrawings()).status(), absl::AbortedError("no convergence"));
  ExpectEnded(client->StreamGenerate(TwoDrawings(), ignore).status(),
              absl::AbortedError("no convergence"));
  EXPECT_EQ(service.calls(), 2);
}

TEST(ClientTest, StreamsThatBreakTheProtocolAreInternal) {
  FakeService service;
  const auto client = MakeClient(service.address());
  const auto ignore = [](const v1::GenerateProgress&) {};
  service.on_stream = [](grpc::ServerWriter<v1::StreamGenerateResponse>* writer) {
    writer->Write(v1::StreamGenerateResponse());
    return grpc::Status::OK;
  };
  ExpectEnded(client->StreamGenerate(TwoDrawings(), ignore).status(),
              absl::InternalError("bad reply: the stream ended without a result"));

  service.on_stream = [](grpc::ServerWriter<v1::StreamGenerateResponse>* writer) {
    v1::StreamGenerateResponse result;
    result.mutable_result();
    while (writer->Write(result)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return grpc::Status::OK;
  };
  ExpectEnded(client->StreamGenerate(TwoDrawings(), ignore).status(),
              absl::InternalError("bad reply: messages after the result"));
}

TEST(ClientTest, DeadlineEndsAStream) {
  FakeService service;
  service.on_generate = [](grpc::ServerContext* context, const auto&, auto*) {
    while (!context->IsCancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return grpc::Status::CANCELLED;
  };
  const auto ignore = [](const v1::GenerateProgress&) {};

  const auto reply =
      MakeClient(service.address())->StreamGenerate(TwoDrawings(), ignore, absl::Milliseconds(100));

  EXPECT_EQ(reply.status().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST(ClientTest, HealthOfServerAndModels) {
  FakeService service;
  const auto client = MakeClient(service.address());

  EXPECT_EQ(*client->CheckHealth(""), Health::kServing);
  EXPECT_EQ(*client->CheckHealth("fake"), Health::kServing);
  EXPECT_EQ(*client->CheckHealth("broken"), Health::kNotServing);
  EXPECT_EQ(client->CheckHealth("other").status().code(), absl::StatusCode::kNotFound);
}

TEST(ClientTest, EveryStatusCodeComesThroughWithItsMessageAndIsNeverRepeated) {
  FakeService service;
  const auto client = MakeClient(service.address());
  for (int code = 1; code <= 16; ++code) {
    service.on_forward = [code](auto*, const auto&, auto*) {
      return grpc::Status(static_cast<grpc::StatusCode>(code), "why");
    };
    const int before = service.calls();

    const auto reply = client->Forward(OneSample());

    EXPECT_EQ(static_cast<int>(reply.status().code()), code);
    EXPECT_EQ(reply.status().message(), "why");
    EXPECT_EQ(service.calls(), before + 1) << "code " << code;
  }
}

TEST(ClientTest, EveryCallHasATraceOfItsOwn) {
  FakeService service;
  const auto client = MakeClient(service.address());
  std::set<std::string> traces;
  std::string last;
  service.on_forward = [&](auto* context, const auto&, auto*) {
    const auto found = context->client_metadata().find("traceparent");
    if (found == context->client_metadata().end()) return grpc::Status::OK;
    last = std::string(found->second.data(), found->second.size());
    traces.insert(last);
    const auto id = context->client_metadata().find("x-request-id");
    EXPECT_TRUE(id != context->client_metadata().end() &&
                std::string(id->second.data(), id->second.size()) == last.substr(3, 32));
    return traces.size() == 8 ? grpc::Status(grpc::StatusCode::ABORTED, "why") : grpc::Status::OK;
  };
  absl::Status status;
  for (int i = 0; i < 8; ++i) status = client->Forward(OneSample()).status();
  EXPECT_EQ(traces.size(), 8u);
  for (const std::string& trace : traces)
    EXPECT_THAT(trace, ::testing::MatchesRegex("00-[0-9a-f]{32}-[0-9a-f]{16}-00"));
  EXPECT_EQ(TraceIdOf(status), last.substr(3, 32));
  EXPECT_EQ(TraceIdOf(absl::OkStatus()), "");
  EXPECT_EQ(TraceIdOf(absl::InvalidArgumentError("before it was sent")), "");
}

TEST(ClientTest, DeadlineReachesTheServerAndEndsTheCall) {
  FakeService service;
  std::atomic<bool> cancelled{false};
  service.on_forward = [&](grpc::ServerContext* context, const auto&, auto*) {
    while (!context->IsCancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    cancelled = true;
    return grpc::Status::CANCELLED;
  };
  const auto start = std::chrono::steady_clock::now();

  const auto reply = MakeClient(service.address())->Forward(OneSample(), absl::Milliseconds(100));

  EXPECT_EQ(reply.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
  while (!cancelled) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

TEST(ClientTest, UnreachableServerIsUnavailableAfterBoundedAttempts) {
  const DeadPort port;
  const auto start = std::chrono::steady_clock::now();

  const auto reply = MakeClient(port.address())->Forward(OneSample(), absl::Seconds(60));

  EXPECT_EQ(reply.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(reply.status().message(), "cannot connect to " + port.address() + " (attempts: 3)");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
}

TEST(ClientTest, ConnectionAttemptsEndWithTheDeadline) {
  const DeadPort port;
  const auto client = Client::Create({.server = port.address(), .max_connect_attempts = 1'000'000});
  ASSERT_TRUE(client.ok());
  const auto start = std::chrono::steady_clock::now();

  const auto reply = (*client)->Forward(OneSample(), absl::Milliseconds(500));

  const auto elapsed = std::chrono::steady_clock::now() - start;
  EXPECT_EQ(reply.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_GE(elapsed, std::chrono::milliseconds(490));
  EXPECT_LT(elapsed, std::chrono::seconds(10));
}

TEST(ClientTest, ServerThatAcceptsAndSaysNothingIsADeadline) {
  const DeadPort port;
  port.StartListening();

  const auto reply = MakeClient(port.address())->Forward(OneSample(), absl::Milliseconds(300));

  EXPECT_EQ(reply.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(reply.status().message()), HasSubstr("no connection to"));
}

TEST(ClientTest, RetriesUntilAServerThatStartsLateIsThere) {
  auto port = std::make_unique<DeadPort>();
  const auto client = Client::Create({.server = port->address(), .max_connect_attempts = 20});
  ASSERT_TRUE(client.ok());
  absl::Status status = absl::UnknownError("did not run");
  std::thread call([&] { status = (*client)->UnloadModel("fake", 0, absl::Seconds(30)); });
  std::this_thread::sleep_for(std::chrono::milliseconds(400));

  const int number = port->port();
  port.reset();
  FakeService service(number);
  call.join();

  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(service.calls(), 1);
}

TEST(ClientTest, NoticesThatTheServerWentAwayAndFindsTheNextOne) {
  auto service = std::make_unique<FakeService>();
  const int port = service->port();
  const auto client = MakeClient(service->address());
  ASSERT_TRUE(client->Forward(OneSample()).ok());
  service.reset();

  const auto without = client->Forward(OneSample(), absl::Seconds(20));
  service = std::make_unique<FakeService>(port);
  const auto with = client->Forward(OneSample(), absl::Seconds(20));

  EXPECT_EQ(without.status().code(), absl::StatusCode::kUnavailable) << without.status();
  EXPECT_TRUE(with.ok()) << with.status();
}

TEST(ClientTest, ManyThreadsShareOneClient) {
  FakeService service;
  const auto client = MakeClient(service.address());
  std::atomic<int> good{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 25; ++i) good += client->Forward(OneSample()).ok() ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();

  EXPECT_EQ(good, 200);
  EXPECT_EQ(service.calls(), 200);
}

TEST(ClientTest, RefusesReplyLargerThanAllowed) {
  FakeService service;
  service.on_forward = [](auto*, const auto&, v1::ForwardResponse* reply) {
    reply->mutable_outputs()->set_data(std::string(2000, 'x'));
    return grpc::Status::OK;
  };
  const auto client = Client::Create({.server = service.address(), .max_reply_bytes = 1000});

  EXPECT_EQ((*client)->Forward(OneSample()).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(ClientTest, RefusesAddressesThatAreNotHostPort) {
  for (const char* server : {"", "host", ":8001", "host:", "host:0", "host:65536", "host:http",
                             "unix:", "::1:80", "[]:80", "a b:80", "dns:///host"}) {
    const auto client = Client::Create({.server = server});
    EXPECT_EQ(client.status().code(), absl::StatusCode::kInvalidArgument) << server;
    EXPECT_THAT(std::string(client.status().message()), HasSubstr("expected host:port")) << server;
  }
  EXPECT_TRUE(Client::Create({.server = "[::1]:8001"}).ok());
  EXPECT_TRUE(Client::Create({.server = "localhost:1"}).ok());
  EXPECT_TRUE(Client::Create({.server = "dns:///host:80"}).ok());
  EXPECT_THAT(std::string(Client::Create({.server = "10.0.0.1:1,10.0.0.2:1", .tls_ca = "ca.pem"})
                              .status()
                              .message()),
              HasSubstr("in place of a list"));
  EXPECT_FALSE(Client::Create({.server = "dns:///host:80", .token = "0123456789abcdef"}).ok());
  EXPECT_TRUE(Client::Create({.server = "unix:/run/x.sock", .token = "0123456789abcdef"}).ok());
  EXPECT_FALSE(Client::Create({.server = "unix:/run/x.sock", .tls_ca = "ca.pem"}).ok());
}

TEST(ClientTest, RefusesOptionsOutOfRange) {
  EXPECT_FALSE(Client::Create({.deadline = absl::ZeroDuration()}).ok());
  EXPECT_FALSE(Client::Create({.max_connect_attempts = 0}).ok());
}

}  // namespace
}  // namespace deeppcr
