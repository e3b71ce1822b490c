// SPDX-License-Identifier: Apache-2.0
#include "kernels/model/weights.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "kernels/base/strings.h"
#include "tests/testing/expect_error.h"
#include "tests/testing/safetensors_writer.h"

namespace deeppcr::testing {
namespace {

using absl::StatusCode;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// A file of one tensor `w` of shape [n] with these elements, behind a header of odd length so that
// the data is unaligned.
template <typename T>
std::string FileOf(std::string_view dtype, const std::vector<T>& values) {
  const std::string_view data(reinterpret_cast<const char*>(values.data()),
                              values.size() * sizeof(T));
  std::string header = StrCat(R"({"w":{"dtype":")", dtype, R"(","shape":[)", values.size(),
                              R"(],"data_offsets":[0,)", data.size(), "]}}");
  if (header.size() % 2 == 0) header += ' ';
  return SafetensorsBytes(header, data);
}

template <typename T>
absl::StatusOr<std::vector<float>> Convert(std::string_view dtype, const std::vector<T>& values) {
  const std::string file = FileOf(dtype, values);
  const absl::StatusOr<Tensors> tensors = ParseSafetensors(file);
  if (!tensors.ok()) return tensors.status();
  return ToFloat(*tensors->Find("w"));
}

TEST(WeightsTest, ConvertsHalfPatterns) {
  EXPECT_EQ(HalfToFloat(0x0000), 0.0F);
  EXPECT_EQ(HalfToFloat(0x3C00), 1.0F);
  EXPECT_EQ(HalfToFloat(0xC000), -2.0F);
  EXPECT_EQ(HalfToFloat(0x3555), 0.333251953125F);
  EXPECT_EQ(HalfToFloat(0x7BFF), 65504.0F);
  EXPECT_EQ(HalfToFloat(0x0400), 0x1p-14F);         // smallest normal
  EXPECT_EQ(HalfToFloat(0x03FF), 1023 * 0x1p-24F);  // largest subnormal
  EXPECT_EQ(HalfToFloat(0x8001), -0x1p-24F);        // smallest subnormal
  EXPECT_EQ(HalfToFloat(0x7C00), kInfinity);
  EXPECT_EQ(HalfToFloat(0xFC00), -kInfinity);
  EXPECT_TRUE(std::isnan(HalfToFloat(0x7E00)));
  EXPECT_TRUE(std::isnan(HalfToFloat(0x7C01)));
  EXPECT_TRUE(std::signbit(HalfToFloat(0x8000)));
}

// Compares every finite pattern with the definition of binary16, in double.
TEST(WeightsTest, ConvertsEveryFiniteHalfExactly) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const int exponent = static_cast<int>((bits >> 10) & 31);
    if (exponent == 31) continue;
    const double fraction = static_cast<double>(bits & 1023) / 1024.0;
    const double magnitude =
        exponent == 0 ? std::ldexp(fraction, -14) : std::ldexp(1.0 + fraction, exponent - 15);
    const double expected = (bits & 0x8000) != 0 ? -magnitude : magnitude;
    ASSERT_EQ(static_cast<double>(HalfToFloat(static_cast<uint16_t>(bits))), expected) << bits;
  }
}

TEST(WeightsTest, ConvertsBFloat16Patterns) {
  EXPECT_EQ(BFloat16ToFloat(0x3F80), 1.0F);
  EXPECT_EQ(BFloat16ToFloat(0xC040), -3.0F);
  EXPECT_EQ(BFloat16ToFloat(0x4049), 3.140625F);
  EXPECT_EQ(BFloat16ToFloat(0x0001), std::bit_cast<float>(0x00010000U));  // subnormal
  EXPECT_EQ(BFloat16ToFloat(0x7F80), kInfinity);
  EXPECT_TRUE(std::isnan(BFloat16ToFloat(0x7FC0)));
}

