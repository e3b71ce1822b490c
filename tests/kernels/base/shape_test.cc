// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/shape.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "tests/testing/expect_error.h"

namespace deeppcr::testing {
namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

TEST(ShapeTest, PrintsExtentsBetweenBrackets) {
  EXPECT_EQ(ShapeString(std::vector<int64_t>{2, 3}), "[2, 3]");
  EXPECT_EQ(ShapeString(std::vector<int64_t>{7}), "[7]");
  EXPECT_EQ(ShapeString({}), "[]");
}

TEST(ShapeTest, MultipliesExtents) {
  EXPECT_EQ(*CheckedProduct({2, 3, 5}), 30);
  EXPECT_EQ(*CheckedProduct(std::vector<int64_t>{}), 1);
  EXPECT_EQ(*CheckedProduct({0, kMax, kMax}), 0);
  EXPECT_EQ(*CheckedProduct({kMax, 1}), kMax);
}

TEST(ShapeTest, RefusesOverflowAndNamesTheShape) {
  ExpectError(CheckedProduct({int64_t{1} << 62, 2}), absl::StatusCode::kInvalidArgument,
              "shape [4611686018427387904, 2] overflows");
  // A later 0 does not excuse an overflow; the reference reader of safetensors agrees.
  ExpectError(CheckedProduct({kMax, kMax, 0}), absl::StatusCode::kInvalidArgument, "overflows");
}

TEST(ShapeTest, RefusesNegativeExtents) {
  ExpectError(CheckedProduct({3, -1}), absl::StatusCode::kInvalidArgument,
              "shape [3, -1] has a negative extent");
}

}  // namespace
}  // namespace deeppcr::testing
