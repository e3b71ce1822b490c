// SPDX-License-Identifier: Apache-2.0
// Hostile headers and layouts: each hand-made file must get its own message.
#include <gtest/gtest.h>

#include "kernels/base/strings.h"
#include "kernels/model/weights.h"
#include "tests/testing/expect_error.h"
#include "tests/testing/safetensors_writer.h"

namespace deeppcr::testing {
namespace {

using absl::StatusCode;

std::string Zeros(size_t count) { return std::string(count, '\0'); }

// One tensor `a` with these members and 8 bytes of data.
std::string OneTensor(std::string_view members) {
  return SafetensorsBytes(StrCat(R"({"a":{)", members, "}}"), Zeros(8));
}

// One tensor `a`, F32, with this shape and these offsets, over `size` bytes of data.
std::string Shaped(std::string_view shape, std::string_view offsets, size_t size) {
  return SafetensorsBytes(
      StrCat(R"({"a":{"dtype":"F32","shape":)", shape, R"(,"data_offsets":)", offsets, "}}"),
      Zeros(size));
}

// Two F32 tensors of 2 values, `a` and `b`, with these offsets.
std::string TwoTensors(std::string_view a, std::string_view b, size_t size) {
  return SafetensorsBytes(StrCat(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":)", a,
                                 R"(},"b":{"dtype":"F32","shape":[2],"data_offsets":)", b, "}}"),
                          Zeros(size));
}

std::string WithPrefix(uint64_t length, std::string_view rest) {
  return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + std::string(rest);
}

std::string TenOfOneRange() {
  std::string header = "{";
  for (int i = 0; i < 10; ++i) {
    header +=
        StrCat(i > 0 ? "," : "", "\"t", i, R"(":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})");
  }
  return SafetensorsBytes(header + "}", Zeros(8));
}

// A file with `count` tensors, all empty.
std::string ManyTensors(int64_t count) {
  std::string header = "{";
  for (int64_t i = 0; i < count; ++i) {
    header +=
        StrCat(i > 0 ? "," : "", "\"", i, R"(":{"dtype":"F32","shape":[0],"data_offsets":[0,0]})");
  }
  return SafetensorsBytes(header + "}", "");
}

std::string Metadata(std::string_view value) {
  return SafetensorsBytes(StrCat(R"({"__metadata__":)", value, "}"), "");
}

class RefusedSafetensorsTest : public ::testing::TestWithParam<RefusedCase> {};

TEST_P(RefusedSafetensorsTest, IsRefusedWithItsReason) {
  ExpectError(ParseSafetensors(GetParam().input), GetParam().code, GetParam().message_part);
}

INSTANTIATE_TEST_SUITE_P(
    LengthPrefix, RefusedSafetensorsTest,
    ::testing::Values(
        RefusedCase{"Empty", "", "at least 8 bytes for the length of the header, got 0"},
        RefusedCase{"SevenBytes", Zeros(7), "at least 8 bytes for the length of the header, got 7"},
        RefusedCase{"BeyondFile", WithPrefix(3, "{}"), "header of 3 bytes, but only 2 follow"},
        RefusedCase{"AboveCap", WithPrefix(kMaxHeaderBytes + 1, "{}"),
                    "header of 8388609 bytes; 8388608 are allowed", StatusCode::kResourceExhausted},
        RefusedCase{"Huge", WithPrefix(~uint64_t{0}, "{}"), "header of 18446744073709551615 bytes",
                    StatusCode::kResourceExhausted},
        // 8 + N wraps to 7 in 64 bits, less than the file has.
        RefusedCase{"WrapsAround", WithPrefix(~uint64_t{0}, Zeros(8)), "are allowed",
                    StatusCode::kResourceExhausted},
        RefusedCase{"ZeroLength", WithPrefix(0, ""), "not JSON"}),
    CaseName);

INSTANTIATE_TEST_SUITE_P(
    HeaderText, RefusedSafetensorsTest,
    ::testing::Values(
        RefusedCase{"NotUtf8", SafetensorsBytes("{\"\xFF\":{}}", ""), "UTF-8"},
        RefusedCase{"NotJson", SafetensorsBytes("weights!", ""), "header: not JSON"},
        RefusedCase{"Truncated", SafetensorsBytes(R"({"a":)", ""), "header: not JSON"},
        RefusedCase{"TrailingText", SafetensorsBytes("{} {}", ""), "header: not JSON"},
        RefusedCase{"RawNul", SafetensorsBytes(std::string("{}\0\0", 4), ""),
                    "NUL byte at offset 2"},
        RefusedCase{"ByteOrderMark", SafetensorsBytes("\xEF\xBB\xBF{}", ""), "byte order mark"},
        RefusedCase{"RootArray", SafetensorsBytes("[]", ""), "expected an object, got an array"},
        RefusedCase{"RootNumber", SafetensorsBytes("1", ""), "expected an object, got 1"},
        RefusedCase{"EntryNumber", SafetensorsBytes(R"({"a":1})", ""),
                    "tensor \"a\": expected an object, got 1"},
        RefusedCase{"EntryArray", SafetensorsBytes(R"({"a":[]})", ""),
                    "tensor \"a\": expected an object, got an array"},
        RefusedCase{"DeepNesting",
                    SafetensorsBytes(R"({"a":{"shape":)" + std::string(100'000, '['), ""),
                    "nested deeper than 3 levels"},
        RefusedCase{
            "DuplicateTensor",
            SafetensorsBytes(R"({"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},"a":{}})",
                             ""),
            "key \"a\" appears twice"},
        RefusedCase{"DuplicateMember", OneTensor(R"("dtype":"F32","dtype":"F64")"),
                    "key \"dtype\" appears twice"},
        RefusedCase{"NulInName", SafetensorsBytes(R"({"a\u0000z":{}})", ""),
                    "tensor name \"a\\x00z\" contains a NUL"},
        RefusedCase{"LongName", SafetensorsBytes("{\"" + std::string(257, 'n') + "\":{}}", ""),
                    "has 257 bytes; 256 are allowed"},
        RefusedCase{"TooManyTensors", ManyTensors(kMaxTensors + 1), "more than 100000 tensors",
                    StatusCode::kResourceExhausted},
        RefusedCase{"TenMillionEntries", ManyTensors(200'000), "8388608 are allowed",
                    StatusCode::kResourceExhausted}),
    CaseName);

INSTANTIATE_TEST_SUITE_P(
    Members, RefusedSafetensorsTest,
    ::testing::Values(
        RefusedCase{"NoDtype", OneTensor(R"("shape":[2],"data_offsets":[0,8])"),
                    "dtype is missing"},
        RefusedCase{"NoShape", OneTensor(R"("dtype":"F32","data_offsets":[0,8])"),
                    "shape is missing"},
        RefusedCase{"NoOffsets", OneTensor(R"("dtype":"F32","shape":[2])"),
                    "data_offsets is missing"},
        RefusedCase{"UnknownMember", OneTensor(R"("strides":[1])"),
                    "tensor \"a\": unknown member \"strides\""},
        RefusedCase{"DtypeNumber", OneTensor(R"("dtype":32)"), "dtype: expected a string, got 32"},
        RefusedCase{"DtypeArray", OneTensor(R"("dtype":["F32"])"),
                    "dtype: expected a string, got an array"},
        RefusedCase{"DtypeUnknown", OneTensor(R"("dtype":"f32")"), "dtype \"f32\" is not known"},
        RefusedCase{"ShapeNumber", OneTensor(R"("shape":2)"),
                    "shape: expected an array of unsigned integers, got 2"},
        RefusedCase{"ShapeObject", OneTensor(R"("shape":{})"),
                    "shape: expected an array of unsigned integers, got an object"},
        RefusedCase{"NestedShape", OneTensor(R"("shape":[[2]])"), "nested deeper than 3"},
        RefusedCase{"ObjectInShape", OneTensor(R"("shape":[{}])"), "nested deeper than 3"},
        RefusedCase{"NegativeExtent", Shaped("[-2]", "[0,8]", 8),
                    "shape: expected unsigned integers below 2^63, got -2"},
        RefusedCase{"NegativeZeroExtent", Shaped("[-0]", "[0,0]", 0),
                    "shape: expected unsigned integers below 2^63"},
        RefusedCase{"FloatExtent", Shaped("[2.0]", "[0,8]", 8),
                    "shape: expected unsigned integers below 2^63, got 2.0"},
        RefusedCase{"ExponentExtent", Shaped("[2e0]", "[0,8]", 8), "got 2.0"},
        RefusedCase{"StringExtent", Shaped(R"(["2"])", "[0,8]", 8), "got string \"2\""},
        RefusedCase{"NullExtent", Shaped("[null]", "[0,8]", 8), "got null"},
        RefusedCase{"BoolExtent", Shaped("[true]", "[0,8]", 8), "got true"},
        RefusedCase{"ExtentOf2To63", Shaped("[9223372036854775808]", "[0,8]", 8),
                    "got 9223372036854775808"},
        RefusedCase{"ExtentOf2To64", Shaped("[18446744073709551616]", "[0,8]", 8), "got 1.8446"},
        RefusedCase{"OverflowingExtent", Shaped("[1e999]", "[0,8]", 8), "number overflow"},
        RefusedCase{"RankNine", Shaped("[1,1,1,1,1,1,1,1,1]", "[0,4]", 4), "rank above 8"},
        RefusedCase{"NegativeOffset", Shaped("[2]", "[-8,0]", 8),
                    "data_offsets: expected unsigned integers below 2^63, got -8"},
        RefusedCase{"NoOffset", Shaped("[2]", "[]", 8), "expected [begin, end], got 0 numbers"},
        RefusedCase{"OneOffset", Shaped("[2]", "[0]", 8), "expected [begin, end], got 1 numbers"},
        RefusedCase{"ThreeOffsets", Shaped("[2]", "[0,8,8]", 8), "got more than 2 numbers"},
        RefusedCase{"ScalarOffsets", Shaped("[2]", "8", 8),
                    "data_offsets: expected an array of unsigned integers, got 8"}),
    CaseName);

INSTANTIATE_TEST_SUITE_P(
    Layout, RefusedSafetensorsTest,
    ::testing::Values(
        RefusedCase{"TenTensorsShareOneRange", TenOfOneRange(),
                    "data_offsets [0, 8] overlaps another tensor: expected begin 8"},
        RefusedCase{"PartialOverlap", TwoTensors("[0,8]", "[4,12]", 12),
                    "tensor \"b\": data_offsets [4, 12] overlaps another tensor"},
        RefusedCase{"GapAtStart", Shaped("[2]", "[4,12]", 12),
                    "data_offsets [4, 12] leaves a gap: expected begin 0"},
        RefusedCase{"GapBetween", TwoTensors("[0,8]", "[12,20]", 20),
                    "tensor \"b\": data_offsets [12, 20] leaves a gap: expected begin 8"},
        RefusedCase{"EndBeforeBegin", Shaped("[2]", "[8,0]", 8), "[8, 0]: end is before begin"},
        RefusedCase{"SizeBelowShape", Shaped("[3]", "[0,8]", 8),
                    "shape [3] x F32 takes 12 bytes, but data_offsets [0, 8] holds 8"},
        RefusedCase{"SizeAboveShape", Shaped("[1]", "[0,8]", 8), "takes 4 bytes"},
        RefusedCase{"ProductOverflows", Shaped("[4611686018427387904,8]", "[0,8]", 8),
                    "the bytes of shape [4611686018427387904, 8] x F32 overflow"},
        // 2^32 * 2^32 is 0 in 64 bits.
        RefusedCase{"ProductWrapsToZero", Shaped("[4294967296,4294967296]", "[0,0]", 0),
                    "overflow 64 bits"},
        RefusedCase{"BytesOverflow", Shaped("[4611686018427387904]", "[0,0]", 0),
                    "the bytes of shape [4611686018427387904] x F32 overflow"},
        RefusedCase{"OverflowBeforeZero", Shaped("[4294967296,4294967296,0]", "[0,0]", 0),
                    "overflow 64 bits"},
        RefusedCase{"MissingTail", Shaped("[2]", "[0,8]", 7),
                    "the tensors take 8 bytes, but 7 bytes of data are there (file cut short)"},
        RefusedCase{"NoData", Shaped("[2]", "[0,8]", 0), "file cut short"},
        RefusedCase{
            "ExtraTail", Shaped("[2]", "[0,8]", 9),
            "the tensors take 8 bytes, but 9 bytes of data follow the header (extra bytes)"},
        RefusedCase{"DataWithoutTensors", SafetensorsBytes("{}", "PK"), "extra bytes"}),
    CaseName);

INSTANTIATE_TEST_SUITE_P(
    MetadataValues, RefusedSafetensorsTest,
    ::testing::Values(
        RefusedCase{"Number", Metadata(R"({"step":1})"),
                    "__metadata__: expected string values only, got 1"},
        RefusedCase{"Null", Metadata(R"({"step":null})"), "expected string values only, got null"},
        RefusedCase{"Object", Metadata(R"({"step":{}})"),
                    "__metadata__: expected string values only, got an object"},
        RefusedCase{"Array", Metadata(R"({"step":[]})"),
                    "__metadata__: expected string values only, got an array"},
        RefusedCase{"Itself", Metadata(R"("text")"),
                    "__metadata__: expected an object, got string \"text\""},
        RefusedCase{"DuplicateKey", Metadata(R"({"k":"a","k":"b"})"), "key \"k\" appears twice"}),
    CaseName);

// What nobody reads may be of any type, but its bytes are counted.
TEST(SafetensorsHeaderTest, RefusesOtherDtypesOfTheFormatWhereTheyAreRead) {
  const std::vector<std::pair<std::string, int64_t>> others = {
      {"BOOL", 1},    {"U8", 1},      {"I8", 1},     {"I16", 2}, {"U16", 2},
      {"I32", 4},     {"U32", 4},     {"I64", 8},    {"U64", 8}, {"C64", 8},
      {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1}};
  for (const auto& [dtype, size] : others) {
    const auto of_bytes = [&, name = dtype](int64_t bytes) {
      return SafetensorsBytes(
          StrCat(R"({"a":{"dtype":")", name, R"(","shape":[3],"data_offsets":[0,)", bytes, "]}}"),
          std::string(static_cast<size_t>(bytes), '\1'));
    };
    const std::string right = of_bytes(3 * size);
    const auto tensors = ParseSafetensors(right);
    ASSERT_TRUE(tensors.ok()) << tensors.status();
    EXPECT_EQ(NumElements(tensors->entries()[0]), 3);
    ExpectError(
        ToFloat(tensors->entries()[0]), StatusCode::kInvalidArgument,
        StrCat("tensor \"a\": dtype ", dtype, " is not read; expected F16, BF16, F32 or F64"));
    ExpectError(ParseSafetensors(of_bytes(3 * size + 1)), StatusCode::kInvalidArgument,
                StrCat("shape [3] x ", dtype, " takes ", 3 * size, " bytes"));
  }
}

// Those of a few bits have no size here.
TEST(SafetensorsHeaderTest, RefusesDtypesOfNoWholeBytes) {
  for (const std::string dtype : {"F6_E2M3", "F6_E3M2", "F4"}) {
    ExpectError(ParseSafetensors(OneTensor(StrCat(R"("dtype":")", dtype, "\""))),
                StatusCode::kInvalidArgument,
                StrCat("tensor \"a\": dtype \"", dtype, "\" is not known"));
  }
}

TEST(SafetensorsHeaderTest, AcceptsWhitespaceAroundTheHeader) {
  EXPECT_TRUE(ParseSafetensors(SafetensorsBytes(" \t\r\n{} \n   ", "")).ok());
}

TEST(SafetensorsHeaderTest, AcceptsAFileWithoutTensors) {
  const Tensors tensors = ParseSafetensors(SafetensorsBytes("{}", "")).value();

  EXPECT_TRUE(tensors.entries().empty());
}

TEST(SafetensorsHeaderTest, AcceptsMetadataWithAnyKeys) {
  EXPECT_TRUE(ParseSafetensors(Metadata(R"({"dtype":"x","format":"pt","":""})")).ok());
}

TEST(SafetensorsHeaderTest, AcceptsMembersInAnyOrder) {
  EXPECT_TRUE(
      ParseSafetensors(OneTensor(R"("data_offsets":[0,8],"shape":[2],"dtype":"F32")")).ok());
}

TEST(SafetensorsHeaderTest, AcceptsAScalar) {
  const std::string file = Shaped("[]", "[0,4]", 4);
  const Tensors tensors = ParseSafetensors(file).value();

  EXPECT_TRUE(tensors.entries()[0].shape.empty());
  EXPECT_EQ(*ToFloat(tensors.entries()[0]), std::vector<float>{0.0F});
}

TEST(SafetensorsHeaderTest, AcceptsZeroExtentsEvenBesideHugeOnes) {
  const std::string file = Shaped("[0,9223372036854775807]", "[0,0]", 0);
  const Tensors tensors = ParseSafetensors(file).value();

  EXPECT_TRUE(ToFloat(tensors.entries()[0])->empty());
}

TEST(SafetensorsHeaderTest, AcceptsEmptyTensorsBetweenOthers) {
  const std::string bytes =
      SafetensorsBytes(R"({"c":{"dtype":"F32","shape":[1],"data_offsets":[4,8]},)"
                       R"("b":{"dtype":"F32","shape":[0],"data_offsets":[4,4]},)"
                       R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
                       Zeros(8));

  EXPECT_TRUE(ParseSafetensors(bytes).ok());
}

TEST(SafetensorsHeaderTest, AcceptsTensorsInAnyOrder) {
  EXPECT_TRUE(ParseSafetensors(TwoTensors("[8,16]", "[0,8]", 16)).ok());
}

TEST(SafetensorsHeaderTest, AcceptsTheLimits) {
  const Tensors most = ParseSafetensors(ManyTensors(kMaxTensors)).value();
  EXPECT_EQ(static_cast<int64_t>(most.entries().size()), kMaxTensors);

  EXPECT_TRUE(ParseSafetensors(Shaped("[1,1,1,1,1,1,1,1]", "[0,4]", 4)).ok());
  EXPECT_TRUE(
      ParseSafetensors(SafetensorsBytes("{}" + std::string(kMaxHeaderBytes - 2, ' '), "")).ok());
}

}  // namespace
}  // namespace deeppcr::testing
