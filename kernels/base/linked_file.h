// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_BASE_LINKED_FILE_H_
#define DEEPPCR_KERNELS_BASE_LINKED_FILE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace deeppcr {

// ReadFile of what the path leads to, through symbolic links: for files that the operator names. In
// a mounted Kubernetes Secret every name is a link, and an update moves the link of the folder.
// Errors: those of ReadFile. Thread-safe.
absl::StatusOr<std::string> ReadLinkedFile(const std::string& path, int64_t max_bytes);

// Tells that a file is another one, or has been written to, since the last look. Not thread-safe.
class FileWatch {
 public:
  explicit FileWatch(std::string path);
  // A file that is not there looks like no other.
  bool Changed();

 private:
  struct Identity {
    uint64_t device = 0, inode = 0;
    int64_t bytes = -1, seconds = 0, nanoseconds = 0;
    bool operator==(const Identity&) const = default;
  };
  Identity Look() const;

  const std::string path_;
  Identity last_;
};

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_BASE_LINKED_FILE_H_
