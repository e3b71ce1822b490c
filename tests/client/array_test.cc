// SPDX-License-Identifier: Apache-2.0
#include "client/array.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace deeppcr {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(CountElementsTest, RefusesProductThatOverflows) {
  const int64_t big = std::numeric_limits<int64_t>::max() / 2;

  const auto count = CountElements(std::vector<int64_t>{big, 4}, 1000, "inputs");

  ASSERT_EQ(count.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(count.status().message()), HasSubstr("inputs: shape ["));
}

TEST(CountElementsTest, CountsUpToTheLimit) {
  EXPECT_EQ(*CountElements(std::vector<int64_t>{10, 100}, 1000, "x"), 1000);
  EXPECT_FALSE(CountElements(std::vector<int64_t>{10, 101}, 1000, "x").ok());
  EXPECT_EQ(*CountElements(std::vector<int64_t>{}, 1000, "x"), 1);
}

TEST(CountElementsTest, ZeroExtentMakesEmptyWhateverTheOthers) {
  const int64_t big = std::numeric_limits<int64_t>::max();

  EXPECT_EQ(*CountElements(std::vector<int64_t>{big, 0, big}, 1000, "x"), 0);
}

TEST(CountElementsTest, RefusesNegativeExtentAndRankAboveLimit) {
  EXPECT_FALSE(CountElements(std::vector<int64_t>{-1, 0}, 1000, "x").ok());
  EXPECT_FALSE(CountElements(std::vector<int64_t>(kMaxArrayRank + 1, 1), 1000, "x").ok());
}

TEST(TensorTest, RowsGoThereAndBack) {
  const Array array{{3, 2}, {1, 2, 3, 4, 5, 6}};
  v1::Tensor tensor;

  RowsToTensor(array, 1, 2, &tensor);
  const auto back = TensorToArray(tensor, "outputs").value();

  EXPECT_THAT(back.shape, ElementsAre(2, 2));
  EXPECT_THAT(back.values, ElementsAre(3, 4, 5, 6));
}

TEST(TensorTest, RefusesReplyWhoseBytesDisagreeWithShape) {
  v1::Tensor tensor;
  tensor.add_shape(2);
  tensor.set_data(std::string(7, '\0'));

  const auto array = TensorToArray(tensor, "outputs");

  ASSERT_EQ(array.status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(array.status().message(), "bad reply: outputs: shape [2] takes 8 bytes, got 7");
}

TEST(TensorTest, RefusesReplyWithHugeShape) {
  v1::Tensor tensor;
  tensor.add_shape(int64_t{1} << 40);
  tensor.add_shape(int64_t{1} << 40);

  EXPECT_EQ(TensorToArray(tensor, "outputs").status().code(), absl::StatusCode::kInternal);
}

TEST(AppendRowsTest, AppendsRowsOfEqualShapeOnly) {
  Array array;
  ASSERT_TRUE(AppendRows({{1, 2}, {1, 2}}, &array).ok());
  ASSERT_TRUE(AppendRows({{2, 2}, {3, 4, 5, 6}}, &array).ok());

  EXPECT_THAT(array.shape, ElementsAre(3, 2));
  EXPECT_THAT(array.values, ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_EQ(AppendRows({{1, 3}, {1, 2, 3}}, &array).code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace deeppcr
