// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/model_name.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "tests/testing/expect_error.h"

namespace deeppcr {
namespace {

TEST(ModelNameTest, IsOneThatMayStandInAPath) {
  for (const std::string& name : {std::string("a"), std::string("digits-resnet_2.B"),
                                  std::string("..."), std::string(128, 'a')})
    EXPECT_TRUE(CheckModelName(name).ok()) << name;
  for (const std::string& name :
       {std::string(), std::string("."), std::string(".."), std::string("a/b"), std::string("a\n"),
        std::string("a\0b", 3), std::string("\xc3\xa4"), std::string(129, 'a')})
    testing::ExpectError(CheckModelName(name), absl::StatusCode::kInvalidArgument,
                         "model: expected 1 to 128");
}

TEST(ParseVersionTest, TakesPositiveIntegersOnly) {
  EXPECT_EQ(ParseVersion("1"), 1);
  EXPECT_EQ(ParseVersion("9223372036854775807"), INT64_MAX);
  for (const char* text : {"", "0", "-1", "+1", "01", "1x", " 1", "1.0", "9223372036854775808"}) {
    EXPECT_EQ(ParseVersion(text), 0) << text;
  }
}

}  // namespace
}  // namespace deeppcr
