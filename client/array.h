// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_CLIENT_ARRAY_H_
#define DEEPPCR_CLIENT_ARRAY_H_

// Dense float arrays on the client's side: between files, tensors on the wire, and a caller's code.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "deeppcr/v1/deeppcr.pb.h"

namespace deeppcr {

inline constexpr int kMaxArrayRank = 8;
// Arrays and files larger than this are refused before memory is asked for.
inline constexpr int64_t kMaxArrayBytes = int64_t{1} << 30;

// Row-major; values.size() is the product of shape.
struct Array {
  std::vector<int64_t> shape;
  std::vector<float> values;

  // The first extent, and the number of values per row. Precondition: rank at least 1.
  int64_t rows() const { return shape.front(); }
  int64_t row_size() const;
};

// The number of elements of a shape. Errors: kInvalidArgument naming `what` for a negative extent,
// a rank above kMaxArrayRank, or more than max_elements (the product is checked before it can
// overflow).
absl::StatusOr<int64_t> CountElements(std::span<const int64_t> shape, int64_t max_elements,
                                      std::string_view what);

// "[3, 4]"
std::string ShapeToString(std::span<const int64_t> shape);

// Rows [begin, begin + count) of an array as a tensor of the same rank.
// Preconditions: rank at least 1, 0 <= begin, begin + count <= rows().
void RowsToTensor(const Array& array, int64_t begin, int64_t count, v1::Tensor* tensor);

// The array of a tensor that came from the server. Errors: kInternal naming `what` for a bad shape,
// or if shape and bytes disagree.
absl::StatusOr<Array> TensorToArray(const v1::Tensor& tensor, std::string_view what);

// Appends rows. An empty `array` (no shape) takes the shape of `more`. Errors: kInternal if the
// rows differ in shape.
absl::Status AppendRows(const Array& more, Array* array);

}  // namespace deeppcr

#endif  // DEEPPCR_CLIENT_ARRAY_H_
