// SPDX-License-Identifier: Apache-2.0
#include "proto/message_json.h"

#include <gtest/gtest.h>

#include <limits>

#include "deeppcr/v1/deeppcr.pb.h"
#include "inference/grpc_service.pb.h"

namespace deeppcr {
namespace {

TEST(MessageJsonTest, KeepsNumbersEnumsAndDefaults) {
  v1::SolveReport report;
  report.set_model_version(int64_t{1} << 53);
  report.set_queue_seconds(std::numeric_limits<double>::quiet_NaN());
  report.add_samples()->set_solver("newton");

  const auto json = MessageToJson(report);

  EXPECT_EQ(json["model_version"].dump(), "9007199254740992");
  EXPECT_TRUE(json["queue_seconds"].is_null());
  EXPECT_EQ(json["samples"][0]["solver"], "newton");
  EXPECT_EQ(json["samples"][0]["fallback"], false);
}

TEST(MessageJsonTest, LeavesOutUnsetMessagesAndOptionals) {
  v1::ForwardRequest request;
  request.mutable_options()->set_initial_guess(v1::INITIAL_GUESS_PREVIOUS);

  const auto json = MessageToJson(request);

  EXPECT_FALSE(json.contains("inputs"));
  EXPECT_FALSE(json["options"].contains("rtol"));
  EXPECT_EQ(json["options"]["initial_guess"], "INITIAL_GUESS_PREVIOUS");
}

TEST(MessageJsonTest, MapsAreObjects) {
  inference::ModelConfig config;
  (*config.mutable_parameters())["config.json"].set_string_value("{}");

  EXPECT_EQ(MessageToJson(config)["parameters"].dump(), R"({"config.json":{"string_value":"{}"}})");
}

TEST(MessageJsonTest, ShowsBytesAsSizeAndSurvivesBadUtf8) {
  v1::Tensor tensor;
  tensor.set_data(std::string(12, '\0'));

  EXPECT_EQ(MessageToJson(tensor)["data"], 12);
  EXPECT_EQ(DumpJson({{"text", "\xff"}}), "{\n  \"text\": \"\xef\xbf\xbd\"\n}\n");
}

}  // namespace
}  // namespace deeppcr
