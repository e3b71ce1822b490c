// SPDX-License-Identifier: Apache-2.0
#include "server/rest/infer_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "tests/testing/expect_error.h"

namespace deeppcr::testing {
namespace {

template <typename T>
std::string Bytes(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

TEST(DecodeRestInferTest, TakesEveryFieldInAnyOrder) {
  const auto infer = DecodeRestInfer(R"({
      "outputs": [{"name": "samples"}, {"parameters": {"binary_data": false}, "name": "latents"}],
      "parameters": {"binary_data_output": true, "solver": "newton", "rtol": 1e-5, "seed": 7,
                     "big": 18446744073709551615, "flag": true, "negative": -3},
      "inputs": [{"data": [[1, 2.5], [-3e-2, 4]], "name": "inputs", "shape": [2, 2],
                  "datatype": "FP32"},
                 {"name": "labels", "datatype": "INT64", "shape": [2],
                  "data": [9007199254740993, -9223372036854775808]}],
      "id": "r1"})",
                                     std::nullopt);
  ASSERT_TRUE(infer.ok()) << infer.status();
  const auto& request = infer->request;
  EXPECT_EQ(request.id(), "r1");
  EXPECT_EQ(request.inputs(0).name(), "inputs");
  EXPECT_EQ(request.inputs(0).datatype(), "FP32");
  EXPECT_THAT(request.inputs(0).shape(), ::testing::ElementsAre(2, 2));
  EXPECT_EQ(request.raw_input_contents(0), Bytes<float>({1, 2.5f, -3e-2f, 4}));
  EXPECT_EQ(request.raw_input_contents(1),
            Bytes<int64_t>({9007199254740993, std::numeric_limits<int64_t>::min()}));
  EXPECT_EQ(request.outputs(1).name(), "latents");
  EXPECT_TRUE(infer->binary_by_default);
  EXPECT_EQ(infer->binary[0], std::nullopt);
  EXPECT_EQ(infer->binary[1], false);
  EXPECT_EQ(request.parameters().at("solver").string_param(), "newton");
  EXPECT_EQ(request.parameters().at("rtol").double_param(), 1e-5);
  EXPECT_EQ(request.parameters().at("seed").int64_param(), 7);
  EXPECT_EQ(request.parameters().at("big").uint64_param(), UINT64_MAX);
  EXPECT_EQ(request.parameters().at("negative").int64_param(), -3);
  EXPECT_TRUE(request.parameters().at("flag").bool_param());
  EXPECT_EQ(request.parameters_size(), 6);
}

TEST(DecodeRestInferTest, TakesValuesAsTheyAreInMemory) {
  const std::string json = R"({"inputs": [
      {"name": "a", "shape": [2], "datatype": "FP32", "parameters": {"binary_data_size": 8}},
      {"name": "b", "shape": [1], "datatype": "FP32", "data": [3]},
      {"name": "c", "shape": [1], "datatype": "INT32", "parameters": {"binary_data_size": 4}}]})";
  const std::string a = Bytes<float>({NAN, 2}), c = Bytes<int32_t>({5});
  const auto infer = DecodeRestInfer(json + a + c, json.size());
  ASSERT_TRUE(infer.ok()) << infer.status();
  EXPECT_EQ(infer->request.raw_input_contents(0), a);
  EXPECT_EQ(infer->request.raw_input_contents(1), Bytes<float>({3}));
  EXPECT_EQ(infer->request.raw_input_contents(2), c);
  EXPECT_TRUE(infer->request.inputs(0).parameters().empty());

  ExpectError(DecodeRestInfer(json + a, json.size()), absl::StatusCode::kInvalidArgument,
              "inputs[2].parameters.binary_data_size: expected at most the 0 bytes");
  ExpectError(DecodeRestInfer(json + a + c + "x", json.size()), absl::StatusCode::kInvalidArgument,
              "got 1 more");
  ExpectError(DecodeRestInfer(json, json.size() + 1), absl::StatusCode::kInvalidArgument,
              "Inference-Header-Content-Length");
  ExpectError(DecodeRestInfer(json, std::nullopt), absl::StatusCode::kInvalidArgument,
              "binary_data_size");
}

class RefusedBody : public ::testing::TestWithParam<RefusedCase> {};

TEST_P(RefusedBody, NamesTheField) {
  ExpectError(DecodeRestInfer(GetParam().input, std::nullopt), GetParam().code,
              GetParam().message_part);
}

