// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/json.h"

#include <gtest/gtest.h>

#include "kernels/base/strings.h"
#include "tests/testing/expect_error.h"

namespace deeppcr::testing {
namespace {

using absl::StatusCode;

std::string Nested(int depth) { return std::string(depth, '[') + std::string(depth, ']'); }

class RefusedJsonTest : public ::testing::TestWithParam<RefusedCase> {};

TEST_P(RefusedJsonTest, IsRefusedWithItsReason) {
  ExpectError(ParseJson(GetParam().input, {.max_bytes = 1 << 20}), GetParam().code,
              GetParam().message_part);
}

INSTANTIATE_TEST_SUITE_P(
    All, RefusedJsonTest,
    ::testing::Values(
        RefusedCase{"Empty", "", "not JSON"}, RefusedCase{"Blank", " \n", "not JSON"},
        RefusedCase{"Truncated", R"({"a":1)", "not JSON"},
        RefusedCase{"TrailingGarbage", R"({"a":1} x)", "not JSON"},
        RefusedCase{"TwoValues", "{}{}", "not JSON"},
        RefusedCase{"TrailingComma", R"([1,])", "not JSON"},
        RefusedCase{"Comment", "{} // note", "not JSON"},
        RefusedCase{"NotANumber", "NaN", "not JSON"},
        RefusedCase{"Infinity", "[-Infinity]", "not JSON"},
        RefusedCase{"NumberOverflow", "[1e999]", "number overflow"},
        RefusedCase{"LeadingZero", "[01]", "not JSON"},
        RefusedCase{"SingleQuotes", "{'a':1}", "not JSON"},
        RefusedCase{"RawNul", std::string("{}\0x", 4), "NUL byte at offset 2"},
        RefusedCase{"TrailingNul", std::string("{}\0", 3), "NUL byte at offset 2"},
        RefusedCase{"ByteOrderMark", "\xEF\xBB\xBF{}", "byte order mark"},
        RefusedCase{"IllFormedUtf8", "[\"\xFF\"]", "UTF-8"},
        RefusedCase{"OverlongUtf8", "[\"\xC0\xAF\"]", "UTF-8"},
        RefusedCase{"Utf8Surrogate", "[\"\xED\xA0\x80\"]", "UTF-8"},
        RefusedCase{"LoneSurrogateEscape", R"(["\uD800"])", "surrogate"},
        RefusedCase{"ControlCharacter", "[\"\n\"]", "control character"},
        RefusedCase{"DuplicateKey", R"({"a":1,"b":2,"a":3})", "key \"a\" appears twice"},
        RefusedCase{"DuplicateNestedKey", R"([{"x":{"k":1,"k":1}}])", "key \"k\" appears twice"},
        RefusedCase{"DuplicateKeyByEscape", R"({"a":1,"\u0061":2})", "key \"a\" appears twice"},
        RefusedCase{"TooDeep", Nested(17), "nested deeper than 16 levels"},
        RefusedCase{"FarTooDeep", std::string(500'000, '['), "nested deeper than 16 levels"},
        RefusedCase{"TooLong", std::string((1 << 20) + 1, ' '), "1048576 are allowed",
                    StatusCode::kResourceExhausted}),
    CaseName);

TEST(JsonTest, ParsesEveryKindOfValue) {
  const absl::StatusOr<nlohmann::json> value = ParseJson(
      R"( {"n":null,"t":true,"u":18446744073709551615,"i":-3,"d":0.5,"s":"\u00e9","a":[1,[2]],"o":{"k":{}}} )",
      {});

  ASSERT_TRUE(value.ok()) << value.status();
  EXPECT_TRUE((*value)["n"].is_null());
  EXPECT_EQ((*value)["t"], true);
  EXPECT_EQ((*value)["u"], 18446744073709551615U);
  EXPECT_EQ((*value)["i"], -3);
  EXPECT_EQ((*value)["d"], 0.5);
  EXPECT_EQ((*value)["s"], "\xC3\xA9");
  EXPECT_EQ((*value)["a"][1][0], 2);
  EXPECT_TRUE((*value)["o"]["k"].is_object());
  EXPECT_EQ(value->size(), 8U);
}

TEST(JsonTest, AgreesWithTheLibrarysOwnTree) {
  const std::string text =
      R"({"a":[{"b":[]},{"c":[null,false,-1.5e-7]}],"":"x","z":{"a":{"a":1}}})";

  EXPECT_EQ(*ParseJson(text, {}), nlohmann::json::parse(text));
}

TEST(JsonTest, AllowsTheSameKeyInDifferentObjects) {
  EXPECT_TRUE(ParseJson(R"([{"a":1},{"a":{"a":2}}])", {}).ok());
}

TEST(JsonTest, AllowsDepthAndSizeUpToTheLimits) {
  EXPECT_TRUE(ParseJson(Nested(16), {}).ok());
  EXPECT_TRUE(ParseJson("{}", {.max_bytes = 2}).ok());
  EXPECT_FALSE(ParseJson("{} ", {.max_bytes = 2}).ok());
}

TEST(JsonTest, ErrorMessagesAreBoundedPrintableAscii) {
  const std::string bad = "[\"" + std::string(100'000, 'x') + "\xFF\x01";

  const std::string message(ParseJson(bad, {}).status().message());

  EXPECT_LT(message.size(), 1000U);
  for (const char c : message) EXPECT_TRUE(c >= 0x20 && c < 0x7F);
}

TEST(JsonTest, ReadsIntegersInTheirRangeOnly) {
  EXPECT_EQ(*JsonInteger(1, "n", 1, 4), 1);
  EXPECT_EQ(*JsonInteger(-5, "n", -5, 4), -5);
  ExpectError(JsonInteger(0, "n", 1, 4), StatusCode::kInvalidArgument,
              "n: expected an integer in [1, 4], got 0");
  ExpectError(JsonInteger(18446744073709551615U, "n", -1, 4), StatusCode::kInvalidArgument,
              "got 18446744073709551615");
  ExpectError(JsonInteger(1.0, "n", 1, 4), StatusCode::kInvalidArgument, "got 1.0");
  ExpectError(JsonInteger("1", "n", 1, 4), StatusCode::kInvalidArgument, "got string \"1\"");
  ExpectError(JsonInteger(true, "n", 1, 4), StatusCode::kInvalidArgument, "got true");
  ExpectError(JsonInteger(nullptr, "n", 1, 4), StatusCode::kInvalidArgument, "got null");
}

TEST(JsonTest, ReadsOtherTypesOrSaysWhatCame) {
  EXPECT_EQ(*JsonNumber(3, "x"), 3.0);
  EXPECT_EQ(*JsonNumber(0.25, "x"), 0.25);
  EXPECT_EQ(*JsonBool(true, "x"), true);
  EXPECT_EQ(*JsonString("s", "x"), "s");
  ExpectError(JsonNumber("1", "x"), StatusCode::kInvalidArgument,
              "x: expected a number, got string \"1\"");
  ExpectError(JsonBool(1, "x"), StatusCode::kInvalidArgument, "x: expected true or false, got 1");
  ExpectError(JsonString(nlohmann::json::array({1}), "x"), StatusCode::kInvalidArgument,
              "x: expected a string, got an array of 1 values");
}

TEST(JsonTest, FindsMembers) {
  const nlohmann::json object = {{"a", 1}};

  EXPECT_EQ(**JsonMember(object, "a"), 1);
  ExpectError(JsonMember(object, "b"), StatusCode::kInvalidArgument, "b: missing");
  ExpectError(JsonMember(7, "b"), StatusCode::kInvalidArgument, "expected an object, got 7");
}

}  // namespace
}  // namespace deeppcr::testing
