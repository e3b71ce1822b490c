// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_CLIENT_ARRAY_FILE_H_
#define DEEPPCR_CLIENT_ARRAY_FILE_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/array.h"

namespace deeppcr {

enum class ArrayFormat { kNpy, kCsv, kJson };

// Parses "npy", "csv" or "json". Errors: kInvalidArgument for other names.
absl::StatusOr<ArrayFormat> ParseArrayFormat(std::string_view name);

// The format of a file: by its extension, else by `format` (a name, may be empty); csv for "-" if
// `format` is empty. Errors: kInvalidArgument if neither decides.
absl::StatusOr<ArrayFormat> ChooseArrayFormat(const std::string& path, const std::string& format);

// Checks that the file's format can hold an array of `rank` axes; csv holds at most two.
// Errors: kInvalidArgument if not; as ChooseArrayFormat.
absl::Status CheckHolds(const std::string& path, const std::string& format, int rank);

// Reads an array; "-" is standard input. At most kMaxArrayBytes are read.
// Errors: those of reading the file and of parsing its format, with the path.
absl::StatusOr<Array> ReadArray(const std::string& path, const std::string& format);

// Writes an array; "-" is standard output.
absl::Status WriteArray(const Array& array, const std::string& path, const std::string& format);

// Writes text or bytes; "-" is standard output. A regular file is replaced as a whole, or unchanged
// after an error. Errors: kNotFound or kUnknown, with the system's reason.
absl::Status WriteFile(const std::string& path, std::string_view bytes);

// Checks that WriteFile may write to `path`, without changing anything there.
// Errors: as WriteFile.
absl::Status CheckWritable(const std::string& path);

}  // namespace deeppcr

#endif  // DEEPPCR_CLIENT_ARRAY_FILE_H_