std::string Input(const std::string& rest) {
  return R"({"inputs": [{"name": "a", "shape": [1], )" + rest + "}]}";
}
std::string Repeated(const std::string& before, const std::string& what, int times,
                     const std::string& after) {
  std::string text = before;
  for (int i = 0; i < times; ++i) text += (i == 0 ? "" : ",") + what;
  return text + after;
}

INSTANTIATE_TEST_SUITE_P(
    Bodies, RefusedBody,
    ::testing::Values(
        RefusedCase{"Empty", "", ""}, RefusedCase{"Number", "3", "expected an object"},
        RefusedCase{"List", "[]", "expected no array"},
        RefusedCase{"Unknown", R"({"input": 3})", "input: expected one of id, parameters, inputs"},
        RefusedCase{"UnknownObject", R"({"other": {}})", "other: expected no object"},
        RefusedCase{"IdNumber", R"({"id": 3})", "id: expected a string"},
        RefusedCase{"InputsNumber", R"({"inputs": 3})", "inputs: expected one of"},
        RefusedCase{"InputNumber", R"({"inputs": [3]})", "inputs: expected an object"},
        RefusedCase{"ShapeText", R"({"inputs": [{"shape": ["2"]}]})",
                    "inputs[0].shape: expected an integer"},
        RefusedCase{"ShapeHuge", R"({"inputs": [{"shape": [9223372036854775808]}]})",
                    "inputs[0].shape: expected an integer"},
        RefusedCase{"NoDatatype", Input(R"("data": [1])"), "inputs[0].datatype: expected FP32"},
        RefusedCase{"Bytes", Input(R"("datatype": "BYTES", "data": ["x"])"), "got \"BYTES\""},
        RefusedCase{"NoData", Input(R"("datatype": "FP32")"), "expected either data or"},
        RefusedCase{"Both", Input(R"("datatype": "FP32", "data": [1],
                                     "parameters": {"binary_data_size": 4})"),
                    "got both"},
        RefusedCase{"NegativeSize", Input(R"("parameters": {"binary_data_size": -4})"),
                    "inputs[0].parameters.binary_data_size: expected 0 or more"},
        RefusedCase{"TextSize", Input(R"("parameters": {"binary_data_size": "4"})"),
                    "binary_data_size: expected an integer"},
        RefusedCase{"TextValue", Input(R"("datatype": "FP32", "data": ["1"])"),
                    "inputs[0].data: expected values of FP32"},
        RefusedCase{"NullValue", Input(R"("datatype": "FP32", "data": [null])"), "values of FP32"},
        RefusedCase{"HugeValue", Input(R"("datatype": "FP32", "data": [1e39])"), "values of FP32"},
        RefusedCase{"Fraction", Input(R"("datatype": "INT32", "data": [1.5])"), "values of INT32"},
        RefusedCase{"TooWide", Input(R"("datatype": "INT8", "data": [128])"), "values of INT8"},
        RefusedCase{"Negative", Input(R"("datatype": "UINT8", "data": [-1])"), "values of UINT8"},
        RefusedCase{"ObjectValue", Input(R"("datatype": "FP32", "data": [{}])"),
                    "inputs[0].data: expected no object"},
        RefusedCase{"OutputNumber", R"({"outputs": [{"name": 3}]})",
                    "outputs[0].name: expected a string"},
        RefusedCase{"BinaryText", R"({"outputs": [{"parameters": {"binary_data": "yes"}}]})",
                    "outputs[0].parameters.binary_data: expected true or false"},
        RefusedCase{"NullParameter", R"({"parameters": {"a": null}})",
                    "parameters.a: expected a number"},
        RefusedCase{"DeepParameter", R"({"parameters": {"a": {}}})", "expected no object"},
        RefusedCase{"Twice", R"({"id": "a", "id": "b"})", "id"},
        RefusedCase{"After", R"({} {})", ""},
        RefusedCase{"ManyInputs", Repeated(R"({"inputs": [)", "{}", 65, "]}"),
                    "inputs: expected at most 64"},
        RefusedCase{"ManyOutputs", Repeated(R"({"outputs": [)", "{}", 65, "]}"),
                    "outputs: expected at most 64"}),
    CaseName);

TEST(DecodeRestInferTest, BoundsParameters) {
  std::string text = R"({"parameters": {)";
  for (int i = 0; i < 257; ++i) text += (i == 0 ? "\"p" : ",\"p") + std::to_string(i) + "\": 1";
  ExpectError(DecodeRestInfer(text + "}}", std::nullopt), absl::StatusCode::kInvalidArgument,
              "parameters: expected at most 256");
}

