// SPDX-License-Identifier: Apache-2.0
#include "server/rest/http_reply.h"

#include <microhttpd.h>

#include <algorithm>
#include <cmath>

#include "absl/strings/numbers.h"
#include "kernels/base/strings.h"
#include "server/rpc/grpc_status.h"

namespace deeppcr {
namespace {

unsigned HttpCode(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kOk:
      return MHD_HTTP_OK;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kOutOfRange:
      return MHD_HTTP_BAD_REQUEST;
    case absl::StatusCode::kUnauthenticated:
      return MHD_HTTP_UNAUTHORIZED;
    case absl::StatusCode::kPermissionDenied:
      return MHD_HTTP_FORBIDDEN;
    case absl::StatusCode::kNotFound:
      return MHD_HTTP_NOT_FOUND;
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kAlreadyExists:
      return MHD_HTTP_CONFLICT;
    case absl::StatusCode::kResourceExhausted:
      return MHD_HTTP_TOO_MANY_REQUESTS;
    case absl::StatusCode::kUnimplemented:
      return MHD_HTTP_NOT_IMPLEMENTED;
    case absl::StatusCode::kUnavailable:
      return MHD_HTTP_SERVICE_UNAVAILABLE;
    case absl::StatusCode::kDeadlineExceeded:
      return MHD_HTTP_GATEWAY_TIMEOUT;
    default:
      return MHD_HTTP_INTERNAL_SERVER_ERROR;
  }
}

}  // namespace

RestBody JsonBody(const nlohmann::ordered_json& json) {
  return {json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace), {}};
}

HttpReply ErrorReply(unsigned code, std::string_view message) {
  HttpReply reply = {.code = code, .body = JsonBody({{"error", message}})};
  if (code == MHD_HTTP_UNAUTHORIZED) reply.headers.emplace_back("WWW-Authenticate", "Bearer");
  return reply;
}

HttpReply ErrorReply(const absl::Status& status) {
  return ErrorReply(HttpCode(status.code()), ToStd(status.message()));
}

HttpReply ErrorReply(const grpc::Status& status, const grpc::ClientContext& rpc) {
  HttpReply reply = ErrorReply(
      absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message()));
  for (const auto& [key, value] : rpc.GetServerTrailingMetadata()) {
    const std::string name(key.data(), key.size()), text(value.data(), value.size());
    if (name == kRetryPushback && text.starts_with('-')) reply.code = MHD_HTTP_CONTENT_TOO_LARGE;
    if (!name.starts_with("deeppcr-")) continue;
    reply.headers.emplace_back(name, text);
    double seconds = 0;
    if (name == "deeppcr-predicted-wait-seconds" && absl::SimpleAtod(text, &seconds))
      reply.headers.emplace_back("Retry-After",
                                 StrCat(static_cast<int64_t>(std::ceil(std::max(1.0, seconds)))));
  }
  return reply;
}

}  // namespace deeppcr
