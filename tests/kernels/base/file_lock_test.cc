// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/file_lock.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/base/file.h"
#include "tests/testing/expect_error.h"
#include "tests/testing/safetensors_writer.h"

namespace deeppcr {
namespace {

using testing::ExpectError;
using testing::TemporaryDirectory;

TEST(FileLockTest, HasOneHolderAndLeavesNoFile) {
  const TemporaryDirectory folder;
  const std::string path = folder.File("lock");
  {
    std::optional<FileLock> lock = FileLock::Take(path).value();
    ExpectError(FileLock::Take(path), absl::StatusCode::kFailedPrecondition,
                path + " is locked by another process");
    const FileLock moved = *std::move(lock);
    lock.reset();
    ExpectError(FileLock::Take(path), absl::StatusCode::kFailedPrecondition, "is locked");
    EXPECT_TRUE(std::filesystem::exists(path));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_TRUE(FileLock::Take(path).ok());
}

// The file that it leaves is no obstacle.
TEST(FileLockTest, EndsWithAKilledProcess) {
  const TemporaryDirectory folder;
  const std::string path = folder.File("lock");
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const absl::StatusOr<FileLock> lock = FileLock::Take(path);
    const char held = lock.ok() ? 1 : 0;
    if (::write(ends[1], &held, 1) != 1) ::_exit(1);
    while (true) ::pause();
  }
  char held = 0;
  ASSERT_EQ(::read(ends[0], &held, 1), 1);
  EXPECT_EQ(held, 1);
  ExpectError(FileLock::Take(path), absl::StatusCode::kFailedPrecondition, "is locked");
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(std::filesystem::exists(path));
  EXPECT_TRUE(FileLock::Take(path).ok());
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST(FileLockTest, LeavesAnothersFileAlone) {
  const TemporaryDirectory folder;
  const std::string path = folder.File("lock");
  {
    const FileLock lock = FileLock::Take(path).value();
    std::filesystem::remove(path);
    ASSERT_TRUE(WriteFileAtomically(path, "another's").ok());
  }
  EXPECT_TRUE(std::filesystem::exists(path));
}

// Holders that come and go, and remove the file each time, are never two.
TEST(FileLockTest, HasOneHolderAmongManyWhoTry) {
  const TemporaryDirectory folder;
  const std::string path = folder.File("lock");
  std::atomic<int> holders = 0, most = 0, taken = 0;
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int attempt = 0; attempt < 2000; ++attempt) {
        const absl::StatusOr<FileLock> lock = FileLock::Take(path);
        if (!lock.ok()) continue;
        if (++holders > 1) most = 2;
        ++taken;
        std::this_thread::yield();
        --holders;
      }
    });
  threads.clear();
  EXPECT_GT(taken, 0);
  EXPECT_EQ(most, 0);
}

// What others keep under the name is not taken for a lock, which would be removed in the end.
TEST(FileLockTest, LeavesAloneWhatIsNoLock) {
  const TemporaryDirectory folder;
  const std::string file = folder.File("file"), pipe = folder.File("pipe");
  std::ofstream(file) << "precious";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& path : {file, pipe}) {
    ExpectError(FileLock::Take(path).status(), absl::StatusCode::kAlreadyExists,
                path + " is there, and is no lock");
    EXPECT_TRUE(std::filesystem::exists(path));
  }
}

TEST(FileLockTest, NamesWhatCannotBeOpened) {
  const TemporaryDirectory folder;
  ExpectError(FileLock::Take(folder.File("none/lock")), absl::StatusCode::kNotFound, "none/lock");
  std::filesystem::create_symlink("elsewhere", folder.File("link"));
  EXPECT_FALSE(FileLock::Take(folder.File("link")).ok());
  EXPECT_FALSE(std::filesystem::exists(folder.File("elsewhere")));
}

}  // namespace
}  // namespace deeppcr
