// SPDX-License-Identifier: Apache-2.0
// The v2 protocol over HTTP, as curl and other clients speak it, against the same over gRPC.
#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "inference/grpc_service.grpc.pb.h"
#include "tests/integration/service_fixture.h"
#include "tests/testing/connection.h"

namespace deeppcr::testing {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

constexpr char kInfer[] = "infer-0123456789abcdef", kAdmin[] = "admin-0123456789abcdef";

struct HttpAnswer {
  int code = 0;
  std::string head, body;
};

HttpAnswer Ask(const ServerProcess& server, const std::string& method, const std::string& path,
               const std::string& body = "", const std::string& headers = "") {
  const std::string text = server.Http(
      method + " " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + headers +
          (method == "POST" ? "Content-Length: " + std::to_string(body.size()) + "\r\n" : "") +
          "\r\n" + body,
      server.rest_port());
  HttpAnswer answer;
  const size_t end = text.find("\r\n\r\n");
  if (end == std::string::npos || text.size() < 12) return answer;
  answer.code = std::stoi(text.substr(9, 3));
  answer.head = text.substr(0, end);
  answer.body = text.substr(end + 4);
  return answer;
}

class RestTest : public ::testing::Test {
 protected:
  void SetUp() override { WriteRandomModel(repository_.File("net/1"), {}); }
  std::unique_ptr<ServerProcess> Start(std::vector<std::string> flags = {}) {
    flags.push_back("--rest_listen=127.0.0.1:0");
    return ServerProcess::Start(repository_.path(), std::move(flags));
  }
  static std::string InferBody(int64_t n = 2) {
    const std::vector<float> values = Values(MakeRequest(n).inputs());
    return json({{"id", "r"},
                 {"inputs",
                  {{{"name", "inputs"},
                    {"shape", {n, kWidth}},
                    {"datatype", "FP32"},
                    {"data", values}}}}})
        .dump();
  }

