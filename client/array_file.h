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

// npy, csv or json. Errors: kInvalidArgument.
absl::StatusOr<ArrayFormat> ParseArrayFormat(std::string_view name);

// The format of a file: by its extension, else `format` (a name, may be empty); csv for "-" where
// that is empty. Errors: kInvalidArgument where neither decides.
absl::StatusOr<ArrayFormat> ChooseArrayFormat(const std::string& path, const std::string& format);

// Whether the file of that name can hold an array of `rank` axes: of csv, two at most.
// Errors: kInvalidArgument, also of ChooseArrayFormat.
absl::Status CheckHolds(const std::string& path, const std::string& format, int rank);

// Reads an array; "-" is standard input. At most kMaxArrayBytes are read.
// Errors: of the file, and of the reader of its format, with the path in front.
absl::StatusOr<Array> ReadArray(const std::string& path, const std::string& format);

// Writes an array; "-" is standard output.
absl::Status WriteArray(const Array& array, const std::string& path, const std::string& format);

// Writes text or bytes; "-" is standard output. A file is there as a whole or, after an error, as
// it was before. Errors: kUnknown with the system's reason.
absl::Status WriteFile(const std::string& path, std::string_view bytes);

// Whether WriteFile would be allowed to write there, found out without touching what is there.
// Errors: as WriteFile.
absl::Status CheckWritable(const std::string& path);

}  // namespace deeppcr

#endif  // DEEPPCR_CLIENT_ARRAY_FILE_H_