TEST(WeightsTest, ConvertsTensorsOfEveryDtype) {
  const std::vector<float> expected = {1.0F, -2.0F, 0.5F};

  EXPECT_EQ(*Convert<float>("F32", expected), expected);
  EXPECT_EQ(*Convert<double>("F64", {1.0, -2.0, 0.5}), expected);
  EXPECT_EQ(*Convert<uint16_t>("F16", {0x3C00, 0xC000, 0x3800}), expected);
  EXPECT_EQ(*Convert<uint16_t>("BF16", {0x3F80, 0xC000, 0x3F00}), expected);
}

TEST(WeightsTest, RoundsDoubleToNearestEven) {
  // Half way between 1 and the next float, and just above it.
  EXPECT_EQ(*Convert<double>("F64", {1.0 + 0x1p-24, 1.0 + 0x1p-24 + 0x1p-52}),
            (std::vector<float>{1.0F, 1.0F + 0x1p-23F}));
}

TEST(WeightsTest, RefusesValuesThatAreNotFinite) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  ExpectError(Convert<float>("F32", {0.0F, nan}), StatusCode::kInvalidArgument,
              "tensor \"w\": element [1] is NaN as float32");
  ExpectError(Convert<float>("F32", {-kInfinity}), StatusCode::kInvalidArgument,
              "tensor \"w\": element [0] is infinite as float32");
  ExpectError(Convert<double>("F64", {0.0, 0.0, 1e39}), StatusCode::kInvalidArgument,
              "element [2] is infinite as float32");
  ExpectError(Convert<uint16_t>("F16", {0x7C00}), StatusCode::kInvalidArgument, "infinite");
  ExpectError(Convert<uint16_t>("F16", {0x7C01}), StatusCode::kInvalidArgument, "NaN");
  ExpectError(Convert<uint16_t>("BF16", {0xFF80}), StatusCode::kInvalidArgument, "infinite");
  ExpectError(Convert<uint16_t>("BF16", {0x7F81}), StatusCode::kInvalidArgument, "NaN");
}

TEST(WeightsTest, NamesTheElementByItsPosition) {
  const std::string file = SerializeSafetensors({{"w", {2, 3}, {0, 0, 0, 0, 0, kInfinity}}});

  ExpectError(ToFloat(*ParseSafetensors(file)->Find("w")), StatusCode::kInvalidArgument,
              "element [1, 2] is infinite");
}

TEST(WeightsTest, FindsTensorsByName) {
  const std::string file =
      SerializeSafetensors({{"b", {1}, {2}}, {"a", {2}, {0, 1}}, {"c", {1, 1}, {3}}});
  const Tensors tensors = ParseSafetensors(file).value();

  ASSERT_NE(tensors.Find("b"), nullptr);
  EXPECT_EQ(*ToFloat(*tensors.Find("b")), std::vector<float>{2});
  EXPECT_EQ(*ToFloat(*tensors.Find("a")), (std::vector<float>{0, 1}));
  EXPECT_EQ(tensors.Find("c")->shape, (std::vector<int64_t>{1, 1}));
  EXPECT_EQ(tensors.Find("d"), nullptr);
  EXPECT_EQ(tensors.Find(""), nullptr);
}

TEST(WeightsTest, RefusesAnOutputOfTheWrongSize) {
  const std::string file = SerializeSafetensors({{"w", {2}, {0, 1}}});
  std::vector<float> out(3);

  ExpectError(ConvertToFloat(*ParseSafetensors(file)->Find("w"), out), StatusCode::kInternal,
              "of 2 elements converted into 3");
}

// A reader trusts a file after parsing, so parsing must detect every cut.
TEST(WeightsTest, RefusesEveryTruncationOfAFile) {
  const std::string file = SerializeSafetensors({{"a", {2}, {0, 1}}, {"b", {1}, {2}}});
  ASSERT_TRUE(ParseSafetensors(file).ok());

  for (size_t size = 0; size < file.size(); ++size) {
    EXPECT_FALSE(ParseSafetensors(std::string_view(file).substr(0, size)).ok()) << size;
  }
}

}  // namespace
}  // namespace deeppcr::testing
