// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_CLIENT_CSV_H_
#define DEEPPCR_CLIENT_CSV_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "client/array.h"

namespace deeppcr {

// Parses rows of decimal numbers separated by commas into [rows, columns]. Lines that are empty or
// begin with '#' are skipped; line ends are LF or CRLF. Errors: kInvalidArgument naming the line
// of a field (with its column) that is not a finite number in the range of float, or of a row of
// different length; for text without a row.
absl::StatusOr<Array> ParseCsv(std::string_view text);

// One line per row, each value in the fewest digits that read back as the same float.
// Errors: kInvalidArgument for ranks other than 1 and 2.
absl::StatusOr<std::string> FormatCsv(const Array& array);

}  // namespace deeppcr

#endif  // DEEPPCR_CLIENT_CSV_H_