  TemporaryDirectory repository_;
};

TEST_F(RestTest, AnswersAsGrpcDoes) {
  const auto server = Start();
  ASSERT_NE(server, nullptr);
  const auto stub = Connect(server->address());
  v1::ForwardResponse response;
  ASSERT_TRUE(Call(*stub, MakeRequest(), &response).ok());

  const HttpAnswer answer = Ask(*server, "POST", "/v2/models/net/infer", InferBody());

  ASSERT_EQ(answer.code, 200) << answer.body;
  EXPECT_THAT(answer.head, HasSubstr("Content-Type: application/json"));
  const json reply = json::parse(answer.body);
  EXPECT_EQ(reply["id"], "r");
  EXPECT_EQ(reply["model_version"], "1");
  EXPECT_EQ(reply["parameters"]["converged"], true);
  EXPECT_EQ(reply["outputs"][0]["data"].get<std::vector<float>>(), Values(response.outputs()));
  EXPECT_EQ(reply["outputs"][0]["shape"], json({2, kOutputs}));
  EXPECT_THAT(
      server->Get("/metrics"),
      HasSubstr("deeppcr_requests_total{code=\"OK\",method=\"ModelInfer\",model=\"net\"} 1"));
}

TEST_F(RestTest, TakesAndGivesBytes) {
  const auto server = Start();
  ASSERT_NE(server, nullptr);
  const std::string values = MakeRequest().inputs().data();
  const std::string object = json({{"parameters", {{"binary_data_output", true}}},
                                   {"inputs",
                                    {{{"name", "inputs"},
                                      {"shape", {2, kWidth}},
                                      {"datatype", "FP32"},
                                      {"parameters", {{"binary_data_size", values.size()}}}}}}})
                                 .dump();
  const HttpAnswer answer =
      Ask(*server, "POST", "/v2/models/net/versions/1/infer", object + values,
          "Inference-Header-Content-Length: " + std::to_string(object.size()) + "\r\n");
  ASSERT_EQ(answer.code, 200) << answer.body;
  EXPECT_THAT(answer.head, HasSubstr("Content-Type: application/octet-stream"));
  const size_t at = answer.head.find("Inference-Header-Content-Length: ");
  ASSERT_NE(at, std::string::npos);
  const size_t length = std::stoul(answer.head.substr(at + 33));
  const auto stub = Connect(server->address());
  v1::ForwardResponse response;
  ASSERT_TRUE(Call(*stub, MakeRequest(), &response).ok());
  EXPECT_EQ(answer.body.substr(length), response.outputs().data());
}

TEST_F(RestTest, DescribesWhatItServes) {
  const auto server = Start();
  ASSERT_NE(server, nullptr);
  const auto get = [&](const std::string& path) {
    const HttpAnswer answer = Ask(*server, "GET", path);
    EXPECT_EQ(answer.code, 200) << path << answer.body;
    return json::parse(answer.body, nullptr, false);
  };
  EXPECT_EQ(get("/v2")["name"], "deeppcr-serve");
  EXPECT_EQ(get("/v2/health/live")["live"], true);
  EXPECT_EQ(get("/v2/health/ready")["ready"], true);
  EXPECT_EQ(get("/v2/models/net/ready")["ready"], true);
  EXPECT_EQ(get("/v2/models/net")["inputs"][0]["shape"], json({-1, kWidth}));
  EXPECT_EQ(get("/v2/models/net/config")["max_batch_size"], 16);
  EXPECT_EQ(get("/v2/models/net/stats")["model_stats"][0]["name"], "net");
  EXPECT_EQ(get("/v2/models/stats")["model_stats"].size(), 1u);
  const HttpAnswer index = Ask(*server, "POST", "/v2/repository/index", R"({"ready": true})");
  EXPECT_EQ(json::parse(index.body)[0]["name"], "net");
  EXPECT_EQ(Ask(*server, "GET", "/v2/models/other/ready").code, 503);
}

TEST_F(RestTest, RefusesWithTheReason) {
  const auto server = Start({"--max_message_bytes=65536"});
  ASSERT_NE(server, nullptr);
  struct Case {
    const char *method, *path;
    std::string body;
    int code;
    const char* text;
  };
  const std::string good = InferBody();
  std::string wide = good;
  for (const Case& each : std::vector<Case>{
           {"GET", "/v2/nothing", "", 404, "v2 protocol"},
           {"GET", "/v2/models/net/infer", "", 405, "expected POST"},
           {"POST", "/v2/models/net/ready", "", 405, "expected GET"},
           {"POST", "/v2/models/other/infer", good, 404, "other"},
           {"POST", "/v2/models/net/versions/7/infer", good, 404, "7"},
           {"POST", "/v2/models/net/versions/x/infer", good, 400, "version"},
           {"POST", "/v2/models/net/infer", "{", 400, "JSON"},
           {"POST", "/v2/models/net/infer", "{}", 400, "inputs"},
           {"POST", "/v2/models/net/infer", InferBody(65536 / 8), 413, "at most 65536 bytes"},
           {"POST", "/v2/repository/index", R"({"other": 1})", 400, "other"},
           {"POST", "/v2/repository/models/net/load", "", 403, "a token of the role admin"},
           {"POST", "/v2/repository/models/net/unload", "", 403, "over HTTP"},
           {"GET", "/v2/models/net%2Fready", "", 400, "model: expected 1 to 128"},
           {"GET", "/v2/models/net%00/ready", "", 400, "model: expected 1 to 128"}}) {
    const HttpAnswer answer = Ask(*server, each.method, each.path, each.body);
    EXPECT_EQ(answer.code, each.code) << each.path << " " << each.body.substr(0, 80);
    const json error = json::parse(answer.body, nullptr, false);
    ASSERT_TRUE(error.is_object()) << answer.body;
    EXPECT_THAT(error["error"].get<std::string>(), HasSubstr(each.text)) << each.path;
  }
  EXPECT_EQ(Ask(*server, "POST", "/v2/models/net/infer", good).code, 200);
}

// 429 would have its client try again for ever.
TEST_F(RestTest, WhatNeverFitsIsNotOneToTryAgain) {
  const auto server = Start({"--max_message_bytes=4KiB"});
  ASSERT_NE(server, nullptr);
  json wide = json::parse(InferBody(16));
  wide["outputs"] = {{{"name", "outputs"}}, {{"name", "trajectory"}}};
  const HttpAnswer answer = Ask(*server, "POST", "/v2/models/net/infer", wide.dump());
  EXPECT_EQ(answer.code, 413) << answer.body;
  EXPECT_THAT(answer.body, HasSubstr("the reply would have"));
}

// A proxy's id of a request is the log's, where the request has none of its own.
TEST_F(RestTest, TheLogKnowsARequestByItsHeader) {
  const auto server = Start({"--access_log_rate=1"});
  ASSERT_NE(server, nullptr);
  json anonymous = json::parse(InferBody());
  anonymous.erase("id");
  const auto ask = [&](const json& body, const std::string& id) {
    return Ask(*server, "POST", "/v2/models/net/infer", body.dump(), "X-Request-Id: " + id + "\r\n")
        .code;
  };
  EXPECT_EQ(ask(anonymous, "of-the-proxy"), 200);
  EXPECT_EQ(ask(json::parse(InferBody()), "unused"), 200);
  EXPECT_EQ(ask(anonymous, std::string(129, 'x')), 200);
  EXPECT_EQ(ask(anonymous, "caf\xc3\xa9"), 200);
  EXPECT_EQ(ask(anonymous, "last"), 200);
  const std::string log = server->LogOnceItHas("last");
  EXPECT_THAT(log, HasSubstr("of-the-proxy"));
  EXPECT_THAT(log, HasSubstr("\"request_id\":\"r\""));
  EXPECT_THAT(log, ::testing::Not(HasSubstr("unused")));
  EXPECT_THAT(log, ::testing::Not(HasSubstr("xxx")));
  size_t requests = 0;
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);) {
    if (line.find("\"event\":\"request\"") == std::string::npos) continue;
    EXPECT_THAT(line, HasSubstr("\"peer\":\"ipv4:127.0.0.1:"));
    ++requests;
  }
  EXPECT_EQ(requests, 5u);
}

