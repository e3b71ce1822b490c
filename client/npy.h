// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_CLIENT_NPY_H_
#define DEEPPCR_CLIENT_NPY_H_

// NumPy's .npy files (format versions 1.0 and 2.0): strict and bounded, for files from anywhere.

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "client/array.h"

namespace deeppcr {

// Parses a whole .npy file. Accepted: little-endian '<f4', '<f8', '<i8' and '|u1' in C order, rank
// 0 to 8; values are rounded to float. Errors: kInvalidArgument saying what was expected and what
// came: wrong magic or version, a header that is truncated, over 64 KiB or not the three keys,
// other types (big-endian and Fortran order by name), a shape that overflows, fewer or more bytes
// than the shape takes, a finite value beyond the range of float.
absl::StatusOr<Array> ParseNpy(std::string_view bytes);

// A version 1.0 file of '<f4' in C order.
std::string FormatNpy(const Array& array);
// A version 1.0 file of a '<i8' vector.
std::string FormatNpy(const std::vector<int64_t>& values);

}  // namespace deeppcr

#endif  // DEEPPCR_CLIENT_NPY_H_
