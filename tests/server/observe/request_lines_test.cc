// SPDX-License-Identifier: Apache-2.0
#include "server/observe/request_lines.h"

#include <gtest/gtest.h>

namespace deeppcr {
namespace {

TEST(RequestLinesTest, TakesItsShareAndWhatIsSlow) {
  RequestLines lines{.access_rate = 0.25, .slow_seconds = 1};
  int taken = 0;
  for (int i = 0; i < 100; ++i) taken += lines.Next(0.5) == RequestLine::kAccess ? 1 : 0;
  EXPECT_EQ(taken, 25);
  for (const double seconds : {1.0, 1e9}) EXPECT_EQ(lines.Next(seconds), RequestLine::kSlow);
}

TEST(RequestLinesTest, ZeroIsNone) {
  RequestLines none{};
  for (int i = 0; i < 100; ++i) EXPECT_EQ(none.Next(1e9), RequestLine::kNone);
}

}  // namespace
}  // namespace deeppcr
