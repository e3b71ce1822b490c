// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "kernels/base/status_context.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"

namespace deeppcr {
namespace {

// Owns a file descriptor.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  int get() const { return fd_; }
  bool ok() const { return fd_ >= 0; }
  // Closes now, so that an error of close is seen. Returns its result.
  int Close() { return ::close(std::exchange(fd_, -1)); }

 private:
  int fd_;
};

absl::Status SystemError(int error, std::string_view action, const std::string& path) {
  // generic_category().message is strerror without its shared buffer.
  const std::string message =
      StrCat("cannot ", action, " ", path, ": ", std::generic_category().message(error));
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return absl::NotFoundError(message);
    case ELOOP:
      return InvalidArgument(path, " is a symbolic link; not followed");
    case ENAMETOOLONG:
      return InvalidArgument("cannot ", action, " a path of ", path.size(),
                             " characters: ", std::generic_category().message(error));
    case EACCES:
    case EPERM:
      return absl::PermissionDeniedError(message);
    default:
      return absl::UnavailableError(message);
  }
}

std::string_view KindOf(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

// Reads until `size` bytes or the end of the file; returns the bytes read, or -1 with errno.
ssize_t ReadUpTo(int fd, char* buffer, size_t size) {
  size_t done = 0;
  while (done < size) {
    const ssize_t count = ::read(fd, buffer + done, size - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return -1;
    if (count == 0) break;
    done += static_cast<size_t>(count);
  }
  return static_cast<ssize_t>(done);
}

absl::Status WriteAll(int fd, std::string_view contents, const std::string& path) {
  while (!contents.empty()) {
    const ssize_t count = ::write(fd, contents.data(), contents.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return SystemError(errno, "write", path);
    contents.remove_prefix(static_cast<size_t>(count));
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> RegularFileSize(int fd, const std::string& path, int64_t max_bytes) {
  struct stat info = {};
  if (::fstat(fd, &info) != 0) return SystemError(errno, "examine", path);
  if (!S_ISREG(info.st_mode)) {
    return InvalidArgument(path, ": expected a regular file, got ", KindOf(info.st_mode));
  }
  if (info.st_size > max_bytes) {
    return ResourceExhausted(path, " has ", info.st_size, " bytes; ", max_bytes, " are allowed");
  }
  return info.st_size;
}

// Fills the temporary file and closes it.
absl::Status FillAndSync(Descriptor& file, std::string_view contents, const std::string& path) {
  DEEPPCR_RETURN_IF_ERROR(WriteAll(file.get(), contents, path));
  if (::fchmod(file.get(), 0644) != 0) return SystemError(errno, "set the mode of", path);
  if (::fsync(file.get()) != 0) return SystemError(errno, "sync", path);
  if (file.Close() != 0) return SystemError(errno, "close", path);
  return absl::OkStatus();
}

// Makes the rename itself durable.
absl::Status SyncDirectoryOf(const std::string& path) {
  std::string directory = std::filesystem::path(path).parent_path().string();
  if (directory.empty()) directory = ".";
  const Descriptor handle(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!handle.ok()) return SystemError(errno, "open", directory);
  // EINVAL: this file system cannot sync directories, which is no error of the written file.
  if (::fsync(handle.get()) != 0 && errno != EINVAL) return SystemError(errno, "sync", directory);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> ReadFile(const std::string& path, int64_t max_bytes,
                                     MemoryShare* memory) {
  // O_NONBLOCK: without the flag, opening a FIFO would wait for a writer.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  if (!file.ok() && errno == ENXIO) {
    return InvalidArgument(path, ": expected a regular file");
  }
  if (!file.ok()) return SystemError(errno, "open", path);
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t size, RegularFileSize(file.get(), path, max_bytes));
  if (memory != nullptr) DEEPPCR_RETURN_IF_ERROR(WithContext(memory->Set(size), path));
  std::string contents(static_cast<size_t>(size), '\0');
  const ssize_t count = ReadUpTo(file.get(), contents.data(), contents.size());
  if (count < 0) return SystemError(errno, "read", path);
  char extra = 0;
  const ssize_t beyond = ReadUpTo(file.get(), &extra, 1);
  if (beyond < 0) return SystemError(errno, "read", path);
  if (count != size || beyond != 0) {
    return absl::AbortedError(StrCat(path, " changed while it was read: it had ", size,
                                     " bytes, now it has ", count < size ? "fewer" : "more"));
  }
  return contents;
}

absl::Status WriteFileAtomically(const std::string& path, std::string_view contents) {
  std::string temporary = StrCat(path, ".XXXXXX");
  Descriptor file(::mkostemp(temporary.data(), O_CLOEXEC));
  if (!file.ok()) return SystemError(errno, "create a temporary file beside", path);
  absl::Status status = FillAndSync(file, contents, path);
  if (status.ok() && ::rename(temporary.c_str(), path.c_str()) != 0) {
    status = SystemError(errno, "replace", path);
  }
  if (!status.ok()) {
    ::unlink(temporary.c_str());
    return status;
  }
  return SyncDirectoryOf(path);
}

}  // namespace deeppcr
