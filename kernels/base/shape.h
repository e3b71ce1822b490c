// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_BASE_SHAPE_H_
#define DEEPPCR_KERNELS_BASE_SHAPE_H_

// Shapes as spans of int64 extents, outermost first.

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "absl/status/statusor.h"

namespace deeppcr {

// "[2, 3]"; a scalar is "[]".
std::string ShapeString(std::span<const int64_t> shape);

// The product of all extents, multiplied from the left; 1 for a scalar. Give the size of an element
// as a last extent to get bytes.
// Errors: kInvalidArgument naming the shape if an extent is negative or a partial product leaves
// int64, even where a later extent is 0.
absl::StatusOr<int64_t> CheckedProduct(std::span<const int64_t> shape);
absl::StatusOr<int64_t> CheckedProduct(std::initializer_list<int64_t> shape);

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_BASE_SHAPE_H_
