// SPDX-License-Identifier: Apache-2.0
// The example of steering, against the real server with the demo models.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "kernels/base/file.h"
#include "tests/testing/server_process.h"

namespace deeppcr {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kModels[] = DEEPPCR_SOURCE_DIR "/deploy/models/repository/";

class SteerTest : public ::testing::Test {
 protected:
  void Start(const std::vector<std::string>& flags) {
    for (const std::string name : {"digits-resnet", "digits-ddpm"})
      std::filesystem::copy(kModels + name, directory_.File(name),
                            std::filesystem::copy_options::recursive);
    server_ = testing::ServerProcess::Start(directory_.path(), flags);
  }
  testing::Finished Steer(std::vector<std::string> arguments) {
    arguments.push_back("--server=" + server_->address());
    return testing::RunProgram(DEEPPCR_STEER_BINARY, arguments, 120);
  }

  testing::TemporaryDirectory directory_;
  std::unique_ptr<testing::ServerProcess> server_;
};

// Ten digits that are drawn from noise of their own; most are no threes. Noise that is steered
// through all thousand steps draws threes.
TEST_F(SteerTest, DrawsTheWantedDigit) {
  Start({"--gradients"});
  const std::string picture = directory_.File("steered.png");
  const testing::Finished finished = Steer({"--png=" + picture});
  EXPECT_EQ(finished.exit_code, 0) << finished.output;
  const std::vector<std::string> lines = absl::StrSplit(finished.output, '\n', absl::SkipEmpty());
  ASSERT_GT(lines.size(), 2u) << finished.output;
  EXPECT_THAT(lines[1], HasSubstr("   1 of 10")) << "before";
  EXPECT_THAT(lines.back(), HasSubstr("   10 of 10")) << "after";
  EXPECT_THAT(ReadFile(picture, 1 << 20).value(), StartsWith("\x89PNG"));
}

TEST_F(SteerTest, SaysWhatAServerWithoutGradientsLacks) {
  Start({});
  const testing::Finished finished = Steer({});
  EXPECT_EQ(finished.exit_code, 1);
  EXPECT_THAT(finished.output, HasSubstr("start it with --gradients"));
}

}  // namespace
}  // namespace deeppcr
