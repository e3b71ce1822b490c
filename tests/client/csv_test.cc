// SPDX-License-Identifier: Apache-2.0
#include "client/csv.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace deeppcr {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string ErrorOf(const std::string& text) {
  const auto array = ParseCsv(text);
  return array.ok() ? "accepted" : std::string(array.status().message());
}

TEST(CsvTest, ReadsRowsWithBlanksCommentsAndBothLineEnds) {
  const auto array = ParseCsv("# x, y\r\n1, 2.5\r\n\n -3e-1,4\n").value();

  EXPECT_THAT(array.shape, ElementsAre(2, 2));
  EXPECT_THAT(array.values, ElementsAre(1, 2.5f, -0.3f, 4));
}

TEST(CsvTest, ReadsLastLineWithoutItsEnd) {
  const auto array = ParseCsv("1\n2").value();

  EXPECT_THAT(array.shape, ElementsAre(2, 1));
}

TEST(CsvTest, NamesLineAndColumn) {
  EXPECT_EQ(ErrorOf("1,2\n3,x\n"), "csv: line 2: column 2: expected a finite number, got 'x'");
  EXPECT_EQ(ErrorOf("1,2\n\n3\n"), "csv: line 3: expected 2 columns as in the first row, got 1");
  EXPECT_THAT(ErrorOf("1,2,\n"), HasSubstr("column 3: expected a finite number, got ''"));
  EXPECT_THAT(ErrorOf(std::string("1,\0", 3)), HasSubstr("got '\\x00'"));
}

TEST(CsvTest, RefusesWhatIsNotAFiniteNumber) {
  for (const char* text : {"nan", "inf", "-inf", "1e39", "0x10", "1 2", "1;2", "+1", "--1", "1e"}) {
    EXPECT_THAT(ErrorOf(text), HasSubstr("expected a finite number")) << text;
  }
}

TEST(CsvTest, RefusesFileWithoutRows) {
  EXPECT_THAT(ErrorOf(""), HasSubstr("got none"));
  EXPECT_THAT(ErrorOf("\n\n# only this\n"), HasSubstr("got none"));
}

TEST(CsvTest, WritesShortestDigitsThatReadBack) {
  const Array array{{2, 2}, {0.1f, -2, 1e-30f, 16777217.0f}};

  const auto text = FormatCsv(array).value();

  EXPECT_EQ(text, "0.1,-2\n1e-30,16777216\n");
  EXPECT_EQ(ParseCsv(text)->values, array.values);
}

TEST(CsvTest, RefusesToWriteHigherRanks) {
  EXPECT_EQ(FormatCsv({{1, 1, 1}, {1}}).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace deeppcr
