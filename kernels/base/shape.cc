// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/shape.h"

#include "absl/strings/str_join.h"
#include "kernels/base/strings.h"

namespace deeppcr {

std::string ShapeString(std::span<const int64_t> shape) {
  return StrCat("[", absl::StrJoin(shape, ", "), "]");
}

absl::StatusOr<int64_t> CheckedProduct(std::span<const int64_t> shape) {
  int64_t product = 1;
  for (const int64_t extent : shape) {
    if (extent < 0) {
      return InvalidArgument("shape ", ShapeString(shape), " has a negative extent");
    }
    if (__builtin_mul_overflow(product, extent, &product)) {
      return InvalidArgument("the product of shape ", ShapeString(shape), " overflows 64 bits");
    }
  }
  return product;
}

absl::StatusOr<int64_t> CheckedProduct(std::initializer_list<int64_t> shape) {
  return CheckedProduct(std::span<const int64_t>(shape.begin(), shape.size()));
}

}  // namespace deeppcr
