// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_BASE_FILE_LOCK_H_
#define DEEPPCR_KERNELS_BASE_FILE_LOCK_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace deeppcr {

// An exclusive lock: a file of its own, made where there is none, under flock(2). The lock ends
// with the object, which removes the file, or with the process, however that ends; a file that a
// killed process has left locks nobody out. Holders in one process exclude one another, too.
class FileLock {
 public:
  // Never waits. Errors, each naming the path: kFailedPrecondition where another holds the lock;
  // kAlreadyExists for what is no empty file, and so nobody's lock; kNotFound, kPermissionDenied,
  // kUnavailable from the file system, also one without locks.
  static absl::StatusOr<FileLock> Take(const std::string& path);

  FileLock(FileLock&& other) noexcept;
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;
  ~FileLock();

 private:
  FileLock(std::string path, int file) : path_(std::move(path)), file_(file) {}

  std::string path_;
  int file_;  // -1: moved from
};

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_BASE_FILE_LOCK_H_
