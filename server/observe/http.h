// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_OBSERVE_HTTP_H_
#define DEEPPCR_SERVER_OBSERVE_HTTP_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

struct mg_context;
struct mg_connection;

namespace deeppcr {

// Serves GET /metrics, /livez and /readyz on threads of its own, so that these answer even if
// gRPC's threads are stuck.
class HttpServer {
 public:
  struct Handlers {
    std::function<std::string()> metrics;  // the exposition
    // The list of what is missing: /readyz gives 200 if it is empty, else 503 and a line for each.
    std::function<std::vector<std::string>()> missing;
  };

  // address: host:port, port 0 for a free one.
  // Errors: kUnavailable if it cannot be bound, with the reason.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const std::string& address,
                                                           Handlers handlers);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const;

 private:
  explicit HttpServer(Handlers handlers) : handlers_(std::move(handlers)) {}
  static int Handle(mg_connection* connection, void* self);

  const Handlers handlers_;
  mg_context* context_ = nullptr;
};

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_OBSERVE_HTTP_H_
