// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>
#include <system_error>
#include <utility>

#include "kernels/base/strings.h"

namespace deeppcr {
namespace {

absl::Status SystemError(std::string_view action, const std::string& path, int error) {
  const std::string message =
      StrCat("cannot ", action, " ", path, ": ", std::generic_category().message(error));
  if (error == ENOENT || error == ENOTDIR) return absl::NotFoundError(message);
  if (error == EACCES || error == EPERM) return absl::PermissionDeniedError(message);
  return absl::UnavailableError(message);
}

// False where the path has come to name another file, or none.
bool Names(const std::string& path, int file) {
  struct stat there = {}, here = {};
  return ::stat(path.c_str(), &there) == 0 && ::fstat(file, &here) == 0 &&
         there.st_dev == here.st_dev && there.st_ino == here.st_ino;
}

}  // namespace

absl::StatusOr<FileLock> FileLock::Take(const std::string& path) {
  // Whoever held the lock may have removed the file between our open and our flock: what is locked
  // then is nobody's any more.
  while (true) {
    const int file =
        ::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0644);
    if (file < 0) return SystemError("open", path, errno);
    if (::flock(file, LOCK_EX | LOCK_NB) != 0) {
      const int error = errno;
      ::close(file);
      if (error == EINTR) continue;
      if (error == EWOULDBLOCK)
        return absl::FailedPreconditionError(StrCat(path, " is locked by another process"));
      return SystemError("lock", path, error);
    }
    struct stat status = {};
    if (::fstat(file, &status) != 0 || !S_ISREG(status.st_mode) || status.st_size != 0) {
      ::close(file);
      return absl::AlreadyExistsError(StrCat(path, " is there, and is no lock"));
    }
    FileLock lock(path, file);
    if (Names(path, file)) return lock;
  }
}

FileLock::FileLock(FileLock&& other) noexcept
    : path_(std::move(other.path_)), file_(std::exchange(other.file_, -1)) {}

FileLock::~FileLock() {
  if (file_ < 0) return;
  // While the lock is held: nobody else's file is removed.
  if (Names(path_, file_)) ::unlink(path_.c_str());
  ::close(file_);
}

}  // namespace deeppcr
