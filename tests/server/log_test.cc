// SPDX-License-Identifier: Apache-2.0
#include "server/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace deeppcr {
namespace {

using ::testing::HasSubstr;

class LogTest : public ::testing::Test {
 protected:
  Logger Make(LogFormat format, LogLevel level = LogLevel::kInfo) {
    return Logger(format, level, [this](std::string_view line) { lines_.emplace_back(line); });
  }
  std::vector<std::string> lines_;
};

TEST_F(LogTest, JsonLinesParseWhateverTheyHold) {
  Logger logger = Make(LogFormat::kJson);

  logger.Log(LogLevel::kWarn, "odd",
             {{"text", "a\"b\n\xff"}, {"count", int64_t{3}}, {"seconds", 0.5}});

  ASSERT_EQ(lines_.size(), 1u);
  EXPECT_EQ(lines_[0].find('\n'), lines_[0].size() - 1);
  const auto line = nlohmann::json::parse(lines_[0]);
  EXPECT_EQ(line["event"], "odd");
  EXPECT_EQ(line["level"], "warn");
  EXPECT_EQ(line["count"], 3);
  EXPECT_EQ(line["seconds"], 0.5);
  EXPECT_THAT(line["text"].get<std::string>(), HasSubstr("a\"b\n"));
}

TEST_F(LogTest, TextLinesStayOneLine) {
  Logger logger = Make(LogFormat::kText);

  logger.Log(LogLevel::kInfo, "odd", {{"text", "a\nb"}, {"count", int64_t{3}}});

  ASSERT_EQ(lines_.size(), 1u);
  EXPECT_THAT(lines_[0], HasSubstr("info odd text=\"a\\nb\" count=3\n"));
}

TEST_F(LogTest, LowerLevelsAreLeftOut) {
  Logger logger = Make(LogFormat::kText, LogLevel::kWarn);

  logger.Log(LogLevel::kInfo, "quiet", {});
  logger.LogLimited(LogLevel::kDebug, "quiet", {});
  logger.Log(LogLevel::kError, "loud", {});

  EXPECT_EQ(lines_.size(), 1u);
  EXPECT_FALSE(logger.enabled(LogLevel::kInfo));
  EXPECT_EQ(ParseLogLevel("error"), LogLevel::kError);
}

TEST_F(LogTest, AFloodOfOneEventIsCutAndCounted) {
  for (const LogFormat format : {LogFormat::kJson, LogFormat::kText}) {
    lines_.clear();
    Logger logger = Make(format);
    for (int i = 0; i < 1000; ++i) logger.LogLimited(LogLevel::kWarn, "flood", {});
    logger.LogLimited(LogLevel::kWarn, "other", {});
    // The loop above takes far less than a second, but may straddle the end of a window.
    EXPECT_LE(lines_.size(), 2u * Logger::kLinesPerSecond + 1);
    EXPECT_GE(lines_.size(), 1u * Logger::kLinesPerSecond + 1);
  }
}

}  // namespace
}  // namespace deeppcr
