// SPDX-License-Identifier: Apache-2.0
#include "server/codec/wire.h"

#include <gtest/gtest.h>

#include <string>

#include "deeppcr/v1/deeppcr.pb.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "inference/grpc_service.pb.h"
#include "tests/testing/expect_error.h"

namespace deeppcr::testing {
namespace {

template <typename Message>
absl::Status Check(const std::string& bytes) {
  google::protobuf::io::ArrayInputStream stream(bytes.data(), static_cast<int>(bytes.size()));
  return CheckWire(&stream, *Message::descriptor()).status();
}

std::string Repeat(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

constexpr char kTooMany[] = "expected at most 13312 fields";
constexpr char kMalformed[] = "expected a deeppcr.v1.ForwardRequest";

v1::ForwardRequest Request() {
  v1::ForwardRequest request;
  request.set_model("digits-resnet");
  request.mutable_inputs()->add_shape(1 << 16);
  request.mutable_inputs()->add_shape(16);
  request.mutable_inputs()->set_data(std::string(4 << 20, '\x01'));
  request.mutable_options()->set_solver("newton");
  request.mutable_options()->set_rtol(1e-4);
  request.set_request_id("a");
  return request;
}

TEST(CheckWireTest, CountsTheFieldsThatTheTypeDoesNotKnow) {
  inference::ModelInferRequest request;
  request.set_model_name("m");
  auto* const input = request.add_inputs();
  input->add_shape(1);
  auto* const unknown = request.GetReflection()->MutableUnknownFields(&request);
  for (int i = 0; i < 7; ++i) unknown->AddLengthDelimited(1000 + i, "");
  input->GetReflection()->MutableUnknownFields(input)->AddVarint(2000, 1);
  const std::string bytes = request.SerializeAsString();
  google::protobuf::io::ArrayInputStream stream(bytes.data(), static_cast<int>(bytes.size()));

  EXPECT_EQ(CheckWire(&stream, *request.descriptor()).value(), 8);
}

TEST(WireTest, AcceptsAnHonestRequestHoweverLarge) {
  EXPECT_TRUE(Check<v1::ForwardRequest>(Request().SerializeAsString()).ok());
  EXPECT_TRUE(Check<v1::ForwardRequest>("").ok());
}

TEST(WireTest, AcceptsAFewUnknownFieldsOfEveryKindInTheOtherProtocol) {
  const std::string varint("\xf8\x07\x05", 3),
      fixed64(
          "\xf9\x07"
          "12345678",
          10),
      fixed32(
          "\xfd\x07"
          "1234",
          6),
      text("\xfa\x07\x02hi", 5);

  EXPECT_TRUE(Check<inference::ModelInferRequest>(varint + fixed64 + fixed32 + text).ok());
}

// Such a field may ask for other samples than those without it.
TEST(WireTest, RefusesWhatANewerClientAsksFor) {
  v1::GenerateRequest request;
  request.set_model("m");
  v1::GenerationInput* const input = request.mutable_input();
  input->GetReflection()->MutableUnknownFields(input)->AddVarint(2000, 0);

  ExpectError(Check<v1::GenerateRequest>(request.SerializeAsString()),
              absl::StatusCode::kInvalidArgument,
              "request: field 2000 of deeppcr.v1.GenerationInput is not known to this server: "
              "the client is of a newer version");
  ExpectError(Check<v1::ListModelsRequest>("\x08\x01"), absl::StatusCode::kInvalidArgument,
              "field 1 of deeppcr.v1.ListModelsRequest");
  // The parser would take neither a float for a double nor a number for a name.
  ExpectError(Check<v1::SolverOptions>(std::string("\x15\0\0\xa0\x40", 5)),
              absl::StatusCode::kInvalidArgument,
              "field 2 of deeppcr.v1.SolverOptions: expected a value of its type");
  ExpectError(Check<v1::SolverOptions>("\x08\x01"), absl::StatusCode::kInvalidArgument,
              "field 1 of deeppcr.v1.SolverOptions");
}

TEST(WireTest, CountsPackedElementsAndNotTheirBytes) {
  v1::GenerateRequest labels;
  for (int i = 0; i < 4096; ++i) labels.mutable_input()->add_class_labels(65535);  // 3 bytes each
  EXPECT_TRUE(Check<v1::GenerateRequest>(labels.SerializeAsString()).ok());
  for (int i = 0; i < 9300; ++i) labels.mutable_input()->add_class_labels(0);
  ExpectError(Check<v1::GenerateRequest>(labels.SerializeAsString()),
              absl::StatusCode::kInvalidArgument, kTooMany);
}

TEST(WireTest, AcceptsAsManyLabelsAndTargetsAsSamples) {
  v1::GradientRequest request;
  for (int i = 0; i < 4096; ++i) {
    request.mutable_generation()->add_class_labels(65535);
    request.add_target_classes(65535);
  }
  EXPECT_TRUE(Check<v1::GradientRequest>(request.SerializeAsString()).ok());
}

TEST(WireTest, RefusesWhatWouldGrowInMemory) {
  v1::CompareRequest options;
  for (int i = 0; i < 14000; ++i) options.add_options();
  v1::ForwardRequest shape;
  for (int i = 0; i < 14000; ++i) shape.mutable_inputs()->add_shape(1);

  ExpectError(Check<v1::CompareRequest>(options.SerializeAsString()),
              absl::StatusCode::kInvalidArgument, kTooMany);
  ExpectError(Check<v1::ForwardRequest>(shape.SerializeAsString()),
              absl::StatusCode::kInvalidArgument, kTooMany);
  ExpectError(Check<inference::ModelInferRequest>(Repeat(std::string("\xfa\x07\x00", 3), 14000)),
              absl::StatusCode::kInvalidArgument, kTooMany);
  // Extents that are not packed, and are spread over several copies of the tensor, grow too.
  ExpectError(Check<v1::ForwardRequest>(Repeat(std::string("\x1a\x04\x08\x01\x08\x01", 6), 5000)),
              absl::StatusCode::kInvalidArgument, kTooMany);
}

TEST(WireTest, RefusesMalformedBytes) {
  const std::string whole = Request().SerializeAsString();
  ExpectError(Check<v1::ForwardRequest>(whole.substr(0, whole.size() / 2)),
              absl::StatusCode::kInvalidArgument, kMalformed);
  for (const std::string bytes :
       {"\x0a", "\x0a\x05hi", "\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "\x09", "\x0b\x0c",
        "\x0c", "\x07", "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"}) {
    ExpectError(Check<v1::ForwardRequest>(bytes), absl::StatusCode::kInvalidArgument, kMalformed);
  }
}

}  // namespace
}  // namespace deeppcr::testing
