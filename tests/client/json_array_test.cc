// SPDX-License-Identifier: Apache-2.0
#include "client/json_array.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace deeppcr {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string ErrorOf(const std::string& text) {
  const auto array = ParseJsonArray(text);
  return array.ok() ? "accepted" : std::string(array.status().message());
}

TEST(JsonArrayTest, ReadsNestedNumbers) {
  const auto array = ParseJsonArray(" [[1, 2.5, -3e-1],\n [4, 5, 18446744073709551615]] ").value();

  EXPECT_THAT(array.shape, ElementsAre(2, 3));
  EXPECT_THAT(array.values, ElementsAre(1, 2.5f, -0.3f, 4, 5, 18446744073709551615.0f));
}

TEST(JsonArrayTest, ReadsEmptyArrays) {
  EXPECT_THAT(ParseJsonArray("[]")->shape, ElementsAre(0));
  EXPECT_THAT(ParseJsonArray("[[],[]]")->shape, ElementsAre(2, 0));
}

TEST(JsonArrayTest, RefusesRaggedArrays) {
  for (const char* text :
       {"[[1],[2,3]]", "[[1,2],[3]]", "[1,[2]]", "[[1],2]", "[[],[1]]", "[[1],[]]", "[[[1]],[2]]",
        "[[1],[[2]]]", "[[],[[]]]", "[[[]],[]]", "[[1],[2],[[3]]]"}) {
    EXPECT_THAT(ErrorOf(text), HasSubstr("json: arrays of different")) << text;
  }
}

TEST(JsonArrayTest, RefusesOtherValues) {
  EXPECT_THAT(ErrorOf("5"), HasSubstr("expected an array of numbers, got a number"));
  EXPECT_THAT(ErrorOf("[null]"), HasSubstr("got null"));
  EXPECT_THAT(ErrorOf("[\"1\"]"), HasSubstr("got a string"));
  EXPECT_THAT(ErrorOf("[true]"), HasSubstr("got a boolean"));
  EXPECT_THAT(ErrorOf("{\"x\": [1]}"), HasSubstr("got an object"));
}

TEST(JsonArrayTest, RefusesMalformedText) {
  for (const char* text : {"", "[", "[1", "[1,]", "[1]]", "[1] [2]", "[01]", "[NaN]", "[Infinity]",
                           "[1e]", "\xff", "[1}"}) {
    EXPECT_THAT(ErrorOf(text), HasSubstr("json: malformed at byte")) << text;
  }
}

TEST(JsonArrayTest, RefusesNumbersBeyondFloat) {
  EXPECT_THAT(ErrorOf("[1, 1e39]"), HasSubstr("value 1: 1e+39 is beyond the range of float"));
  EXPECT_THAT(ErrorOf("[1e999]"), HasSubstr("out of range"));
}

TEST(JsonArrayTest, RefusesDeepNestingAtOnce) {
  EXPECT_THAT(ErrorOf(std::string(1'000'000, '[')), HasSubstr("at most 8 levels"));
}

TEST(JsonArrayTest, WhatIsWrittenReadsBack) {
  const Array array{{2, 1, 2}, {0.1f, -2, 3e20f, 0}};

  const auto text = FormatJsonArray(array).value();

  EXPECT_EQ(text, "[[[0.1, -2]],\n [[3e+20, 0]]]\n");
  EXPECT_EQ(ParseJsonArray(text)->shape, array.shape);
  EXPECT_EQ(ParseJsonArray(text)->values, array.values);
}

TEST(JsonArrayTest, RefusesToWriteNan) {
  const Array array{{2}, {1, std::numeric_limits<float>::quiet_NaN()}};

  EXPECT_THAT(std::string(FormatJsonArray(array).status().message()), HasSubstr("value 1"));
}

}  // namespace
}  // namespace deeppcr
