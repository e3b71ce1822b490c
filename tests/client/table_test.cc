// SPDX-License-Identifier: Apache-2.0
#include "client/table.h"

#include <gtest/gtest.h>

#include <limits>

namespace deeppcr {
namespace {

TEST(TableTest, AlignsColumnsAndTrimsLineEnds) {
  Table table({{"solver", Table::Align::kLeft}, {"time"}, {"ok", Table::Align::kLeft}});
  table.AddRow({"newton", "12.3 us", "yes"});
  table.AddRow({"sequential", "4 us", "no", "a note"});
  table.AddRow({"short"});

  EXPECT_EQ(table.Format(),
            "solver         time  ok\n"
            "----------  -------  ---\n"
            "newton      12.3 us  yes\n"
            "sequential     4 us  no   a note\n"
            "short\n");
}

TEST(TableTest, CountsCharactersNotBytes) {
  Table table({{"name", Table::Align::kLeft}, {"n"}});
  table.AddRow({"h\xc3\xa9lium", "1"});
  table.AddRow({"argon", "2"});

  EXPECT_EQ(table.Format(),
            "name    n\n"
            "------  -\n"
            "h\xc3\xa9lium  1\n"
            "argon   2\n");
}

TEST(TableTest, ControlBytesNeverReachTheTerminal) {
  EXPECT_EQ(Printable("a\x1b]0;b\x07\n\x7f"), "a\\x1b]0;b\\x07\\x0a\\x7f");
  EXPECT_EQ(Printable("\xc2\x9b"
                      "1m"),
            "\xc2\\x9b1m");
  EXPECT_EQ(Printable("h\xc3\xa9lium"), "h\xc3\xa9lium");
  Table table({{"name", Table::Align::kLeft}});
  table.AddRow({"\x1b[2J"});
  EXPECT_EQ(table.Format(), "name\n-------\n\\x1b[2J\n");
}

TEST(FormatTest, SecondsHaveThreeDigitsAndAUnit) {
  EXPECT_EQ(FormatSeconds(0), "-");
  EXPECT_EQ(FormatSeconds(std::numeric_limits<double>::quiet_NaN()), "-");
  EXPECT_EQ(FormatSeconds(950e-9), "950 ns");
  EXPECT_EQ(FormatSeconds(12.345e-6), "12.3 us");
  EXPECT_EQ(FormatSeconds(999.6e-6), "1.00 ms");
  EXPECT_EQ(FormatSeconds(4.56e-3), "4.56 ms");
  EXPECT_EQ(FormatSeconds(1.234), "1.23 s");
  EXPECT_EQ(FormatSeconds(1234), "1234 s");
}

TEST(FormatTest, Bytes) {
  EXPECT_EQ(FormatBytes(512), "512 B");
  EXPECT_EQ(FormatBytes(1536), "1.50 KiB");
  EXPECT_EQ(FormatBytes(int64_t{12} << 20), "12.0 MiB");
  EXPECT_EQ(FormatBytes((int64_t{1} << 20) - 1), "1.00 MiB");
}

TEST(FormatTest, IterationsAndCounts) {
  EXPECT_EQ(IterationsText(4, 0, 0), "4");
  EXPECT_EQ(IterationsText(4, 2, 1), "4 +2 warm +1 chord");
  EXPECT_EQ(CountsText({}), "");
  EXPECT_EQ(CountsText({{"slow", 2}, {"max\x1b", 1}}), "max\\x1b 1, slow 2");
}

TEST(FormatTest, RatiosAndErrors) {
  EXPECT_EQ(FormatRatio(2.314), "2.31x");
  EXPECT_EQ(FormatRatio(0.0512), "0.05x");
  EXPECT_EQ(FormatRatio(0), "-");
  EXPECT_EQ(FormatError(0), "0");
  EXPECT_EQ(FormatError(1.234e-5), "1.2e-05");
}

}  // namespace
}  // namespace deeppcr