TEST_F(RestTest, HasTheRolesOfGrpc) {
  std::filesystem::create_directory(repository_.File(".secret"));
  const std::string tokens = repository_.File(".secret/tokens");
  std::ofstream(tokens) << "infer " << kInfer << "\nadmin " << kAdmin << " name=ada\n";
  const auto server = Start({"--token_file=" + tokens});
  ASSERT_NE(server, nullptr);
  const auto header = [](const std::string& token) {
    return "Authorization: Bearer " + token + "\r\n";
  };
  const HttpAnswer unknown = Ask(*server, "POST", "/v2/models/net/infer", InferBody());
  EXPECT_EQ(unknown.code, 401);
  EXPECT_THAT(unknown.head, HasSubstr("WWW-Authenticate: Bearer"));
  EXPECT_EQ(Ask(*server, "GET", "/v2/models/net").code, 401);
  EXPECT_EQ(Ask(*server, "GET", "/v2/health/ready").code, 200);
  EXPECT_EQ(Ask(*server, "POST", "/v2/models/net/infer", InferBody(), header(kInfer)).code, 200);
  const std::string unload = "/v2/repository/models/net/unload";
  EXPECT_EQ(Ask(*server, "POST", unload, "", header(kInfer)).code, 403);
  EXPECT_EQ(Ask(*server, "POST", unload, "{}", header(kAdmin)).code, 200);
  const std::string caller = "\"caller\":\"token of ada\"";
  EXPECT_THAT(server->LogOnceItHas(caller), HasSubstr(caller));
  EXPECT_EQ(Ask(*server, "GET", "/v2/health/ready").code, 503);
}

