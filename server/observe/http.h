// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_OBSERVE_HTTP_H_
#define DEEPPCR_SERVER_OBSERVE_HTTP_H_

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

struct MHD_Connection;
struct MHD_Daemon;

namespace deeppcr {

// Serves GET /metrics, /livez and /readyz on a thread of its own for each socket, driven by events:
// it answers even if gRPC's threads are stuck, and however many connections say nothing.
class HttpServer {
 public:
  struct Handlers {
    std::function<std::string()> metrics;  // the exposition
    // What does not go on any more: /livez gives 200 if it is empty, else 503 and a line for each.
    std::function<std::vector<std::string>()> stuck;
    // The list of what is missing: /readyz gives 200 if it is empty, else 503 and a line for each.
    std::function<std::vector<std::string>()> missing;
  };

  // sockets: listen, do not block, and stay open for as long as this object lives.
  // Errors: kUnavailable if the system has no thread or descriptor left.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(std::span<const int> sockets,
                                                           Handlers handlers);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // The answer to a request; for the library's callback.
  bool Answer(MHD_Connection* connection, std::string_view method, std::string_view path) const;

 private:
  explicit HttpServer(Handlers handlers) : handlers_(std::move(handlers)) {}

  const Handlers handlers_;
  std::vector<MHD_Daemon*> daemons_;  // one for each socket
};

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_OBSERVE_HTTP_H_
