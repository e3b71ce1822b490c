// SPDX-License-Identifier: Apache-2.0
#include "server/observe/http.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "server/listener.h"

namespace deeppcr::testing {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class HttpTest : public ::testing::Test {
 protected:
  HttpTest() : listener_(*Listener::Open("http_listen", "127.0.0.1:0")) {}
  void SetUp() override {
    auto server = HttpServer::Start(
        listener_.sockets(),
        {[this] { return metrics_; }, [this] { return stuck_; }, [this] { return missing_; }});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  int Connect() const {
    const int socket_fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(listener_.port()));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(socket_fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    return socket_fd;
  }
  std::string Ask(const std::string& request) const {
    const int socket_fd = Connect();
    EXPECT_GT(send(socket_fd, request.data(), request.size(), MSG_NOSIGNAL), 0);
    std::string reply;
    char buffer[4096];
    for (ssize_t n; (n = recv(socket_fd, buffer, sizeof(buffer), 0)) > 0;)
      reply.append(buffer, static_cast<size_t>(n));
    close(socket_fd);
    return reply;
  }
  std::string Get(const std::string& path) const {
    return Ask("GET " + path + " HTTP/1.0\r\n\r\n");
  }

  std::string metrics_ = "a 1\n";
  std::vector<std::string> stuck_, missing_;
  Listener listener_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpTest, AnswersItsThreePaths) {
  EXPECT_THAT(Get("/metrics"), AllOf(StartsWith("HTTP/1.1 200 "), HasSubstr("version=0.0.4"),
                                     EndsWith("\r\na 1\n")));
  EXPECT_THAT(Get("/livez"), AllOf(StartsWith("HTTP/1.1 200 "), EndsWith("alive\n")));
  EXPECT_THAT(Get("/readyz"), AllOf(StartsWith("HTTP/1.1 200 "), EndsWith("\r\nready\n")));
  stuck_ = {"a batch has been computed for 601 s"};
  EXPECT_THAT(Get("/livez"), AllOf(StartsWith("HTTP/1.1 503 "),
                                   EndsWith("not alive\na batch has been computed for 601 s\n")));
  missing_ = {"net/1 has failed", "other/2 is being loaded"};
  EXPECT_THAT(Get("/readyz"), AllOf(StartsWith("HTTP/1.1 503 "),
                                    EndsWith("not ready\nnet/1 has failed\nother/2 is being "
                                             "loaded\n")));
}

TEST_F(HttpTest, RefusesTheRest) {
  EXPECT_THAT(Get("/"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(Get("/metrics/../livez"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(Ask("HEAD /livez HTTP/1.0\r\n\r\n"),
              AllOf(StartsWith("HTTP/1.1 200 "), EndsWith("\r\n\r\n")));
  EXPECT_THAT(Ask("POST /metrics HTTP/1.0\r\nContent-Length: 9999999\r\n\r\nabc"),
              StartsWith("HTTP/1.1 405 "));
  EXPECT_THAT(Ask("nonsense\r\n\r\n"), Not(StartsWith("HTTP/1.1 200 ")));
  EXPECT_THAT(Get("/livez?" + std::string(20000, 'a')), Not(StartsWith("HTTP/1.1 200 ")));
  EXPECT_THAT(Get("/livez"), StartsWith("HTTP/1.1 200 "));
}

TEST_F(HttpTest, SilentConnectionsKeepNobodyWaiting) {
  constexpr int kSilent = 500;
  int open = 0;
  // A machine under load may take longer than silence lasts; an answer that waits for the silent
  // ones to end never comes while they are open, however often it is tried.
  for (int attempt = 0; attempt < 20 && open < kSilent; ++attempt) {
    std::vector<pollfd> silent;
    for (int i = 0; i < kSilent; ++i) silent.push_back({Connect(), POLLIN, 0});
    EXPECT_THAT(Get("/livez"), StartsWith("HTTP/1.1 200 "));
    poll(silent.data(), silent.size(), 0);
    open = 0;
    for (const pollfd& each : silent) {
      open += each.revents == 0 ? 1 : 0;
      close(each.fd);
    }
  }
  EXPECT_EQ(open, kSilent);
}

TEST_F(HttpTest, LeavesItsSocketToItsOwner) {
  server_.reset();
  const auto again =
      HttpServer::Start(listener_.sockets(), {[] { return std::string("b 2\n"); },
                                              [] { return std::vector<std::string>(); },
                                              [] { return std::vector<std::string>(); }});
  ASSERT_TRUE(again.ok());
  EXPECT_THAT(Get("/metrics"), EndsWith("b 2\n"));
}

}  // namespace
}  // namespace deeppcr::testing
