// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_REST_HTTP_REPLY_H_
#define DEEPPCR_SERVER_REST_HTTP_REPLY_H_

// Replies of HTTP, and how statuses of gRPC become such: the codes are those of its HTTP mapping.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/status.h"
#include "nlohmann/json.hpp"
#include "server/rest/infer_json.h"

namespace deeppcr {

struct HttpReply {
  unsigned code = 200;
  RestBody body;
  std::vector<std::pair<std::string, std::string>> headers = {};
};

// A body without line ends; what is no UTF-8 is replaced.
RestBody JsonBody(const nlohmann::ordered_json& json);

// {"error": message}
HttpReply ErrorReply(unsigned code, std::string_view message);
HttpReply ErrorReply(const absl::Status& status);
// The reply to a call that ended with this status. The trailers "deeppcr-..." become headers, and a
// predicted wait is a Retry-After too.
HttpReply ErrorReply(const grpc::Status& status, const grpc::ClientContext& rpc);

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_REST_HTTP_REPLY_H_
