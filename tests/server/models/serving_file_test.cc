// SPDX-License-Identifier: Apache-2.0
#include "server/models/serving_file.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/testing/expect_error.h"
#include "tests/testing/safetensors_writer.h"

namespace deeppcr::testing {
namespace {

TEST(ServingFileTest, SetsWhatItNames) {
  const auto all = ParseServingFile(
      R"({"max_queue": 7, "max_queue_seconds": 0.5, "batch_delay_seconds": 0.002,
          "max_instances": 0, "shadow_rate": 1, "weight": 2.5})");
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_EQ(all->max_queue, 7);
  EXPECT_EQ(all->max_queue_seconds, 0.5);
  EXPECT_EQ(all->max_delay, std::chrono::microseconds(2000));
  EXPECT_EQ(all->max_instances, 0);
  EXPECT_EQ(all->shadow_rate, 1);
  EXPECT_EQ(all->weight, 2.5);
  const auto none = ParseServingFile("{}");
  ASSERT_TRUE(none.ok());
  EXPECT_FALSE(none->max_queue || none->max_queue_seconds || none->max_delay ||
               none->max_instances || none->shadow_rate);
  EXPECT_EQ(none->weight, 1);
}

class RefusedServingFile : public ::testing::TestWithParam<RefusedCase> {};

TEST_P(RefusedServingFile, NamesTheKey) {
  ExpectError(ParseServingFile(GetParam().input), GetParam().code, GetParam().message_part);
}

INSTANTIATE_TEST_SUITE_P(
    Files, RefusedServingFile,
    ::testing::Values(RefusedCase{"Empty", "", "end of"},
                      RefusedCase{"Array", "[1]", "expected an object"},
                      RefusedCase{"Unknown", R"({"weigth": 1})",
                                  "\"weigth\": expected one of max_queue"},
                      RefusedCase{"Twice", R"({"weight": 1, "weight": 2})", "weight"},
                      RefusedCase{"Zero", R"({"max_queue": 0})", "max_queue"},
                      RefusedCase{"Huge", R"({"max_queue": 1e9})", "max_queue"},
                      RefusedCase{"Fraction", R"({"max_instances": 1.5})", "max_instances"},
                      RefusedCase{"Negative", R"({"max_queue_seconds": -1})", "[0, 86400], got -1"},
                      RefusedCase{"NoWeight", R"({"weight": 0})", "[0.01, 100]"},
                      RefusedCase{"Text", R"({"shadow_rate": "1"})", "shadow_rate"},
                      RefusedCase{"Nan", R"({"shadow_rate": NaN})", ""},
                      RefusedCase{"Infinite", R"({"weight": 1e999})", ""},
                      RefusedCase{"Deep", R"({"weight": [[[[1]]]]})", ""}),
    CaseName);

TEST(ServingFileTest, IsAPlainFileOrNotThere) {
  TemporaryDirectory folder;
  EXPECT_TRUE(ReadServingFile(folder.path(), "m").ok());
  const std::string path = folder.File(kServingFile);
  std::ofstream(path) << R"({"weight": 0})";
  ExpectError(ReadServingFile(folder.path(), "m"), absl::StatusCode::kInvalidArgument,
              "m/serving.json: weight: expected a number");
  std::filesystem::rename(path, folder.File("other"));
  std::filesystem::create_symlink(folder.File("other"), path);
  ExpectError(ReadServingFile(folder.path(), "m"), absl::StatusCode::kFailedPrecondition,
              "m/serving.json: expected a plain file");
  std::filesystem::remove(path);
  std::ofstream(path) << std::string(100000, ' ');
  ExpectError(ReadServingFile(folder.path(), "m"), absl::StatusCode::kFailedPrecondition, "bytes");
}

}  // namespace
}  // namespace deeppcr::testing
