// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/dns_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <utility>

namespace deeppcr::testing {
namespace {

constexpr size_t kHeaderBytes = 12;
constexpr char kTypeA = 1;

// The position behind the question that begins the body; npos if it does not end.
size_t EndOfQuestion(const std::string& query) {
  size_t at = kHeaderBytes;
  while (at < query.size() && query[at] != 0) at += static_cast<unsigned char>(query[at]) + 1;
  // The root label, the type and the class.
  at += 5;
  return at <= query.size() ? at : std::string::npos;
}

}  // namespace

DnsServer::DnsServer() : socket_(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  bind(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  const timeval patience = {.tv_sec = 0, .tv_usec = 50000};
  setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  thread_ = std::thread([this] { Run(); });
}

DnsServer::~DnsServer() {
  leaving_.store(true);
  thread_.join();
  close(socket_);
}

std::string DnsServer::address() const {
  sockaddr_in address = {};
  socklen_t size = sizeof(address);
  getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size);
  return "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
}

void DnsServer::SetAddresses(std::vector<std::string> addresses) {
  const std::lock_guard lock(mutex_);
  addresses_ = std::move(addresses);
}

void DnsServer::Run() {
  std::array<char, 1500> buffer;
  while (!leaving_.load()) {
    sockaddr_in client = {};
    socklen_t size = sizeof(client);
    const ssize_t length = recvfrom(socket_, buffer.data(), buffer.size(), 0,
                                    reinterpret_cast<sockaddr*>(&client), &size);
    if (length < 0) continue;
    const std::string reply = Answer(std::string(buffer.data(), static_cast<size_t>(length)));
    sendto(socket_, reply.data(), reply.size(), 0, reinterpret_cast<const sockaddr*>(&client),
           size);
  }
}

std::string DnsServer::Answer(const std::string& query) {
  const size_t end = query.size() < kHeaderBytes ? std::string::npos : EndOfQuestion(query);
  if (end == std::string::npos) return "";
  const std::lock_guard lock(mutex_);
  const bool asks_for_v4 = query[end - 4] == 0 && query[end - 3] == kTypeA;
  const size_t count = asks_for_v4 ? addresses_.size() : 0;
  // The id, "an answer with authority", one question, the answers, and nothing else.
  std::string reply = query.substr(0, 2) + std::string("\x85\x80\0\1\0", 5) +
                      static_cast<char>(count) + std::string(4, '\0') +
                      query.substr(kHeaderBytes, end - kHeaderBytes);
  for (size_t i = 0; i < count; ++i) {
    in_addr v4 = {};
    inet_pton(AF_INET, addresses_[i].c_str(), &v4);
    // The question's name, type A, class IN, kept for 0 seconds, 4 bytes.
    reply += std::string("\xc0\x0c\0\1\0\1\0\0\0\0\0\4", 12) +
             std::string(reinterpret_cast<const char*>(&v4), sizeof(v4));
  }
  return reply;
}

}  // namespace deeppcr::testing
