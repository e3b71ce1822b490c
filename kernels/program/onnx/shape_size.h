// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PROGRAM_ONNX_SHAPE_SIZE_H_
#define DEEPPCR_KERNELS_PROGRAM_ONNX_SHAPE_SIZE_H_

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/base/shape.h"
#include "kernels/base/status_macros.h"

namespace deeppcr::program {

// The number of elements of a shape of which no part leaves 64 bits, not even beside a 0: strides
// are such products.
// Errors: kInvalidArgument naming the shape.
inline absl::StatusOr<int64_t> CheckedSize(std::span<const int64_t> shape) {
  std::vector<int64_t> positive(shape.begin(), shape.end());
  std::ranges::replace(positive, 0, 1);
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t size, CheckedProduct(positive));
  return std::ranges::find(shape, 0) == shape.end() ? size : 0;
}

}  // namespace deeppcr::program

#endif  // DEEPPCR_KERNELS_PROGRAM_ONNX_SHAPE_SIZE_H_
