// SPDX-License-Identifier: Apache-2.0
#include "server/observe/http.h"

#include <array>
#include <string_view>

#include "civetweb.h"
#include "kernels/base/strings.h"

namespace deeppcr {
namespace {

struct Reply {
  int code = 200;
  const char* reason = "OK";
  const char* type = "text/plain; charset=utf-8";
  std::string body;
};

Reply Respond(const HttpServer::Handlers& handlers, std::string_view method,
              std::string_view path) {
  if (method != "GET" && method != "HEAD") {
    return {405, "Method Not Allowed", "text/plain; charset=utf-8", "only GET\n"};
  }
  if (path == "/metrics") {
    return {200, "OK", "text/plain; version=0.0.4; charset=utf-8", handlers.metrics()};
  }
  if (path == "/livez") return {200, "OK", "text/plain; charset=utf-8", "alive\n"};
  if (path != "/readyz") {
    return {404, "Not Found", "text/plain; charset=utf-8", "try /metrics, /livez, /readyz\n"};
  }
  const std::vector<std::string> missing = handlers.missing();
  if (missing.empty()) return {200, "OK", "text/plain; charset=utf-8", "ready\n"};
  std::string body = "not ready\n";
  for (const std::string& line : missing) body += line + "\n";
  return {503, "Service Unavailable", "text/plain; charset=utf-8", body};
}

}  // namespace

int HttpServer::Handle(mg_connection* connection, void* self) {
  const mg_request_info* request = mg_get_request_info(connection);
  const std::string_view method = request->request_method;
  const Reply reply =
      Respond(static_cast<HttpServer*>(self)->handlers_, method, request->local_uri);
  const std::string header =
      StrCat("HTTP/1.1 ", reply.code, " ", reply.reason, "\r\nContent-Type: ", reply.type,
             "\r\nContent-Length: ", reply.body.size(),
             "\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n");
  mg_write(connection, header.data(), header.size());
  if (method != "HEAD") mg_write(connection, reply.body.data(), reply.body.size());
  return reply.code;
}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const std::string& address,
                                                              Handlers handlers) {
  std::unique_ptr<HttpServer> server(new HttpServer(std::move(handlers)));
  // Resources are bounded: 16 threads, a short queue, and a connection that says nothing is closed.
  std::array options = {"listening_ports",
                        address.c_str(),
                        "num_threads",
                        "16",
                        "connection_queue",
                        "32",
                        "request_timeout_ms",
                        "1000",
                        "enable_keep_alive",
                        "no",
                        "max_request_size",
                        "8192",
                        static_cast<const char*>(nullptr)};
  std::array<char, 256> text{};
  unsigned code = 0;
  mg_error_data error = {&code, text.data(), text.size()};
  const mg_callbacks callbacks = {};
  mg_init_data init = {&callbacks, nullptr, options.data()};
  server->context_ = mg_start2(&init, &error);
  if (server->context_ == nullptr) {
    return absl::UnavailableError(StrCat("cannot listen on ", address, " for HTTP: ",
                                         text[0] != '\0' ? text.data() : "unknown reason"));
  }
  mg_set_request_handler(server->context_, "**", &HttpServer::Handle, server.get());
  return server;
}

HttpServer::~HttpServer() {
  if (context_ != nullptr) mg_stop(context_);
}

int HttpServer::port() const {
  mg_server_port port = {};
  return mg_get_server_ports(context_, 1, &port) == 1 ? port.port : 0;
}

}  // namespace deeppcr
