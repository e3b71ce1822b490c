// SPDX-License-Identifier: Apache-2.0
#include "server/models/repository.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <fstream>

#include "tests/testing/expect_error.h"
#include "tests/testing/safetensors_writer.h"

namespace deeppcr::testing {
namespace {

namespace fs = std::filesystem;
using absl::StatusCode;

// While an object of this class lives, no file can be opened, not even by root.
class NoFiles {
 public:
  NoFiles() {
    getrlimit(RLIMIT_NOFILE, &before_);
    rlimit none = before_;
    none.rlim_cur = 0;
    setrlimit(RLIMIT_NOFILE, &none);
  }
  ~NoFiles() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

class RepositoryTest : public ::testing::Test {
 protected:
  fs::path root() const { return directory_.path(); }
  void MakeVersion(const std::string& name, const std::string& version) const {
    fs::create_directories(root() / name / version);
  }

  TemporaryDirectory directory_;
};

TEST_F(RepositoryTest, TheLatestVersionIsTheHighestDirectory) {
  for (const char* version : {"1", "10", "2", "latest"}) MakeVersion("a", version);
  EXPECT_EQ(*Repository(root()).LatestVersion("a"), 10);
}

TEST_F(RepositoryTest, AFileNamedLikeAVersionHidesNone) {
  MakeVersion("a", "1");
  std::ofstream(root() / "a" / "20241231") << "notes";
  EXPECT_EQ(*Repository(root()).LatestVersion("a"), 1);

  fs::remove(root() / "a" / "1");
  ExpectError(Repository(root()).LatestVersion("a"), StatusCode::kNotFound, "has no version");
}

TEST_F(RepositoryTest, ALinkNamedLikeAVersionIsFoundAndRefused) {
  MakeVersion("a", "1");
  fs::create_directory_symlink(root() / "a" / "1", root() / "a" / "2");
  EXPECT_EQ(*Repository(root()).LatestVersion("a"), 2);
  ExpectError(Repository(root()).CheckVersion("a", 2), StatusCode::kFailedPrecondition,
              "symbolic link");
}

TEST_F(RepositoryTest, ADirectoryThatCannotBeReadIsNotAnEmptyOne) {
  MakeVersion("a", "1");
  const NoFiles none;
  ExpectError(Repository(root()).LatestVersion("a"), StatusCode::kFailedPrecondition,
              "model 'a' cannot be read: Too many open files");
  ExpectError(Repository(root()).CheckVersion("a", 1), StatusCode::kFailedPrecondition,
              "model 'a' version 1 cannot be read: Too many open files");
}

TEST_F(RepositoryTest, ADirectoryThatCannotBeExaminedIsNotAMissingOne) {
  const std::string name(300, 'x');  // longer than any file system takes
  ExpectError(Repository(root()).LatestVersion(name), StatusCode::kFailedPrecondition,
              "cannot be read: ");
  ExpectError(Repository(root()).LatestVersion("a"), StatusCode::kNotFound, "is not there");
}

// A client explains errors, and retries, by their code.
TEST(AsLoadErrorTest, TellsFaultsOfTheContentsFromFaultsOfTheMachine) {
  const auto code_of = [](StatusCode code) {
    return AsLoadError(absl::Status(code, "x"), "/models/a/1", "a/1").code();
  };
  EXPECT_TRUE(AsLoadError(absl::OkStatus(), "/models/a/1", "a/1").ok());
  for (const StatusCode code : {StatusCode::kNotFound, StatusCode::kInvalidArgument}) {
    EXPECT_EQ(code_of(code), StatusCode::kInvalidArgument) << code;
  }
  for (const StatusCode code : {StatusCode::kInternal, StatusCode::kCancelled}) {
    EXPECT_EQ(code_of(code), code);
  }
  for (const StatusCode code :
       {StatusCode::kResourceExhausted, StatusCode::kPermissionDenied, StatusCode::kUnavailable,
        StatusCode::kAborted, StatusCode::kUnknown, StatusCode::kOutOfRange,
        StatusCode::kDeadlineExceeded, StatusCode::kUnauthenticated, StatusCode::kDataLoss}) {
    EXPECT_EQ(code_of(code), StatusCode::kFailedPrecondition) << code;
  }
}

TEST(AsLoadErrorTest, NamesNoPathOutsideTheRepository) {
  const absl::Status error = AsLoadError(
      absl::UnavailableError("cannot open /srv/models/a/1/x: /srv/models/a/1/x is away"),
      "/srv/models/a/1", "a/1");
  EXPECT_EQ(std::string(error.message()), "cannot open a/1/x: a/1/x is away");
}

// A folder as model hubs hand it out.
TEST_F(RepositoryTest, TheFolderOfOneModelMayBeItsVersionOne) {
  std::ofstream(root() / "config.json") << "{}";
  std::ofstream(root() / "model.safetensors") << "weights";
  std::ofstream(root() / ".gitattributes") << "lfs";
  fs::create_directories(root() / ".cache" / "huggingface");
  fs::create_directories(root() / "assets");
  fs::create_symlink(root() / "config.json", root() / ".link");
  const Repository one = Repository::OfModel(root(), "net");
  std::error_code error;
  EXPECT_EQ(one.Entries(error), std::vector<std::string>{"net"});
  EXPECT_FALSE(error);
  EXPECT_EQ(*one.VersionsOf("net"), std::vector<int64_t>{1});
  EXPECT_TRUE(one.CheckVersion("net", 1).ok());
  EXPECT_EQ(one.FolderOf("net", 1), root());
  ExpectError(one.CheckVersion("net", 2), StatusCode::kNotFound, "version 2 is not there");
  ExpectError(one.CheckVersion("other", 1), StatusCode::kNotFound, "model 'other' is not there");
  // A folder in it is no other model.
  ExpectError(one.VersionsOf("assets"), StatusCode::kNotFound, "model 'assets' is not there");

  // A later version may come beside it, once it is one.
  MakeVersion("", "7");
  fs::create_directories(root() / "1000");
  EXPECT_EQ(*one.VersionsOf("net"), std::vector<int64_t>{1});
  std::ofstream(root() / "7" / "config.json") << "{}";
  EXPECT_EQ(*one.VersionsOf("net"), (std::vector<int64_t>{1, 7}));
  EXPECT_EQ(one.FolderOf("net", 7), root() / "7");
  EXPECT_TRUE(one.CheckVersion("net", 7).ok());
  EXPECT_TRUE(one.CheckVersion("net", 1).ok());
  fs::create_directories(root() / "1");
  std::ofstream(root() / "1" / "config.json") << "{}";
  EXPECT_EQ(*one.VersionsOf("net"), (std::vector<int64_t>{1, 7}));
  EXPECT_EQ(one.FolderOf("net", 1), root());
  fs::remove_all(root() / "1");

  fs::create_symlink("/etc/passwd", root() / "scheduler_config.json");
  ExpectError(one.CheckVersion("net", 1), StatusCode::kFailedPrecondition,
              "\"scheduler_config.json\" is a symbolic link");
}

TEST_F(RepositoryTest, TheFolderOfOneModelMayHoldItsVersions) {
  MakeVersion("a", "2");
  MakeVersion("a", "10");
  fs::create_directory_symlink(root() / "a", root() / "link");
  const Repository one = Repository::OfModel(root() / "link", "net");
  EXPECT_EQ(*one.VersionsOf("net"), (std::vector<int64_t>{2, 10}));
  EXPECT_TRUE(one.CheckVersion("net", 10).ok());
  EXPECT_EQ(one.FolderOf("net", 10), root() / "link" / "10");
  fs::create_directory_symlink(root() / "a" / "2", root() / "a" / "3");
  ExpectError(one.CheckVersion("net", 3), StatusCode::kFailedPrecondition, "symbolic link");
  ExpectError(Repository::OfModel(root() / "none", "net").VersionsOf("net"), StatusCode::kNotFound,
              "is not there");
}

}  // namespace
}  // namespace deeppcr::testing
