// SPDX-License-Identifier: Apache-2.0
#include "client/npy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

namespace deeppcr {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A file of this major version, with the header as given.
std::string File(const std::string& header, const std::string& data, int major = 1) {
  std::string file = "\x93NUMPY";
  file += {static_cast<char>(major), '\0'};
  const std::string text = header + "\n";
  for (int i = 0; i < (major == 1 ? 2 : 4); ++i) {
    file.push_back(static_cast<char>(text.size() >> (8 * i) & 0xff));
  }
  return file + text + data;
}

template <typename T>
std::string Bytes(const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

std::string Header(const std::string& descr, const std::string& shape,
                   const std::string& order = "False") {
  return "{'descr': '" + descr + "', 'fortran_order': " + order + ", 'shape': " + shape + ", }";
}

std::string ErrorOf(const std::string& file) {
  const auto array = ParseNpy(file);
  if (array.ok()) return "accepted";
  EXPECT_EQ(array.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(array.status().message());
}

TEST(NpyTest, ReadsEveryAcceptedType) {
  const auto f4 = ParseNpy(File(Header("<f4", "(2, 1)"), Bytes<float>({1.5f, -2})));
  const auto f8 = ParseNpy(File(Header("<f8", "(2,)"), Bytes<double>({0.1, 3})));
  const auto i8 = ParseNpy(File(Header("<i8", "(2,)"), Bytes<int64_t>({-7, 16})));
  const auto u1 = ParseNpy(File(Header("|u1", "(2,)"), Bytes<uint8_t>({0, 255})));

  ASSERT_TRUE(f4.ok() && f8.ok() && i8.ok() && u1.ok());
  EXPECT_THAT(f4->shape, ElementsAre(2, 1));
  EXPECT_THAT(f4->values, ElementsAre(1.5f, -2));
  EXPECT_THAT(f8->values, ElementsAre(0.1f, 3));
  EXPECT_THAT(i8->values, ElementsAre(-7, 16));
  EXPECT_THAT(u1->values, ElementsAre(0, 255));
}

TEST(NpyTest, ReadsVersionTwoKeysInAnyOrderAndDoubleQuotes) {
  const std::string header = "{\"shape\":(1,2),\"fortran_order\":False,\"descr\":\"<f4\"}   ";

  const auto array = ParseNpy(File(header, Bytes<float>({1, 2}), 2)).value();

  EXPECT_THAT(array.shape, ElementsAre(1, 2));
}

TEST(NpyTest, ReadsScalarAndEmpty) {
  const auto scalar = ParseNpy(File(Header("<f4", "()"), Bytes<float>({9})));
  const auto empty = ParseNpy(File(Header("<f4", "(0, 3)"), ""));

  ASSERT_TRUE(scalar.ok() && empty.ok());
  EXPECT_THAT(scalar->shape, IsEmpty());
  EXPECT_THAT(scalar->values, ElementsAre(9));
  EXPECT_THAT(empty->values, IsEmpty());
}

TEST(NpyTest, WritesBytesAsNumPyDoes) {
  // np.save of np.array([[1.0, -2.0]], '<f4'): 128 bytes of header, then the data.
  const std::string file = FormatNpy({{1, 2}, {1, -2}});

  ASSERT_EQ(file.size(), 128u + 8u);
  EXPECT_EQ(file.substr(0, 10), std::string("\x93NUMPY\x01\x00\x76\x00", 10));
  EXPECT_EQ(file.substr(10, 60), "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2), } ");
  EXPECT_EQ(file[127], '\n');
  EXPECT_EQ(file.substr(128), Bytes<float>({1, -2}));
}

TEST(NpyTest, WhatIsWrittenReadsBack) {
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{}, {6}, {2, 3}, {1, 2, 3}, {0, 3}}) {
    Array array{shape, {}};
    const int64_t count = *CountElements(shape, 100, "shape");
    for (int64_t i = 0; i < count; ++i) array.values.push_back(std::sqrt(static_cast<float>(i)));

    const auto back = ParseNpy(FormatNpy(array)).value();

    EXPECT_EQ(back.shape, array.shape);
    EXPECT_EQ(back.values, array.values);
  }
}

TEST(NpyTest, NamesWhatIsNotAnNpyFile) {
  EXPECT_THAT(ErrorOf(""), HasSubstr("not a .npy file"));
  EXPECT_THAT(ErrorOf("PK\x03\x04 a zip archive"), HasSubstr("not a .npy file"));
  EXPECT_THAT(ErrorOf("\x93NUMPY"), HasSubstr("ends within the version"));
  EXPECT_THAT(ErrorOf(File(Header("<f4", "(1,)"), "1234", 3)),
              HasSubstr("expected format version 1.0 or 2.0, got 3.0"));
}

TEST(NpyTest, EveryTruncationIsAnError) {
  const std::string file = FormatNpy({{2, 2}, {1, 2, 3, 4}});

  for (size_t size = 0; size < file.size(); ++size) {
    EXPECT_FALSE(ParseNpy(std::string_view(file).substr(0, size)).ok()) << size;
  }
}

TEST(NpyTest, RefusesTrailingBytesByCount) {
  EXPECT_THAT(ErrorOf(File(Header("<f4", "(1,)"), "12345")), HasSubstr("takes 4 bytes, got 5"));
}

TEST(NpyTest, RefusesHugeHeaderWithoutReadingIt) {
  const std::string huge("\x93NUMPY\x02\x00\xff\xff\xff\xff{", 13);

  EXPECT_THAT(ErrorOf(huge), HasSubstr("expected at most 65536 bytes, got 4294967295"));
}

TEST(NpyTest, RefusesShapesThatOverflow) {
  EXPECT_THAT(ErrorOf(File(Header("<f4", "(4294967296, 4294967296)"), "")),
              HasSubstr("has more than the"));
  EXPECT_THAT(ErrorOf(File(Header("<f4", "(99999999999999999999,)"), "")),
              HasSubstr("is too large"));
  EXPECT_THAT(ErrorOf(File(Header("<f4", "(9223372036854775808,)"), "")),
              HasSubstr("is too large"));
  EXPECT_THAT(ErrorOf(File(Header("<f4", "(1, 1, 1, 1, 1, 1, 1, 1, 1)"), "1234")),
              HasSubstr("at most 8 dimensions"));
}

TEST(NpyTest, RefusesFortranOrderAndBigEndianByName) {
  EXPECT_THAT(ErrorOf(File(Header("<f4", "(2, 2)", "True"), std::string(16, '\0'))),
              HasSubstr("fortran_order: expected False, got True"));
  EXPECT_THAT(ErrorOf(File(Header(">f4", "(1,)"), "1234")),
              HasSubstr("got the big-endian type '>f4'"));
}

TEST(NpyTest, RefusesOtherTypes) {
  for (const char* descr : {"<f2", "<i4", "|b1", "|O", "<U4", "", "f4", "<f4 "}) {
    EXPECT_THAT(ErrorOf(File(Header(descr, "(1,)"), "1234")), HasSubstr("descr: expected"))
        << descr;
  }
  EXPECT_THAT(
      ErrorOf(File("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }", "1234")),
      HasSubstr("a structured type"));
}

TEST(NpyTest, RefusesMalformedHeaders) {
  for (const char* header : {
           "",
           "{",
           "{}",
           "[]",
           "{'descr': '<f4'}",
           "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)",
           "{'descr': '<f4', 'fortran_order': 0, 'shape': (1,), }",
           "{'descr': '<f4', 'fortran_order': False, 'shape': (1), }",
           "{'descr': '<f4', 'fortran_order': False, 'shape': [1], }",
           "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }",
           "{'descr': '<f4', 'fortran_order': False, 'shape': (1.0,), }",
           "{'descr': '<f4', 'fortran_order': False, 'shape': (1 1), }",
           "{'descr': '<f4', 'fortran_order': False, 'shape': (,), }",
           "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'x': 1}",
           "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1,)}",
           "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), } {",
           "{'descr': '<f4, 'fortran_order': False, 'shape': (1,), }",
           "{'descr' '<f4', 'fortran_order': False, 'shape': (1,), }",
           "{'descr': __import__('os'), 'fortran_order': False, 'shape': (1,), }",
       }) {
    EXPECT_THAT(ErrorOf(File(header, "1234")), HasSubstr("npy: ")) << header;
  }
}

TEST(NpyTest, RefusesDoublesBeyondFloatButKeepsInfinityAndNan) {
  const double infinity = std::numeric_limits<double>::infinity();

  EXPECT_THAT(ErrorOf(File(Header("<f8", "(2,)"), Bytes<double>({0, 1e39}))),
              HasSubstr("element 1: 1e+39 is beyond the range of float"));
  const auto array = ParseNpy(File(Header("<f8", "(2,)"), Bytes<double>({infinity, std::nan("")})));
  ASSERT_TRUE(array.ok());
  EXPECT_TRUE(std::isinf(array->values[0]));
  EXPECT_TRUE(std::isnan(array->values[1]));
}

}  // namespace
}  // namespace deeppcr
