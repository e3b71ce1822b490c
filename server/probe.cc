// SPDX-License-Identifier: Apache-2.0
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>

#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "kernels/base/strings.h"
#include "server/server.h"

namespace deeppcr {
namespace {

constexpr std::chrono::seconds kProbeDeadline(2);

// A HealthCheckResponse whose only field, status, is SERVING. So small a message needs no generated
// code, and Debian ships none for grpc.health.v1.
constexpr std::string_view kServing = "\x08\x01";

std::string Flatten(grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  std::string bytes;
  if (!buffer.Dump(&slices).ok()) return bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

// A connection to an address of the host that takes one; -1, with errno, if none does.
int ConnectTo(const addrinfo* addresses) {
  const timeval patience = {kProbeDeadline.count(), 0};
  for (const addrinfo* each = addresses; each != nullptr; each = each->ai_next) {
    const int socket_fd = socket(each->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (socket_fd < 0) continue;
    setsockopt(socket_fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
    setsockopt(socket_fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    if (connect(socket_fd, each->ai_addr, each->ai_addrlen) == 0) return socket_fd;
    const int error = errno;
    close(socket_fd);
    errno = error;
  }
  return -1;
}

// The first line of the answer to GET /readyz.
std::string StatusLine(int socket_fd) {
  constexpr std::string_view kRequest = "GET /readyz HTTP/1.0\r\n\r\n";
  std::string reply;
  if (send(socket_fd, kRequest.data(), kRequest.size(), MSG_NOSIGNAL) < 0) return reply;
  std::array<char, 256> buffer{};
  while (reply.find("\r\n") == reply.npos) {
    const ssize_t got = recv(socket_fd, buffer.data(), buffer.size(), 0);
    if (got <= 0) break;
    reply.append(buffer.data(), static_cast<size_t>(got));
  }
  return reply.substr(0, reply.find("\r\n"));
}

absl::Status ProbeHttp(const std::string& address) {
  const auto where = ParseHostPort(address);
  if (!where.ok()) return where.status();
  std::string host = where->host;
  if (host.starts_with('[')) host = host.substr(1, host.size() - 2);
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), StrCat(where->port).c_str(), &hints, &found);
      error != 0)
    return absl::UnavailableError(StrCat(address, ": ", gai_strerror(error)));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, &freeaddrinfo);
  const int socket_fd = ConnectTo(found);
  if (socket_fd < 0) return absl::UnavailableError(StrCat(address, ": ", std::strerror(errno)));
  const std::string line = StatusLine(socket_fd);
  close(socket_fd);
  if (line.starts_with("HTTP/1.1 200 ") || line.starts_with("HTTP/1.0 200 "))
    return absl::OkStatus();
  if (!line.starts_with("HTTP/1."))
    return absl::UnavailableError(StrCat(address, " does not answer"));
  return absl::UnavailableError(StrCat(address, " answers, but is not ready"));
}

}  // namespace

absl::Status Probe(const std::string& address) {
  if (address.starts_with(kHttpScheme)) return ProbeHttp(address.substr(kHttpScheme.size()));
  grpc::GenericStub stub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kProbeDeadline);
  grpc::CompletionQueue queue;
  // An empty HealthCheckRequest asks for the server as a whole.
  const grpc::Slice empty("");
  grpc::ByteBuffer body(&empty, 1);
  const auto call = stub.PrepareUnaryCall(&context, "/grpc.health.v1.Health/Check", body, &queue);
  call->StartCall();
  grpc::ByteBuffer response;
  grpc::Status status;
  call->Finish(&response, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  if (!status.ok()) {
    return absl::UnavailableError(StrCat(address, ": ", status.error_message()));
  }
  if (Flatten(response) == kServing) return absl::OkStatus();
  return absl::UnavailableError(StrCat(address, " answers, but is not ready"));
}

}  // namespace deeppcr
