// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/grpc_status.h"

#include <gtest/gtest.h>

#include <string>

namespace deeppcr {
namespace {

TEST(GrpcStatusTest, KeepsEveryCode) {
  for (int code = 1; code <= 16; ++code) {
    const auto absl_code = static_cast<absl::StatusCode>(code);
    const grpc::Status status = ToGrpcStatus(absl::Status(absl_code, "why"));
    EXPECT_EQ(static_cast<int>(status.error_code()), code);
    EXPECT_EQ(status.error_message(), "why");
    EXPECT_EQ(StatusCodeName(absl_code), absl::StatusCodeToString(absl_code));
  }
  EXPECT_TRUE(ToGrpcStatus(absl::OkStatus()).ok());
}

TEST(GrpcStatusTest, CutsLongMessages) {
  const std::string exact(kMaxStatusMessageBytes, 'x');
  EXPECT_EQ(ToGrpcStatus(absl::InternalError(exact)).error_message(), exact);

  const std::string cut = ToGrpcStatus(absl::InternalError(exact + "y")).error_message();

  EXPECT_EQ(cut, std::string(kMaxStatusMessageBytes - 3, 'x') + "...");
}

TEST(GrpcStatusTest, CutsBetweenCharacters) {
  std::string message;
  while (message.size() <= kMaxStatusMessageBytes) message += "\xe2\x82\xac";  // three bytes each

  const std::string cut = ToGrpcStatus(absl::InternalError(message)).error_message();

  EXPECT_LE(cut.size(), kMaxStatusMessageBytes);
  EXPECT_EQ((cut.size() - 3) % 3, 0u);
  EXPECT_TRUE(cut.ends_with("\xe2\x82\xac..."));
}

}  // namespace
}  // namespace deeppcr