// A request over HTTP becomes a call within the process, which is not where it came from.
TEST_F(RestTest, TheLogSaysWhereARefusedRequestCameFrom) {
  std::filesystem::create_directory(repository_.File(".secret"));
  const std::string tokens = repository_.File(".secret/tokens");
  std::ofstream(tokens) << "infer " << kInfer << "\n";
  const auto server = Start({"--token_file=" + tokens});
  ASSERT_NE(server, nullptr);
  const std::string token = std::string("Bearer ") + kInfer;
  const std::string forged = "deeppcr-http-peer: ipv4:6.6.6.6:6\r\n";

  EXPECT_EQ(Ask(*server, "POST", "/v2/models/net/infer", InferBody(), forged).code, 401);
  EXPECT_EQ(Ask(*server, "POST", "/v2/models/other/infer", InferBody(),
                "Authorization: " + token + "\r\n" + forged)
                .code,
            404);
  grpc::ClientContext context;
  context.AddMetadata("authorization", token);
  context.AddMetadata("deeppcr-http-peer", "ipv4:6.6.6.6:6");
  v1::ForwardRequest request = MakeRequest(1, "third");
  v1::ForwardResponse response;
  EXPECT_EQ(Connect(server->address())->Forward(&context, request, &response).error_code(),
            grpc::StatusCode::NOT_FOUND);

  const std::string log = server->LogOnceItHas("third");
  int refusals = 0;
  for (size_t at = 0; (at = log.find(R"("event":"request_refused")", at)) != std::string::npos;) {
    const std::string line = log.substr(at, log.find('\n', at) - at);
    EXPECT_THAT(line, HasSubstr(R"("peer":"ipv4:127.0.0.1:)"));
    at += line.size();
    ++refusals;
  }
  EXPECT_EQ(refusals, 3) << log;
  EXPECT_THAT(log, ::testing::Not(HasSubstr("6.6.6.6")));
}

TEST_F(RestTest, PlainTextIsForThisMachineWhereThereAreSecrets) {
  const Finished refused = RunProgram(
      DEEPPCR_SERVER_BINARY, {"--model_repository=" + repository_.path(), "--token_file=/t",
                              "--rest_listen=0.0.0.0:0", "--listen=127.0.0.1:0"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.output, HasSubstr("--rest_listen: expected an address at 127.0.0.1"));
}

// Connections that send half of a body hold its memory, of a budget that is not that of gRPC; those
// that only announce one hold nothing.
TEST_F(RestTest, HalfOfABodyKeepsNobodyWaiting) {
  const auto server = Start({"--max_queue_bytes=1MiB", "--reply_seconds=1"});
  ASSERT_NE(server, nullptr);
  const std::string head =
      "POST /v2/models/net/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\n";
  {
    std::vector<std::unique_ptr<Connection>> announced;
    for (int i = 0; i < 40; ++i) {
      announced.push_back(std::make_unique<Connection>(server->rest_port()));
      ASSERT_TRUE(announced.back()->Send(head));
    }
    EXPECT_EQ(Ask(*server, "POST", "/v2/models/net/infer", InferBody(16)).code, 200);

    std::vector<std::unique_ptr<Connection>> halves;
    for (int i = 0; i < 40; ++i) {
      halves.push_back(std::make_unique<Connection>(server->rest_port()));
      ASSERT_TRUE(halves.back()->Send(head + std::string(30000, ' ')));
    }
    HttpAnswer answer;
    for (int i = 0; i < 200 && answer.code != 429; ++i)
      answer = Ask(*server, "POST", "/v2/models/net/infer", InferBody(16));
    EXPECT_EQ(answer.code, 429) << answer.body;
    EXPECT_THAT(answer.body, HasSubstr("requests over HTTP hold"));
    v1::ForwardResponse response;
    EXPECT_TRUE(Call(*Connect(server->address()), MakeRequest(16), &response).ok());
    EXPECT_THAT(server->Get("/readyz"), HasSubstr("200 OK"));
  }
  HttpAnswer answer;
  for (int i = 0; i < 400 && answer.code != 200; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    answer = Ask(*server, "POST", "/v2/models/net/infer", InferBody(16));
  }
  EXPECT_EQ(answer.code, 200) << answer.body;
}

// gRPC ends a process that hands it metadata of other bytes.
TEST_F(RestTest, HeadersOfAnyBytesAreRefused) {
  const auto server = Start();
  ASSERT_NE(server, nullptr);
  for (const char* header :
       {"traceparent: \xff\r\n", "traceparent: a\tb\r\n", "Authorization: Basic \xe9\r\n",
        "Authorization: Bearer \x7f\r\n", "Content-Length: 0\r\nContent-Length: 3\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n",
        "Inference-Header-Content-Length: +3\r\n"})
    EXPECT_EQ(Ask(*server, "GET", "/v2/health/live", "", header).code, 400) << header;
  EXPECT_EQ(Ask(*server, "GET", "/v2/health/live", "", "traceparent: 00-1\r\n").code, 200);
}

// A client's share is taken by what it computes, and not by the body of the same request.
// A proxy in front may read such a request in another way.
TEST_F(RestTest, HeadersThatAreNoneAreRefused) {
  const auto server = Start();
  ASSERT_NE(server, nullptr);
  for (const char* header : {"Transfer-Encoding : chunked\r\n", "Content\x80-Type: x\r\n"}) {
    const HttpAnswer answer = Ask(*server, "POST", "/v2/models/net/infer", InferBody(), header);
    EXPECT_EQ(answer.code, 400) << header << answer.head;
  }
}

TEST_F(RestTest, CodingsThatAreNotReadAreRefused) {
  const auto server = Start();
  ASSERT_NE(server, nullptr);
  const auto code = [&](const char* header, const char* expected) {
    const HttpAnswer answer = Ask(*server, "POST", "/v2/models/net/infer", InferBody(), header);
    EXPECT_NE(answer.body.find(expected), std::string::npos) << header << answer.body;
    return answer.code;
  };
  EXPECT_EQ(code("Content-Encoding: gzip\r\n", "Content-Encoding"), 415);
  EXPECT_EQ(code("Content-Encoding: identity, br\r\n", "Content-Encoding"), 415);
  EXPECT_EQ(code("Content-Encoding: identity\r\nContent-Encoding: gzip\r\n", "Content-Encoding"),
            415);
  EXPECT_EQ(code("Content-Encoding: Identity\r\n", "outputs"), 200);
  // The bodies of these do not come.
  for (const char* coding : {"gzip", "", "chunked, gzip"}) {
    EXPECT_THAT(server->Http(std::string("POST /v2/models/net/infer HTTP/1.1\r\nHost: x\r\n"
                                         "Connection: close\r\nTransfer-Encoding: ") +
                                 coding + "\r\n\r\n",
                             server->rest_port()),
                HasSubstr("HTTP/1.1 501 "))
        << coding;
  }
  const std::string body = InferBody();
  std::ostringstream size;
  size << std::hex << body.size();
  EXPECT_THAT(server->Http("POST /v2/models/net/infer HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                           "Transfer-Encoding: chunked\r\n\r\n" +
                               size.str() + "\r\n" + body + "\r\n0\r\n\r\n",
                           server->rest_port()),
              HasSubstr("HTTP/1.1 200 "));
}

TEST_F(RestTest, ABodyIsNoPartOfTheShareOfItsOwnCall) {
  std::filesystem::create_directory(repository_.File(".secret"));
  const std::string tokens = repository_.File(".secret/tokens");
  std::ofstream(tokens) << "infer " << kInfer << " name=robot share=0.01\n";
  const auto server = Start({"--token_file=" + tokens, "--max_queue_bytes=1MiB"});
  ASSERT_NE(server, nullptr);
  for (int i = 0; i < 20; ++i) {
    const HttpAnswer answer = Ask(*server, "POST", "/v2/models/net/infer", InferBody(16),
                                  std::string("Authorization: Bearer ") + kInfer + "\r\n");
    EXPECT_EQ(answer.code, 200) << answer.body;
    // The call before may end a moment after its reply.
    for (int k = 0; k < 500 && server->Get("/metrics").find("\ndeeppcr_request_bytes 0\n") ==
                                   std::string::npos;
         ++k)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

TEST_F(RestTest, BusyConnectionsDoNotHoldUpTheEnd) {
  for (int round = 0; round < 3; ++round) {
    const auto server = Start();
    ASSERT_NE(server, nullptr);
    std::vector<std::thread> clients;
    std::atomic<int64_t> answers{0};
    for (int i = 0; i < 16; ++i) {
      clients.emplace_back([&, i] {
        const Connection connection(server->rest_port());
        const std::string body = InferBody();
        const std::string request =
            i % 2 == 0 ? "GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
                       : "POST /v2/models/net/infer HTTP/1.1\r\nHost: x\r\nContent-Length: " +
                             std::to_string(body.size()) + "\r\n\r\n" + body;
        while (connection.Send(request) && !connection.Receive().empty()) answers.fetch_add(1);
      });
    }
    while (answers.load() < 200) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    server->Signal(SIGTERM);
    EXPECT_EQ(server->Wait(20), 0) << server->Log();
    for (std::thread& client : clients) client.join();
  }
}

TEST_F(RestTest, RequestsInProgressAreAnsweredWhileTheServerDrains) {
  WriteRandomModel(repository_.File("slow/1"),
                   {.layers = 2048, .width = 32, .max_batch_size = 256});
  const auto server = Start({"--workers=1"});
  ASSERT_NE(server, nullptr);
  const json slow = {{"parameters", {{"solver", "sequential"}}},
                     {"inputs",
                      {{{"name", "inputs"},
                        {"shape", {256, 32}},
                        {"datatype", "FP32"},
                        {"data", std::vector<float>(256 * 32, 0.25f)}}}}};
  std::vector<std::thread> threads;
  std::atomic<int> answered{0}, sent{0};
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      sent.fetch_add(1);
      if (Ask(*server, "POST", "/v2/models/slow/infer", slow.dump()).code == 200)
        answered.fetch_add(1);
    });
  }
  for (int i = 0; i < 2000; ++i) {
    if (server->Get("/metrics").find("requests_in_flight{method=\"ModelInfer\"} 4") !=
        std::string::npos)
      break;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  server->Signal(SIGTERM);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(answered.load(), 4);
  EXPECT_EQ(server->Wait(20), 0);
}

}  // namespace
}  // namespace deeppcr::testing
