// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/grpc_status.h"

#include <string>

#include "kernels/base/strings.h"
#include "server/observe/metrics.h"

namespace deeppcr {
namespace {

bool IsUtf8Continuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

std::string Cut(std::string_view message) {
  if (message.size() <= kMaxStatusMessageBytes) return std::string(message);
  constexpr std::string_view kEllipsis = "...";
  size_t length = kMaxStatusMessageBytes - kEllipsis.size();
  while (length > 0 && IsUtf8Continuation(message[length])) --length;
  return std::string(message.substr(0, length)).append(kEllipsis);
}

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.raw_code()),
                      Cut(ToStd(status.message())));
}

std::string_view StatusCodeName(absl::StatusCode code) {
  const auto index = static_cast<size_t>(code);
  return index < kCodeNames.size() ? kCodeNames[index] : kCodeNames[2];
}

}  // namespace deeppcr
