// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_TESTING_EXPECT_ERROR_H_
#define DEEPPCR_TESTS_TESTING_EXPECT_ERROR_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace deeppcr::testing {

inline void ExpectError(const absl::Status& status, absl::StatusCode code,
                        const std::string& message_part) {
  EXPECT_EQ(absl::StatusCodeToString(status.code()), absl::StatusCodeToString(code)) << status;
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(message_part));
}

template <typename T>
void ExpectError(const absl::StatusOr<T>& result, absl::StatusCode code,
                 const std::string& message_part) {
  ExpectError(result.status(), code, message_part);
}

// A case of a table of inputs that must be refused.
struct RefusedCase {
  std::string name;  // name of the test case: letters and digits
  std::string input;
  std::string message_part;
  absl::StatusCode code = absl::StatusCode::kInvalidArgument;
};

inline std::string CaseName(const ::testing::TestParamInfo<RefusedCase>& info) {
  return info.param.name;
}

}  // namespace deeppcr::testing

#endif  // DEEPPCR_TESTS_TESTING_EXPECT_ERROR_H_
