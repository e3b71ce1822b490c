// SPDX-License-Identifier: Apache-2.0
#include "client/array_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdio>
#include <filesystem>

namespace deeppcr {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST(ArrayFileTest, ExtensionDecidesThenFormatThenCsvForDash) {
  EXPECT_EQ(*ChooseArrayFormat("a.npy", "csv"), ArrayFormat::kNpy);
  EXPECT_EQ(*ChooseArrayFormat("a.JSON", ""), ArrayFormat::kJson);
  EXPECT_EQ(*ChooseArrayFormat("a.dat", "json"), ArrayFormat::kJson);
  EXPECT_EQ(*ChooseArrayFormat("-", ""), ArrayFormat::kCsv);
  EXPECT_EQ(*ChooseArrayFormat("-", "npy"), ArrayFormat::kNpy);
  EXPECT_FALSE(ChooseArrayFormat("a.dat", "").ok());
  EXPECT_FALSE(ChooseArrayFormat("a.dat", "xml").ok());
}

TEST(ArrayFileTest, FilesOfEachFormatGoThereAndBack) {
  const Array array{{2, 2}, {1, 2, 3, 0.25f}};
  for (const char* name : {"x.npy", "x.csv", "x.json"}) {
    const std::string path = ::testing::TempDir() + "array_file_test_" + name;

    ASSERT_TRUE(WriteArray(array, path, "").ok());
    const auto back = ReadArray(path, "").value();

    EXPECT_EQ(back.shape, array.shape);
    EXPECT_EQ(back.values, array.values);
  }
}

TEST(ArrayFileTest, ErrorsBeginWithThePath) {
  const std::string path = ::testing::TempDir() + "array_file_test_bad.npy";
  ASSERT_TRUE(WriteFile(path, "not an array").ok());

  const auto array = ReadArray(path, "");

  EXPECT_THAT(std::string(array.status().message()), StartsWith(path + ": npy: not a .npy file"));
}

TEST(ArrayFileTest, MissingFileAndDirectoryAreErrors) {
  EXPECT_EQ(ReadArray(::testing::TempDir() + "no_such_file.npy", "").status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(ReadArray(::testing::TempDir(), "npy").status().message()),
              HasSubstr("cannot read"));
  EXPECT_FALSE(WriteFile(::testing::TempDir() + "no_such_directory/x.npy", "x").ok());
}

TEST(ArrayFileTest, WritabilityIsFoundOutWithoutATrace) {
  const std::string path = ::testing::TempDir() + "array_file_test_writable";
  std::remove(path.c_str());

  EXPECT_TRUE(CheckWritable("-").ok());
  EXPECT_TRUE(CheckWritable(path).ok());
  EXPECT_EQ(ReadArray(path, "csv").status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(WriteFile(path, "1\n").ok());
  EXPECT_TRUE(CheckWritable(path).ok());
  EXPECT_TRUE(ReadArray(path, "csv").ok());
}

TEST(ArrayFileTest, FoldersAndFoldersThatAreMissingAreNotWritable) {
  EXPECT_THAT(std::string(CheckWritable(::testing::TempDir()).message()),
              HasSubstr("Is a directory"));
  EXPECT_THAT(std::string(CheckWritable("/no/such/x.npy").message()),
              HasSubstr("cannot write /no/such/x.npy: No such file or directory"));
}

TEST(ArrayFileTest, WhatCannotBeWrittenWholeLeavesTheOldFile) {
  const std::string path = ::testing::TempDir() + "array_file_test_kept.csv";
  ASSERT_TRUE(WriteFile(path, "1\n").ok());
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small = {.rlim_cur = 4096, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const absl::Status status = WriteFile(path, std::string(8192, 'x'));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, old_handler);

  EXPECT_THAT(std::string(status.message()), HasSubstr("cannot write " + path));
  EXPECT_EQ(ReadArray(path, "")->values, std::vector<float>{1});
  for (const auto& entry : std::filesystem::directory_iterator(::testing::TempDir())) {
    EXPECT_THAT(entry.path().string(), Not(HasSubstr("array_file_test_kept.csv.")));
  }
}

TEST(ArrayFileTest, ALinkStaysALink) {
  const std::string path = ::testing::TempDir() + "array_file_test_target.csv";
  const std::string link = ::testing::TempDir() + "array_file_test_link.csv";
  std::filesystem::remove(link);
  ASSERT_TRUE(WriteFile(path, "1\n").ok());
  std::filesystem::create_symlink(path, link);

  ASSERT_TRUE(WriteFile(link, "2\n").ok());

  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_EQ(ReadArray(path, "")->values, std::vector<float>{2});
}

TEST(ArrayFileTest, CsvHoldsTwoAxes) {
  EXPECT_TRUE(CheckHolds("x.csv", "", 2).ok());
  EXPECT_TRUE(CheckHolds("x.npy", "", 3).ok());
  EXPECT_TRUE(CheckHolds("x.json", "csv", 3).ok());
  EXPECT_THAT(std::string(CheckHolds("x.csv", "", 3).message()),
              HasSubstr("x.csv: csv holds rows of numbers, not an array of 3 axes"));
  EXPECT_FALSE(CheckHolds("-", "", 3).ok());
  EXPECT_FALSE(CheckHolds("x", "", 1).ok());
}

TEST(ArrayFileTest, FullDiskIsAnError) {
  EXPECT_THAT(std::string(WriteFile("/dev/full", std::string(100, 'x')).message()),
              HasSubstr("cannot write /dev/full"));
}

}  // namespace
}  // namespace deeppcr
