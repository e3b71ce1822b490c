// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_RPC_GRPC_STATUS_H_
#define DEEPPCR_SERVER_RPC_GRPC_STATUS_H_

#include <cstddef>
#include <string_view>

#include "absl/status/status.h"
#include "grpcpp/support/status.h"

namespace deeppcr {

// Longest message that goes on the wire; HTTP/2 trailers are small.
inline constexpr size_t kMaxStatusMessageBytes = 1024;

// The trailer that says when a retry may come, in milliseconds; below 0: never.
inline constexpr std::string_view kRetryPushback = "grpc-retry-pushback-ms";

// The one conversion between the two status types. The codes are the same; messages of more than
// kMaxStatusMessageBytes are cut, never inside a UTF-8 sequence, and end in "...".
grpc::Status ToGrpcStatus(const absl::Status& status);

// "OK", "INVALID_ARGUMENT", ...: the label `code` of metrics and logs.
std::string_view StatusCodeName(absl::StatusCode code);

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_RPC_GRPC_STATUS_H_
