// SPDX-License-Identifier: Apache-2.0
#include "server/observe/http.h"

#include <microhttpd.h>

#include <cstdarg>
#include <string_view>
#include <utility>

namespace deeppcr {
namespace {

// Bounds of a socket's connections: one that says nothing ends after a second, and one address
// cannot take the places of all others.
constexpr unsigned kMaxConnections = 1024, kMaxConnectionsOfAnAddress = 640;
constexpr unsigned kSilentSeconds = 1;
constexpr size_t kBytesOfAConnection = 8192;

constexpr char kPlain[] = "text/plain; charset=utf-8";

struct Reply {
  unsigned code = MHD_HTTP_OK;
  const char* type = kPlain;
  std::string body;
};

// The reply to a question whose answer is yes if nothing speaks against it.
Reply Verdict(const std::string& yes, const std::vector<std::string>& against) {
  if (against.empty()) return {MHD_HTTP_OK, kPlain, yes + "\n"};
  std::string body = "not " + yes + "\n";
  for (const std::string& line : against) body += line + "\n";
  return {MHD_HTTP_SERVICE_UNAVAILABLE, kPlain, body};
}

Reply ReplyTo(const HttpServer::Handlers& handlers, std::string_view method,
              std::string_view path) {
  if (method != "GET" && method != "HEAD")
    return {MHD_HTTP_METHOD_NOT_ALLOWED, kPlain, "only GET\n"};
  if (path == "/metrics")
    return {MHD_HTTP_OK, "text/plain; version=0.0.4; charset=utf-8", handlers.metrics()};
  if (path == "/livez") return Verdict("alive", handlers.stuck());
  if (path == "/readyz") return Verdict("ready", handlers.missing());
  return {MHD_HTTP_NOT_FOUND, kPlain, "try /metrics, /livez, /readyz\n"};
}

// Called for the headers of a request. A body is not waited for: none is of use here.
MHD_Result OnRequest(void* self, MHD_Connection* connection, const char* url, const char* method,
                     const char*, const char*, size_t*, void**) {
  return static_cast<const HttpServer*>(self)->Answer(connection, method, url) ? MHD_YES : MHD_NO;
}

// The library would write of every connection that ends early.
void Ignore(void*, const char*, va_list) {}

}  // namespace

bool HttpServer::Answer(MHD_Connection* connection, std::string_view method,
                        std::string_view path) const {
  Reply reply = ReplyTo(handlers_, method, path);
  MHD_Response* const response =
      MHD_create_response_from_buffer(reply.body.size(), reply.body.data(), MHD_RESPMEM_MUST_COPY);
  if (response == nullptr) return false;
  MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, reply.type);
  MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
  MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close");
  const MHD_Result queued = MHD_queue_response(connection, reply.code, response);
  MHD_destroy_response(response);
  return queued == MHD_YES;
}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(std::span<const int> sockets,
                                                              Handlers handlers) {
  std::unique_ptr<HttpServer> server(new HttpServer(std::move(handlers)));
  for (const int socket_fd : sockets) {
    MHD_Daemon* const daemon = MHD_start_daemon(
        MHD_USE_EPOLL_INTERNAL_THREAD | MHD_USE_ITC | MHD_USE_ERROR_LOG, 0, nullptr, nullptr,
        &OnRequest, server.get(), MHD_OPTION_EXTERNAL_LOGGER, &Ignore, nullptr,
        MHD_OPTION_LISTEN_SOCKET, socket_fd, MHD_OPTION_CONNECTION_LIMIT, kMaxConnections,
        MHD_OPTION_PER_IP_CONNECTION_LIMIT, kMaxConnectionsOfAnAddress,
        MHD_OPTION_CONNECTION_TIMEOUT, kSilentSeconds, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        kBytesOfAConnection, MHD_OPTION_END);
    if (daemon == nullptr)
      return absl::UnavailableError("--http_listen: the HTTP server does not start");
    server->daemons_.push_back(daemon);
  }
  return server;
}

HttpServer::~HttpServer() {
  for (MHD_Daemon* const daemon : daemons_) {
    // The socket is not the library's to close.
    MHD_quiesce_daemon(daemon);
    MHD_stop_daemon(daemon);
  }
}

}  // namespace deeppcr
