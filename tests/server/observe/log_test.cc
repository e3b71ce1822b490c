// SPDX-License-Identifier: Apache-2.0
#include "server/observe/log.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace deeppcr {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

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
  logger.SetLevel(LogLevel::kError);
  logger.Log(LogLevel::kWarn, "quiet", {});
  logger.LogAlways("administration", {});
  ASSERT_EQ(lines_.size(), 3u);
  EXPECT_THAT(lines_[1], ::testing::HasSubstr("log_level"));
  EXPECT_THAT(lines_[2], ::testing::HasSubstr("administration"));
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

TEST_F(LogTest, AFloodAtOneLevelDoesNotHideAnother) {
  Logger logger = Make(LogFormat::kText);
  for (int i = 0; i < 1000; ++i) logger.LogLimited(LogLevel::kInfo, "refused", {});

  logger.LogLimited(LogLevel::kWarn, "refused", {});

  EXPECT_THAT(lines_.back(), HasSubstr("warn refused"));
  EXPECT_THAT(lines_.back(), Not(HasSubstr("suppressed")));
}

// Replaces stderr by a pipe, for as long as the object lives.
class StderrPipe {
 public:
  StderrPipe() : saved_(dup(STDERR_FILENO)) {
    std::array<int, 2> ends{};
    if (pipe(ends.data()) != 0) std::abort();
    dup2(ends[1], STDERR_FILENO);
    close(ends[1]);
    fcntl(STDERR_FILENO, F_SETFL, O_NONBLOCK);
    end_ = ends[0];
  }
  ~StderrPipe() {
    Restore();
    close(end_);
  }
  // Restores stderr; the pipe then has an end.
  void Restore() {
    if (saved_ < 0) return;
    dup2(saved_, STDERR_FILENO);
    close(std::exchange(saved_, -1));
  }
  std::string ReadAll() const {
    std::string text;
    std::array<char, 4096> part{};
    for (ssize_t n = 0; (n = read(end_, part.data(), part.size())) > 0;)
      text.append(part.data(), n);
    return text;
  }

 private:
  int saved_;
  int end_ = -1;
};

TEST(StderrLogTest, ANonBlockingPipeThatIsFullLosesNothing) {
  constexpr int kLines = 3000;  // more than a pipe holds, less than the queue
  StderrPipe pipe;
  Logger logger(LogFormat::kText, LogLevel::kInfo);
  for (int i = 0; i < kLines; ++i) logger.Log(LogLevel::kInfo, "line", {{"number", int64_t{i}}});
  logger.Flush();  // has no effect: the pipe is full

  std::string text;
  std::thread reader([&] { text = pipe.ReadAll(); });
  logger.Flush();
  pipe.Restore();
  reader.join();

  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), kLines);
  EXPECT_THAT(text, HasSubstr("number=2999\n"));
}

}  // namespace
}  // namespace deeppcr
