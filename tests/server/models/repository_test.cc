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
  EXPECT_EQ(*LatestVersion(root(), "a"), 10);
}

TEST_F(RepositoryTest, AFileNamedLikeAVersionHidesNone) {
  MakeVersion("a", "1");
  std::ofstream(root() / "a" / "20241231") << "notes";
  EXPECT_EQ(*LatestVersion(root(), "a"), 1);

  fs::remove(root() / "a" / "1");
  ExpectError(LatestVersion(root(), "a"), StatusCode::kNotFound, "has no version");
}

TEST_F(RepositoryTest, ALinkNamedLikeAVersionIsFoundAndRefused) {
  MakeVersion("a", "1");
  fs::create_directory_symlink(root() / "a" / "1", root() / "a" / "2");
  EXPECT_EQ(*LatestVersion(root(), "a"), 2);
  ExpectError(CheckVersion(root(), "a", 2), StatusCode::kFailedPrecondition, "symbolic link");
}

TEST_F(RepositoryTest, ADirectoryThatCannotBeReadIsNotAnEmptyOne) {
  MakeVersion("a", "1");
  const NoFiles none;
  ExpectError(LatestVersion(root(), "a"), StatusCode::kFailedPrecondition,
              "model 'a' cannot be read: Too many open files");
  ExpectError(CheckVersion(root(), "a", 1), StatusCode::kFailedPrecondition,
              "model 'a' version 1 cannot be read: Too many open files");
}

TEST_F(RepositoryTest, ADirectoryThatCannotBeExaminedIsNotAMissingOne) {
  const std::string name(300, 'x');  // longer than any file system takes
  ExpectError(LatestVersion(root(), name), StatusCode::kFailedPrecondition, "cannot be read: ");
  ExpectError(LatestVersion(root(), "a"), StatusCode::kNotFound, "is not there");
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

}  // namespace
}  // namespace deeppcr::testing
