// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/file.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <thread>
#include <vector>

#include "tests/testing/expect_error.h"
#include "tests/testing/safetensors_writer.h"

namespace deeppcr::testing {
namespace {

using absl::StatusCode;

constexpr int64_t kPlenty = 1 << 20;

size_t FilesIn(const std::string& directory) {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(directory),
                                           std::filesystem::directory_iterator()));
}

TEST(FileTest, ReadsWhatWasWritten) {
  const TemporaryDirectory directory;
  const std::string contents("a\0b\xFF\n", 5);

  ASSERT_TRUE(WriteFileAtomically(directory.File("f"), contents).ok());

  EXPECT_EQ(*ReadFile(directory.File("f"), kPlenty), contents);
}

TEST(FileTest, ReadsAnEmptyFile) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(WriteFileAtomically(directory.File("f"), "").ok());

  EXPECT_EQ(*ReadFile(directory.File("f"), 0), "");
}

TEST(FileTest, AcceptsExactlyTheLimit) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(WriteFileAtomically(directory.File("f"), "12345").ok());

  EXPECT_TRUE(ReadFile(directory.File("f"), 5).ok());
  ExpectError(ReadFile(directory.File("f"), 4), StatusCode::kResourceExhausted,
              "/f has 5 bytes; 4 are allowed");
}

TEST(FileTest, RefusesASparseGiantBeforeAllocating) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(WriteFileAtomically(directory.File("f"), "").ok());
  ASSERT_EQ(::truncate(directory.File("f").c_str(), int64_t{1} << 42), 0);

  ExpectError(ReadFile(directory.File("f"), kPlenty), StatusCode::kResourceExhausted,
              "has 4398046511104 bytes");
}

TEST(FileTest, NamesAMissingFile) {
  const TemporaryDirectory directory;

  ExpectError(ReadFile(directory.File("none"), kPlenty), StatusCode::kNotFound, "/none");
}

TEST(FileTest, RefusesASymbolicLink) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(WriteFileAtomically(directory.File("target"), "secret").ok());
  ASSERT_EQ(::symlink(directory.File("target").c_str(), directory.File("link").c_str()), 0);

  ExpectError(ReadFile(directory.File("link"), kPlenty), StatusCode::kInvalidArgument,
              "/link is a symbolic link");
}

TEST(FileTest, RefusesADirectory) {
  const TemporaryDirectory directory;

  ExpectError(ReadFile(directory.path(), kPlenty), StatusCode::kInvalidArgument,
              "expected a regular file, got a directory");
}

// A blocking open would hang here until the time limit of the test ends it.
TEST(FileTest, RefusesAFifoWithoutWaitingForAWriter) {
  const TemporaryDirectory directory;
  ASSERT_EQ(::mkfifo(directory.File("fifo").c_str(), 0600), 0);

  ExpectError(ReadFile(directory.File("fifo"), kPlenty), StatusCode::kInvalidArgument,
              "expected a regular file, got a FIFO");
}

TEST(FileTest, RefusesASocket) {
  const TemporaryDirectory directory;
  const int server = ::socket(AF_UNIX, SOCK_STREAM, 0);
  ASSERT_GE(server, 0);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  ASSERT_LT(directory.File("s").size(), sizeof(address.sun_path));
  std::strcpy(address.sun_path, directory.File("s").c_str());
  ASSERT_EQ(::bind(server, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);

  ExpectError(ReadFile(directory.File("s"), kPlenty), StatusCode::kInvalidArgument,
              "/s: expected a regular file");
  ::close(server);
}

TEST(FileTest, RefusesADevice) {
  ExpectError(ReadFile("/dev/null", kPlenty), StatusCode::kInvalidArgument, "got a device");
}

// Files in /proc report a size of 0 and have contents, like a file that grows while it is read.
TEST(FileTest, DetectsMoreBytesThanTheFileHad) {
  ExpectError(ReadFile("/proc/self/status", kPlenty), StatusCode::kAborted,
              "it had 0 bytes, now it has more");
}

// A file that another thread keeps cutting and refilling is read whole or reported, never made up.
TEST(FileTest, DetectsAFileThatIsTruncatedWhileItIsRead) {
  const TemporaryDirectory directory;
  const std::string path = directory.File("f");
  const std::string contents(4 << 20, 'x');
  ASSERT_TRUE(WriteFileAtomically(path, contents).ok());
  std::atomic<bool> stop = false;
  std::thread cutter([&] {
    while (!stop) {
      if (::truncate(path.c_str(), 1 << 20) != 0) return;
    }
  });
  std::thread grower([&] {
    while (!stop) {
      if (::truncate(path.c_str(), 4 << 20) != 0) return;
    }
  });

  int aborted = 0;
  for (int i = 0; i < 20000 && aborted == 0; ++i) {
    const absl::StatusOr<std::string> read = ReadFile(path, kPlenty * 8);
    if (read.ok()) {
      EXPECT_TRUE(read->size() == size_t{1} << 20 || read->size() == contents.size());
    } else {
      ExpectError(read, StatusCode::kAborted, "changed while it was read");
      ++aborted;
    }
  }
  stop = true;
  cutter.join();
  grower.join();

  EXPECT_GT(aborted, 0);
}

TEST(FileTest, ReplacesAtomicallyAndLeavesNothingBehind) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(WriteFileAtomically(directory.File("f"), "old").ok());

  ASSERT_TRUE(WriteFileAtomically(directory.File("f"), "new").ok());

  EXPECT_EQ(*ReadFile(directory.File("f"), kPlenty), "new");
  EXPECT_EQ(FilesIn(directory.path()), 1U);
}

TEST(FileTest, NeverShowsAHalfWrittenFile) {
  const TemporaryDirectory directory;
  const std::string path = directory.File("f");
  const std::vector<std::string> versions = {std::string(100'000, 'a'), std::string(50'000, 'b')};
  ASSERT_TRUE(WriteFileAtomically(path, versions[0]).ok());
  std::thread writer([&] {
    for (size_t i = 0; i < 50; ++i) EXPECT_TRUE(WriteFileAtomically(path, versions[i % 2]).ok());
  });

  for (int i = 0; i < 200; ++i) {
    const absl::StatusOr<std::string> read = ReadFile(path, kPlenty);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_TRUE(*read == versions[0] || *read == versions[1]);
  }
  writer.join();
}

TEST(FileTest, FailsToWriteWithoutADirectory) {
  const TemporaryDirectory directory;

  ExpectError(WriteFileAtomically(directory.File("none/f"), "x"), StatusCode::kNotFound, "none/f");
}

TEST(FileTest, RemovesTheTemporaryFileWhenItCannotReplace) {
  const TemporaryDirectory directory;
  std::filesystem::create_directory(directory.File("f"));

  EXPECT_FALSE(WriteFileAtomically(directory.File("f"), "x").ok());

  EXPECT_EQ(FilesIn(directory.path()), 1U);
}

}  // namespace
}  // namespace deeppcr::testing
