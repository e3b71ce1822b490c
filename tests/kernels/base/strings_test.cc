// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/strings.h"

#include <gtest/gtest.h>

#include <vector>

#include "kernels/base/never_fits.h"
#include "kernels/base/status_context.h"

namespace deeppcr {
namespace {

TEST(StringsTest, ConcatenatesEveryKindOfPiece) {
  const std::string_view view = "view";
  const std::string text = "text";

  EXPECT_EQ(StrCat(view, "-", text, 1, "/", 2.5), "view-text1/2.5");
}

TEST(StringsTest, JoinsWithEmptyElements) {
  const auto same = [](const std::string& text) { return text; };

  EXPECT_EQ(StrJoin(std::vector<std::string>{"", "a", ""}, ", ", same), ", a, ");
  EXPECT_EQ(StrJoin(std::vector<std::string>{}, ", ", same), "");
}

TEST(StringsTest, QuotesUntrustedTextAsBoundedPrintableAscii) {
  EXPECT_EQ(Quoted("a\n\xFF"), "\"a\\n\\xff\"");
  EXPECT_EQ(Quoted(std::string(100, 'x'), 3), "\"xxx...\"");
}

TEST(StatusContextTest, PrefixesErrorsOnly) {
  const absl::Status error = WithContext(absl::NotFoundError("gone"), "config.json");

  EXPECT_EQ(error, absl::NotFoundError("config.json: gone"));
  EXPECT_TRUE(WithContext(absl::OkStatus(), "config.json").ok());
}

TEST(NeverFitsTest, StaysSoUnderAnotherMessage) {
  const absl::Status status = NeverFits(3, " bytes; the limit is ", 2);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(), "3 bytes; the limit is 2");
  EXPECT_TRUE(IsNeverFits(status));
  EXPECT_TRUE(IsNeverFits(WithContext(status, "field")));
  EXPECT_EQ(Rephrased(status, "other").message(), "other");
  EXPECT_TRUE(IsNeverFits(Rephrased(status, "other")));
  EXPECT_FALSE(IsNeverFits(absl::ResourceExhaustedError("try again later")));
  EXPECT_FALSE(IsNeverFits(absl::OkStatus()));
}

}  // namespace
}  // namespace deeppcr
