// SPDX-License-Identifier: Apache-2.0
// What ReadOnnxGraph makes of files, and hostile ones, each of which must get its own message.
#include "kernels/program/onnx_graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>

#include "kernels/base/memory_budget.h"
#include "kernels/base/strings.h"
#include "kernels/program/onnx/wire.h"
#include "tests/testing/expect_error.h"
#include "tests/testing/onnx_model.h"

namespace deeppcr::testing {
namespace {

using absl::StatusCode;
using onnx::TensorProto;
using program::OnnxGraph;
using program::OnnxLimits;
using program::OnnxType;
using program::ReadOnnxGraph;
using ::testing::ElementsAre;

OnnxModel Valid() {
  OnnxModel model;
  model.Input("x", {-1, 2}).Floats("w", {2, 2}, {1, 2, 3, 4}).Output("y");
  model.Node("MatMul", {"x", "w"}, {"h"}).Node("Relu", {"h"}, {"y"});
  return model;
}

absl::StatusOr<OnnxGraph> Read(const OnnxModel& model) { return ReadOnnxGraph(model.Bytes(), ""); }

std::vector<double> Elements(const program::OnnxTensor& tensor, int64_t size) {
  std::vector<double> elements;
  for (int64_t i = 0; i < size; ++i) elements.push_back(tensor.numbers[i]);
  return elements;
}

TEST(OnnxGraphTest, ReadsNodesTensorsAndShapes) {
  const auto graph = Read(Valid());
  ASSERT_TRUE(graph.ok()) << graph.status();
  ASSERT_EQ(graph->nodes.size(), 2u);
  EXPECT_EQ(graph->nodes[0].op_type, "MatMul");
  EXPECT_THAT(graph->nodes[0].inputs, ElementsAre("x", "w"));
  EXPECT_EQ(graph->opset, 17);
  ASSERT_EQ(graph->inputs.size(), 1u);
  EXPECT_EQ(graph->inputs[0].shape[0].extent, -1);
  EXPECT_EQ(graph->inputs[0].shape[0].symbol, "batch");
  EXPECT_EQ(graph->inputs[0].shape[1].extent, 2);
  EXPECT_THAT(graph->initializers.at("w").shape, ElementsAre(2, 2));
  EXPECT_THAT(Elements(graph->initializers.at("w"), 4), ElementsAre(1, 2, 3, 4));
}

TEST(OnnxGraphTest, BringsNodesIntoAnOrder) {
  OnnxModel model;
  model.Input("x", {1, 2}).Output("y");
  model.Node("Relu", {"h"}, {"y"}).Node("Neg", {"g"}, {"h"}).Node("Abs", {"x"}, {"g"});
  const auto graph = Read(model);
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(graph->nodes[0].op_type, "Abs");
  EXPECT_EQ(graph->nodes[1].op_type, "Neg");
  EXPECT_EQ(graph->nodes[2].op_type, "Relu");
}

struct RawCase {
  int32_t data_type;
  std::string raw;
  OnnxType type;
  std::vector<double> expected;
};

template <typename T>
std::string RawOf(std::initializer_list<T> values) {
  std::string raw(values.size() * sizeof(T), '\0');
  std::memcpy(raw.data(), values.begin(), raw.size());
  return raw;
}

TEST(OnnxGraphTest, ReadsRawDataOfEveryType) {
  const RawCase cases[] = {
      {TensorProto::FLOAT, RawOf<float>({1.5F, -2}), OnnxType::kFloat, {1.5, -2}},
      {TensorProto::DOUBLE, RawOf<double>({0.1, -2}), OnnxType::kFloat, {0.1, -2}},
      // Of float16: 1, the least subnormal; of bfloat16: 1, -2.
      {TensorProto::FLOAT16, RawOf<uint16_t>({0x3C00, 1}), OnnxType::kFloat, {1, 0x1p-24}},
      {TensorProto::FLOAT16,
       RawOf<uint16_t>({0xFC00, 0x7BFF}),
       OnnxType::kFloat,
       {-INFINITY, 65504}},
      {TensorProto::BFLOAT16, RawOf<uint16_t>({0x3F80, 0xC000}), OnnxType::kFloat, {1, -2}},
      {TensorProto::INT64,
       RawOf<int64_t>({-1, int64_t{1} << 53}),
       OnnxType::kInteger,
       {-1, 0x1p53}},
      {TensorProto::INT32, RawOf<int32_t>({-7, 7}), OnnxType::kInteger, {-7, 7}},
      {TensorProto::INT16, RawOf<int16_t>({-7, 7}), OnnxType::kInteger, {-7, 7}},
      {TensorProto::INT8, RawOf<int8_t>({-7, 7}), OnnxType::kInteger, {-7, 7}},
      {TensorProto::UINT8, RawOf<uint8_t>({255, 7}), OnnxType::kInteger, {255, 7}},
      {TensorProto::BOOL, RawOf<uint8_t>({2, 0}), OnnxType::kBool, {1, 0}},
  };
  for (const RawCase& tried : cases) {
    OnnxModel model = Valid();
    TensorProto& tensor = *model.graph().add_initializer();
    tensor.set_name("t");
    tensor.set_data_type(tried.data_type);
    tensor.add_dims(2);
    tensor.set_raw_data(tried.raw);
    const auto graph = Read(model);
    ASSERT_TRUE(graph.ok()) << graph.status();
    EXPECT_EQ(graph->initializers.at("t").type, tried.type) << tried.data_type;
    EXPECT_EQ(Elements(graph->initializers.at("t"), 2), tried.expected) << tried.data_type;
    tensor.mutable_raw_data()->push_back('x');
    ExpectError(Read(model), StatusCode::kInvalidArgument, "bytes, got");
  }
}

TEST(OnnxGraphTest, ReadsHalvesAndBoolsFromFieldsOfIntegers) {
  OnnxModel model = Valid();
  TensorProto& tensor = *model.graph().add_initializer();
  tensor.set_name("t");
  tensor.set_data_type(TensorProto::FLOAT16);
  tensor.add_dims(1);
  tensor.add_int32_data(0x3C00);
  auto graph = Read(model);
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(graph->initializers.at("t").numbers[0], 1);
  tensor.set_data_type(TensorProto::BOOL);
  graph = Read(model);
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(graph->initializers.at("t").numbers[0], 1);
}

// A model that is valid but for what `spoil` does.
struct SpoiledCase {
  std::string name;
  std::function<void(OnnxModel&)> spoil;
  std::string message_part;
  StatusCode code = StatusCode::kInvalidArgument;
};

TensorProto& W(OnnxModel& model) { return *model.graph().mutable_initializer(0); }

void SetDims(TensorProto& tensor, const Shape& dims) {
  tensor.clear_dims();
  tensor.mutable_dims()->Add(dims.begin(), dims.end());
}

void SetExternal(TensorProto& tensor, const std::string& location, const std::string& offset = "0",
                 const std::string& length = "") {
  tensor.clear_float_data();
  tensor.clear_external_data();
  tensor.set_data_location(TensorProto::EXTERNAL);
  const auto add = [&](const std::string& key, const std::string& value) {
    onnx::StringStringEntryProto& entry = *tensor.add_external_data();
    entry.set_key(key);
    entry.set_value(value);
  };
  add("location", location);
  add("offset", offset);
  if (!length.empty()) add("length", length);
}

onnx::AttributeProto& AddAttribute(OnnxModel& model, const std::string& name,
                                   onnx::AttributeProto::AttributeType type) {
  onnx::AttributeProto& attribute = *model.last_node().add_attribute();
  attribute.set_name(name);
  attribute.set_type(type);
  return attribute;
}

// Nested subgraphs, as deep as that.
void Nest(onnx::GraphProto& graph, int depth) {
  onnx::AttributeProto& attribute = *graph.add_node()->add_attribute();
  attribute.set_type(onnx::AttributeProto::GRAPH);
  if (depth > 0) Nest(*attribute.mutable_g(), depth - 1);
}

const std::vector<SpoiledCase>& SpoiledCases() {
  static const std::vector<SpoiledCase> cases = {
      {"Cycle",
       [](OnnxModel& m) {
         m.Node("Add", {"x", "b"}, {"a"}).Node("Neg", {"a"}, {"b"});
       },
       "is in a cycle"},
      {"OwnInput", [](OnnxModel& m) { m.Node("Neg", {"a"}, {"a"}); }, "is in a cycle"},
      {"NothingDefines", [](OnnxModel& m) { m.Node("Neg", {"gone"}, {"a"}); },
       "nothing defines its input \"gone\""},
      {"OutputUndefined", [](OnnxModel& m) { m.Output("gone"); },
       "nothing defines the graph's output \"gone\""},
      {"NoOutput", [](OnnxModel& m) { m.graph().clear_output(); }, "the graph has no output"},
      {"TwoNodesOneOutput", [](OnnxModel& m) { m.Node("Neg", {"x"}, {"h"}); },
       "value \"h\" is defined twice"},
      {"OneNodeTwoEqualOutputs",
       [](OnnxModel& m) {
         m.Node("Split", {"x"}, {"a", "a"});
       },
       "value \"a\" is defined twice"},
      {"NodeDefinesInput", [](OnnxModel& m) { m.Node("Neg", {"h"}, {"x"}); },
       "value \"x\" is defined twice"},
      {"NodeDefinesInitializer", [](OnnxModel& m) { m.Node("Neg", {"h"}, {"w"}); },
       "value \"w\" is defined twice"},
      {"InitializerTwice", [](OnnxModel& m) { m.Floats("w", {1}, {1}); },
       "initialiser \"w\" comes twice"},
      {"InitializerWithoutName", [](OnnxModel& m) { m.Floats("", {1}, {1}); }, "has no name"},
      {"InputTwice", [](OnnxModel& m) { m.Input("x", {1}); }, "value \"x\" is defined twice"},
      {"NegativeExtent",
       [](OnnxModel& m) {
         SetDims(W(m), {-2, -2});
       },
       "has a negative extent"},
      {"ProductOverflows",
       [](OnnxModel& m) {
         SetDims(W(m), {1LL << 32, 1LL << 32});
       },
       "overflows 64 bits"},
      {"ProductOverflowsToSmall",
       [](OnnxModel& m) {
         SetDims(W(m), {1LL << 62, 4, 4});
       },
       "overflows 64 bits"},
      {"HugeShape",
       [](OnnxModel& m) {
         SetDims(W(m), {1 << 20, 1 << 20});
       },
       "more than 268435456 elements", StatusCode::kResourceExhausted},
      {"TooFewNumbers",
       [](OnnxModel& m) {
         SetDims(W(m), {2, 3});
       },
       "shape [2, 3] needs 6 numbers, got 4"},
      {"RankNine", [](OnnxModel& m) { SetDims(W(m), Shape(9, 1)); }, "rank 9",
       StatusCode::kResourceExhausted},
      {"Nan", [](OnnxModel& m) { W(m).set_float_data(0, NAN); }, "an element is NaN"},
      {"StringTensor", [](OnnxModel& m) { W(m).set_data_type(TensorProto::STRING); },
       "element type STRING is not taken"},
      {"UnknownType", [](OnnxModel& m) { W(m).set_data_type(1234); },
       "element type 1234 is not taken"},
      {"Segment", [](OnnxModel& m) { W(m).mutable_segment()->set_begin(1); }, "segments"},
      {"ExternalWithoutFolder", [](OnnxModel& m) { SetExternal(W(m), "weights.data"); },
       "come without a folder"},
      {"InputWithoutShape",
       [](OnnxModel& m) {
         m.graph().mutable_input(0)->mutable_type()->mutable_tensor_type()->clear_shape();
       },
       "expected a tensor with a shape"},
      {"InputOfZero",
       [](OnnxModel& m) {
         m.Input("z", {1, 0});
       },
       "extent 0; expected 1 or more"},
      {"InputNegative",
       [](OnnxModel& m) {
         m.Input("z", {1, -5});
       },
       "extent -5"},
      {"InputOfHalves", [](OnnxModel& m) { m.Input("z", {1}, TensorProto::FLOAT16); },
       "export in float32"},
      {"InputSequence",
       [](OnnxModel& m) { m.graph().add_input()->mutable_type()->mutable_sequence_type(); },
       "the file holds sequences"},
      {"Subgraph",
       [](OnnxModel& m) {
         m.Node("If", {"x"}, {"a"});
         AddAttribute(m, "then_branch", onnx::AttributeProto::GRAPH).mutable_g();
       },
       "node \"a\" (\"If\"): attribute \"then_branch\": holds a subgraph"},
      {"NestedSubgraphs", [](OnnxModel& m) { Nest(m.graph(), 50); }, "nested deeper than"},
      {"SparseInitializer", [](OnnxModel& m) { m.graph().add_sparse_initializer(); },
       "the file holds sparse initialisers"},
      {"SparseAttribute",
       [](OnnxModel& m) {
         AddAttribute(m, "value", onnx::AttributeProto::SPARSE_TENSOR).mutable_sparse_tensor();
       },
       "the file holds sparse tensors"},
      {"Functions", [](OnnxModel& m) { m.proto.add_functions(); }, "model-local functions"},
      {"Training", [](OnnxModel& m) { m.proto.add_training_info(); }, "training information"},
      {"AttributeTwice", [](OnnxModel& m) { m.Int("axis", 1).Int("axis", 2); },
       "attribute \"axis\" comes twice"},
      {"AttributeWithoutType",
       [](OnnxModel& m) { AddAttribute(m, "axis", onnx::AttributeProto::UNDEFINED); },
       "its type, number 0"},
      {"AttributeOfFunction",
       [](OnnxModel& m) {
         AddAttribute(m, "axis", onnx::AttributeProto::INT).set_ref_attr_name("a");
       },
       "a function's attribute"},
      {"OpsetSix", [](OnnxModel& m) { m.proto.mutable_opset_import(0)->set_version(6); },
       "opset version 6; 7 to 25 are taken"},
      {"OpsetOfTheFuture",
       [](OnnxModel& m) { m.proto.mutable_opset_import(0)->set_version(1 << 30); },
       "opset version 1073741824"},
      {"OpsetTwice", [](OnnxModel& m) { m.proto.add_opset_import()->set_version(17); },
       "two versions"},
      {"NoOpset", [](OnnxModel& m) { m.proto.clear_opset_import(); }, "opset version 0"},
      {"NoGraph", [](OnnxModel& m) { m.proto.clear_graph(); }, "there is no graph in it"},
      {"LongName", [](OnnxModel& m) { m.Node("Neg", {"x"}, {std::string(2000, 'n')}); },
       "has 2000 bytes; 1024 are allowed", StatusCode::kResourceExhausted},
      {"NulInName", [](OnnxModel& m) { m.Node("Neg", {"x"}, {std::string("a\0b", 3)}); },
       "contains a NUL"},
      {"LongList", [](OnnxModel& m) { m.IntList("axes", std::vector<int64_t>(1'000'001)); },
       "1000001 elements; 1000000 are allowed", StatusCode::kResourceExhausted},
  };
  return cases;
}

class SpoiledOnnxTest : public ::testing::TestWithParam<SpoiledCase> {};

TEST_P(SpoiledOnnxTest, IsRefusedWithItsReason) {
  OnnxModel model = Valid();
  GetParam().spoil(model);
  ExpectError(Read(model), GetParam().code, GetParam().message_part);
}

INSTANTIATE_TEST_SUITE_P(All, SpoiledOnnxTest, ::testing::ValuesIn(SpoiledCases()),
                         [](const auto& tested) { return tested.param.name; });

TEST(HostileOnnxTest, RefusesTruncatedBytesEverywhere) {
  const std::string bytes = Valid().Bytes();
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(ReadOnnxGraph(bytes.substr(0, size), "").ok()) << size;
  }
}

TEST(HostileOnnxTest, RefusesBytesThatAreNoMessage) {
  ExpectError(ReadOnnxGraph("", ""), StatusCode::kInvalidArgument, "there is no graph");
  ExpectError(ReadOnnxGraph("no model", ""), StatusCode::kInvalidArgument, "cut short");
  ExpectError(ReadOnnxGraph(std::string(100, '\xFF'), ""), StatusCode::kInvalidArgument,
              "cut short");
}

// A field of a length, for messages that are too large to be made.
std::string FieldOf(int number, const std::string& contents) {
  std::string bytes(1, static_cast<char>(number << 3 | 2));
  uint64_t size = contents.size();
  for (; size >= 128; size >>= 7) bytes.push_back(static_cast<char>(size | 128));
  bytes.push_back(static_cast<char>(size));
  return bytes + contents;
}

std::string Repeated(const std::string& field, int count) {
  std::string bytes;
  for (int i = 0; i < count; ++i) bytes += field;
  return bytes;
}

TEST(HostileOnnxTest, CountsBeforeProtobufAllocates) {
  // Two bytes each; as messages they would take gigabytes.
  const std::string nodes = FieldOf(7, Repeated(FieldOf(1, ""), 10'000'000));
  ExpectError(ReadOnnxGraph(nodes, ""), StatusCode::kResourceExhausted, "more than 100000 nodes");
  const std::string tensors = FieldOf(7, Repeated(FieldOf(5, ""), 200'000));
  ExpectError(ReadOnnxGraph(tensors, ""), StatusCode::kResourceExhausted,
              "more than 100000 tensors");
  const std::string names = FieldOf(7, FieldOf(1, Repeated(FieldOf(1, ""), 10'000'000)));
  ExpectError(ReadOnnxGraph(names, ""), StatusCode::kResourceExhausted, "more than 4000000 fields");
}

TEST(HostileOnnxTest, RefusesLargeFiles) {
  OnnxLimits limits;
  limits.max_bytes = 10;
  ExpectError(ReadOnnxGraph(Valid().Bytes(), "", limits), StatusCode::kResourceExhausted,
              "10 are allowed");
}

// What is small in a file may be large in memory: a byte of a packed integer, two of a node.
TEST(OnnxGraphTest, MessagesAreCountedAsLargeAsTheyBecome) {
  const auto bytes_of = [](const OnnxModel& model) {
    return *program::CheckOnnxWire(model.Bytes(), {});
  };
  OnnxModel integers = Valid();
  onnx::TensorProto& tensor = *integers.graph().add_initializer();
  tensor.set_name("integers");
  tensor.set_data_type(TensorProto::INT64);
  tensor.add_dims(10'000);
  for (int i = 0; i < 10'000; ++i) tensor.add_int64_data(i % 100);
  EXPECT_GE(bytes_of(integers), 10'000 * 8);
  OnnxModel nodes = Valid();
  for (int i = 0; i < 1000; ++i) nodes.graph().add_node();
  EXPECT_GE(bytes_of(nodes), 1000 * 256);
  EXPECT_LT(bytes_of(Valid()), 1 << 16) << "an ordinary file is not refused for it";

  for (OnnxModel* const model : {&integers, &nodes}) {
    const auto budget = std::make_shared<MemoryBudget>(bytes_of(*model) - 1);
    MemoryShare share(budget);
    ExpectError(ReadOnnxGraph(model->Bytes(), "", {.memory = &share}),
                StatusCode::kResourceExhausted, "the memory of this process leaves");
  }
}

// A folder of a file "w.data" of four floats, and other things beside it.
class ExternalDataTest : public ::testing::Test {
 protected:
  ExternalDataTest() {
    std::filesystem::create_directories(folder_);
    std::ofstream(folder_ / "w.data", std::ios::binary) << RawOf<float>({0, 1, 2, 3, 4});
    std::filesystem::create_symlink("w.data", folder_ / "link.data");
  }
  ~ExternalDataTest() override { std::filesystem::remove_all(folder_); }

  absl::StatusOr<OnnxGraph> ReadExternal(const std::string& location,
                                         const std::string& offset = "4",
                                         const std::string& length = "",
                                         MemoryShare* memory = nullptr) {
    OnnxModel model = Valid();
    SetExternal(W(model), location, offset, length);
    return ReadOnnxGraph(model.Bytes(), folder_.string(), {.memory = memory});
  }

  const std::filesystem::path folder_ =
      std::filesystem::path(::testing::TempDir()) /
      StrCat("external_", ::testing::UnitTest::GetInstance()->current_test_info()->name());
};

TEST_F(ExternalDataTest, IsReadFromTheFileBeside) {
  const auto graph = ReadExternal("w.data", "4", "16");
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_THAT(Elements(graph->initializers.at("w"), 4), ElementsAre(1, 2, 3, 4));
  EXPECT_TRUE(ReadExternal("w.data", "0").ok());
}

// The messages, the numbers of the other tensors, and twenty bytes of a file beside.
TEST_F(ExternalDataTest, IsCountedInBeforeItIsRead) {
  const auto plenty = std::make_shared<MemoryBudget>(1 << 20);
  MemoryShare numbers(plenty);
  ASSERT_TRUE(ReadExternal("w.data", "4", "16", &numbers).ok());
  EXPECT_GE(numbers.bytes(), 4 * 4);
  EXPECT_EQ(plenty->used(), numbers.bytes()) << "the file and the messages are gone";

  OnnxModel model = Valid();
  SetExternal(W(model), "w.data", "4", "16");
  const int64_t messages = *program::CheckOnnxWire(model.Bytes(), {});
  for (const int64_t limit : {messages - 1, messages + 4 * 4, messages + 20 + 4 * 4 - 1}) {
    const auto budget = std::make_shared<MemoryBudget>(limit);
    MemoryShare share(budget);
    ExpectError(ReadExternal("w.data", "4", "16", &share), StatusCode::kResourceExhausted,
                "the memory of this process leaves");
  }
}

TEST_F(ExternalDataTest, IsRefusedElsewhere) {
  for (const char* location : {"/etc/passwd", "../w.data", "sub/w.data", "", ".", "..", "a\\b"}) {
    ExpectError(ReadExternal(location), StatusCode::kInvalidArgument,
                "expected the name of a file in the same folder");
  }
  ExpectError(ReadExternal("link.data"), StatusCode::kInvalidArgument, "symbolic link");
  ExpectError(ReadExternal("gone.data"), StatusCode::kNotFound, "gone.data");
}

TEST_F(ExternalDataTest, IsRefusedBeyondTheFile) {
  ExpectError(ReadExternal("w.data", "8"), StatusCode::kInvalidArgument,
              "16 bytes at offset 8, but \"w.data\" has 20 bytes");
  ExpectError(ReadExternal("w.data", "9223372036854775807"), StatusCode::kInvalidArgument,
              "at offset 9223372036854775807");
  ExpectError(ReadExternal("w.data", "9223372036854775808"), StatusCode::kInvalidArgument,
              "offset: expected a number below 2^63");
  ExpectError(ReadExternal("w.data", "-1"), StatusCode::kInvalidArgument, "got \"-1\"");
  ExpectError(ReadExternal("w.data", "4", "8"), StatusCode::kInvalidArgument,
              "external data of 8 bytes; the shape needs 16");
}

TEST_F(ExternalDataTest, IsOfOneFile) {
  std::filesystem::copy(folder_ / "w.data", folder_ / "v.data");
  OnnxModel model = Valid();
  SetExternal(W(model), "w.data");
  model.Floats("v", {1}, {});
  SetExternal(*model.graph().mutable_initializer(1), "v.data");
  ExpectError(ReadOnnxGraph(model.Bytes(), folder_.string()), StatusCode::kInvalidArgument,
              "one file is taken");
}

}  // namespace
}  // namespace deeppcr::testing
