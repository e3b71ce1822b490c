// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_CLIENT_JSON_ARRAY_H_
#define DEEPPCR_CLIENT_JSON_ARRAY_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "client/array.h"

namespace deeppcr {

// Parses nested JSON arrays of numbers, of equal length at each level and at most 8 levels deep.
// Errors: kInvalidArgument for malformed JSON, anything but arrays and numbers, ragged arrays,
// values beyond the range of float.
absl::StatusOr<Array> ParseJsonArray(std::string_view text);

// One line per row of the outermost level. Errors: kInvalidArgument for values that JSON cannot
// hold (NaN, infinity).
absl::StatusOr<std::string> FormatJsonArray(const Array& array);

}  // namespace deeppcr

#endif  // DEEPPCR_CLIENT_JSON_ARRAY_H_