class EncodeRestInferTest : public ::testing::Test {
 protected:
  EncodeRestInferTest() {
    reply_.set_model_name("net");
    reply_.set_model_version("2");
    Add("samples", "FP32", Bytes<float>({0.1f, -2e-30f, 3}));
    Add("losses", "FP64", Bytes<double>({0.1, INFINITY, 1e300}));
    (*reply_.mutable_parameters())["solver"].set_string_param("newt\"on");
    (*reply_.mutable_parameters())["converged"].set_bool_param(true);
    (*reply_.mutable_parameters())["seconds"].set_double_param(0.25);
    (*reply_.mutable_parameters())["steps"].set_int64_param(-1);
  }
  void Add(const std::string& name, const std::string& type, const std::string& bytes) {
    auto* output = reply_.add_outputs();
    output->set_name(name);
    output->set_datatype(type);
    output->add_shape(3);
    reply_.add_raw_output_contents(bytes);
  }

  inference::ModelInferResponse reply_;
};

TEST_F(EncodeRestInferTest, WritesNumbersThatReadBackAsTheyWere) {
  const RestBody body = EncodeRestInfer(reply_, {});
  EXPECT_FALSE(body.json_bytes.has_value());
  const auto json = nlohmann::json::parse(body.bytes);
  EXPECT_EQ(json["model_name"], "net");
  EXPECT_EQ(json["model_version"], "2");
  EXPECT_FALSE(json.contains("id"));
  EXPECT_EQ(
      json["parameters"],
      nlohmann::json::parse(R"({"solver":"newt\"on","converged":true,"seconds":0.25,"steps":-1})"));
  const auto& samples = json["outputs"][0];
  EXPECT_EQ(samples["name"], "samples");
  EXPECT_EQ(samples["shape"], nlohmann::json::parse("[3]"));
  EXPECT_EQ(samples["data"][0].get<float>(), 0.1f);
  EXPECT_EQ(samples["data"][1].get<float>(), -2e-30f);
  EXPECT_THAT(body.bytes, ::testing::HasSubstr("[0.1,-2e-30,3]"));
  const auto& losses = json["outputs"][1];
  EXPECT_EQ(losses["datatype"], "FP64");
  EXPECT_EQ(losses["data"][0].get<double>(), 0.1);
  EXPECT_TRUE(losses["data"][1].is_null());
}

TEST_F(EncodeRestInferTest, PutsBytesBehindTheObject) {
  RestInfer asked;
  asked.request.add_outputs()->set_name("losses");
  asked.request.add_outputs()->set_name("samples");
  asked.binary = {true, std::nullopt};
  RestBody body = EncodeRestInfer(reply_, asked);
  ASSERT_TRUE(body.json_bytes.has_value());
  auto json = nlohmann::json::parse(body.bytes.substr(0, *body.json_bytes));
  EXPECT_EQ(json["outputs"][1]["parameters"]["binary_data_size"], 24);
  EXPECT_FALSE(json["outputs"][1].contains("data"));
  EXPECT_TRUE(json["outputs"][0].contains("data"));
  EXPECT_EQ(body.bytes.substr(*body.json_bytes), reply_.raw_output_contents(1));

  asked.binary_by_default = true;
  body = EncodeRestInfer(reply_, asked);
  EXPECT_EQ(body.bytes.substr(*body.json_bytes),
            reply_.raw_output_contents(0) + reply_.raw_output_contents(1));
}

TEST_F(EncodeRestInferTest, ReadsBackWhatItWrites) {
  // Every float, written and read, is the same float.
  std::vector<float> values;
  for (uint32_t bits = 1; bits < 0x7f800000u; bits += 1234567) {
    float value = 0;
    std::memcpy(&value, &bits, sizeof(value));
    values.push_back(bits % 2 == 0 ? value : -value);
  }
  inference::ModelInferResponse reply;
  reply.add_outputs()->set_datatype("FP32");
  reply.add_raw_output_contents(Bytes(values));
  const auto json = nlohmann::json::parse(EncodeRestInfer(reply, {}).bytes);
  const std::string back =
      R"({"inputs": [{"datatype": "FP32", "data": )" + json["outputs"][0]["data"].dump() + "}]}";
  const auto infer = DecodeRestInfer(back, std::nullopt);
  ASSERT_TRUE(infer.ok()) << infer.status();
  EXPECT_EQ(infer->request.raw_input_contents(0), Bytes(values));
}

}  // namespace
}  // namespace deeppcr::testing
