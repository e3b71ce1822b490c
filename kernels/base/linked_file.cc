// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/linked_file.h"

#include <sys/stat.h>

#include <filesystem>
#include <system_error>
#include <utility>

#include "kernels/base/file.h"

namespace deeppcr {

absl::StatusOr<std::string> ReadLinkedFile(const std::string& path, int64_t max_bytes) {
  std::error_code error;
  const std::filesystem::path target = std::filesystem::canonical(path, error);
  // A path that leads nowhere has its error from reading it.
  return ReadFile(error ? path : target.string(), max_bytes);
}

FileWatch::FileWatch(std::string path) : path_(std::move(path)), last_(Look()) {}

bool FileWatch::Changed() {
  const Identity now = Look();
  return std::exchange(last_, now) != now;
}

FileWatch::Identity FileWatch::Look() const {
  struct stat status = {};
  if (stat(path_.c_str(), &status) != 0) return {};
  return {.device = status.st_dev,
          .inode = status.st_ino,
          .bytes = status.st_size,
          .seconds = status.st_mtim.tv_sec,
          .nanoseconds = status.st_mtim.tv_nsec};
}

}  // namespace deeppcr
