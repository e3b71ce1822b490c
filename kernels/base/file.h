// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_BASE_FILE_H_
#define DEEPPCR_KERNELS_BASE_FILE_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/base/memory_budget.h"

namespace deeppcr {

// Reads a whole regular file into memory. The file is not mapped, as truncating a mapped file would
// kill the process. Never blocks on a FIFO or device, never follows a symbolic link in the last
// component of the path. Thread-safe.
//   max_bytes  limit on the size, checked before anything is allocated
//   memory     becomes the size before it is allocated; may be null
// Errors, each naming the path: kNotFound; kInvalidArgument (symbolic link, not a regular file);
// kResourceExhausted (bytes wanted and allowed); kAborted (the file changed its size while it was
// read); kPermissionDenied; kUnavailable (any other error of the system, with its message); those
// of MemoryShare::Set.
absl::StatusOr<std::string> ReadFile(const std::string& path, int64_t max_bytes,
                                     MemoryShare* memory = nullptr);

// Replaces the file at once: readers see the old contents or all of the new, also after a power
// loss. The file gets mode 0644. On failure the old file stays and no temporary file remains.
// Thread-safe; one of two concurrent writers wins. Errors: kNotFound (no such directory),
// kPermissionDenied, kUnavailable, each naming the path.
absl::Status WriteFileAtomically(const std::string& path, std::string_view contents);

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_BASE_FILE_H_
