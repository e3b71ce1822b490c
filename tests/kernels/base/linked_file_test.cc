// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/linked_file.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/testing/expect_error.h"
#include "tests/testing/safetensors_writer.h"

namespace deeppcr::testing {
namespace {

namespace fs = std::filesystem;

// A folder as Kubernetes mounts a Secret: the name is a link to ..data, which is a link to the
// version of the day, and an update moves the second.
class LinkedFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Write("first", "one");
    fs::create_symlink("first", folder_.File("..data"));
    fs::create_symlink("..data/token", path_);
  }
  void Write(const std::string& version, const std::string& text) {
    fs::create_directory(folder_.File(version));
    std::ofstream(folder_.File(version + "/token")) << text;
  }
  void Update(const std::string& text) {
    Write("second", text);
    fs::create_symlink("second", folder_.File("..tmp"));
    fs::rename(folder_.File("..tmp"), folder_.File("..data"));
    fs::remove_all(folder_.File("first"));
  }

  TemporaryDirectory folder_;
  const std::string path_ = folder_.File("token");
};

TEST_F(LinkedFileTest, ReadsThroughLinks) {
  EXPECT_EQ(ReadLinkedFile(path_, 100).value(), "one");
  Update("two");
  EXPECT_EQ(ReadLinkedFile(path_, 100).value(), "two");
  ExpectError(ReadLinkedFile(path_, 2), absl::StatusCode::kResourceExhausted, "3 bytes");
  ExpectError(ReadLinkedFile(folder_.path(), 100), absl::StatusCode::kInvalidArgument,
              "a directory");
}

TEST_F(LinkedFileTest, LinksThatLeadNowhereAreErrors) {
  fs::remove_all(folder_.File("first"));
  EXPECT_FALSE(ReadLinkedFile(path_, 100).ok());
  ExpectError(ReadLinkedFile(folder_.File("none"), 100), absl::StatusCode::kNotFound, "none");
  fs::create_symlink("circle", folder_.File("circle"));
  EXPECT_FALSE(ReadLinkedFile(folder_.File("circle"), 100).ok());
}

TEST_F(LinkedFileTest, AWatchSeesWhatIsMovedWrittenOrRemovedOnce) {
  FileWatch watch(path_);
  EXPECT_FALSE(watch.Changed());
  Update("two");
  EXPECT_TRUE(watch.Changed());
  EXPECT_FALSE(watch.Changed());
  std::ofstream(folder_.File("second/token")) << "longer";
  EXPECT_TRUE(watch.Changed());
  EXPECT_FALSE(watch.Changed());
  fs::remove(path_);
  EXPECT_TRUE(watch.Changed());
  EXPECT_FALSE(watch.Changed());
}

}  // namespace
}  // namespace deeppcr::testing
