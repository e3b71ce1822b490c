// SPDX-License-Identifier: Apache-2.0
#include "client/array_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>

namespace deeppcr {
namespace {

using ::testing::HasSubstr;
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
    const auto back = ReadArray(path, "");

    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(back->shape, array.shape);
    EXPECT_EQ(back->values, array.values);
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

TEST(ArrayFileTest, FullDiskIsAnError) {
  EXPECT_THAT(std::string(WriteFile("/dev/full", std::string(100, 'x')).message()),
              HasSubstr("cannot write /dev/full"));
}

}  // namespace
}  // namespace deeppcr
