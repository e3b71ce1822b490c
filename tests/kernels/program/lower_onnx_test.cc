// SPDX-License-Identifier: Apache-2.0
// What operators mean, by hand, and what LowerOnnx refuses. ONNX's own tests of all operators are
// onnx_nodes_test.cc's.
#include "kernels/program/lower_onnx.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "kernels/base/strings.h"
#include "tests/kernels/program/lowered.h"
#include "tests/testing/expect_error.h"
#include "tests/testing/onnx_model.h"

namespace deeppcr::testing {
namespace {

using absl::StatusCode;
using onnx::TensorProto;
using program::OnnxInputs;
using program::Op;
using program::Program;
using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pointwise;

// PyTorch's cos of integers is a float; its exporter takes the result for integers, as here.
TEST(LowerOnnxTest, FunctionsOfIntegersAreFloats) {
  const auto embed = [](const std::string& added) {
    OnnxModel model = Of({1});
    model.Input("t", {-1}, TensorProto::INT64).Floats("half", {1}, {0.5F});
    model.Ints("whole", {1}, {3}).Node("Cos", {"t"}, {"c"});
    model.Node("Add", {"c", added}, {"s"}).Node("Add", {"x", "s"}, {"y"});
    return LowerBytes(model.Bytes(), {.state = "x", .time = "t"});
  };
  const auto lowered = embed("half");
  ASSERT_TRUE(lowered.ok()) << lowered.status();
  EXPECT_THAT(Predict(*lowered, {.time = 1}, {0}),
              ElementsAre(DoubleNear(std::cos(1) + 0.5, 1e-12)));
  EXPECT_THAT(embed("whole").status().message(), HasSubstr("operands of different types"));
}

struct MapCase {
  std::string op;
  std::vector<double> expected;  // of -2, -0.5, 0.5, 2
  std::function<void(OnnxModel&)> attributes = [](OnnxModel&) {};
};

TEST(LowerOnnxTest, WritesActivationsByTheirFormulas) {
  const double e = std::exp(-2.0) - 1, f = std::exp(-0.5) - 1;
  const double lambda = 1.05070102214813232421875, alpha = 1.67326319217681884765625;
  const MapCase cases[] = {
      {"LeakyRelu", {-0.5, -0.125, 0.5, 2}, [](OnnxModel& m) { m.Float("alpha", 0.25F); }},
      {"Elu", {e, f, 0.5, 2}},
      {"Selu", {lambda * alpha * e, lambda * alpha * f, lambda * 0.5, lambda * 2}},
      {"Celu",
       {2 * (std::exp(-1.0) - 1), 2 * (std::exp(-0.25) - 1), 0.5, 2},
       [](OnnxModel& m) { m.Float("alpha", 2); }},
      {"Softsign", {-2.0 / 3, -1.0 / 3, 1.0 / 3, 2.0 / 3}},
      {"HardSigmoid", {0.25, 0.4375, 0.5625, 0.75}, [](OnnxModel& m) { m.Float("alpha", 0.125F); }},
      {"HardSwish", {-1.0 / 3, -0.5 * (0.5 - 0.5 / 6), 0.5 * (0.5 + 0.5 / 6), 2 * 5.0 / 6}},
      {"ThresholdedRelu", {0, 0, 0, 2}},
      {"Ceil", {-2, 0, 1, 2}},
      {"Round", {-2, 0, 0, 2}},
      {"Sign", {-1, -1, 1, 1}},
  };
  for (const MapCase& tried : cases) {
    OnnxModel model = Of({4});
    model.Node(tried.op, {"x"}, {"y"});
    tried.attributes(model);
    EXPECT_THAT(Say(model, {-2, -0.5, 0.5, 2}), Pointwise(DoubleNear(1e-15), tried.expected))
        << tried.op;
  }
}

TEST(LowerOnnxTest, RoundsTheMiddleToEven) {
  OnnxModel model = Of({6});
  model.Node("Round", {"x"}, {"y"});
  EXPECT_THAT(Say(model, {-2.5, -1.5, 0.5, 1.5, 2.5, 0.49999999999999994}),
              ElementsAre(-2, -2, 0, 2, 2, 0));
}

TEST(LowerOnnxTest, DividesIntegersTowardsZero) {
  OnnxModel model = Of({4});
  model.Ints("three", {}, {3}).Node("Cast", {"x"}, {"i"}).Int("to", TensorProto::INT64);
  model.Node("Div", {"i", "three"}, {"q"});
  model.Node("Cast", {"q"}, {"y"}).Int("to", TensorProto::FLOAT);
  EXPECT_THAT(Say(model, {-7, -1.9, 7.9, 9}), ElementsAre(-2, 0, 2, 3));
}

TEST(LowerOnnxTest, TakesBoundsOfClipsWhereTheirVersionsHaveThem) {
  OnnxModel attributes = Of({2}, 10);
  attributes.Node("Clip", {"x"}, {"y"}).Float("min", -1).Float("max", 1);
  EXPECT_THAT(Say(attributes, {-3, 0.5}), ElementsAre(-1, 0.5));
  OnnxModel inputs = Of({2}, 11);
  inputs.Floats("most", {}, {1}).Node("Clip", {"x", "", "most"}, {"y"});
  EXPECT_THAT(Say(inputs, {-3, 5}), ElementsAre(-3, 1));
  OnnxModel both = Of({2}, 11);
  both.Node("Clip", {"x"}, {"y"}).Float("min", -1);
  ExpectError(LowerBytes(both.Bytes(), kState), StatusCode::kInvalidArgument,
              "attribute \"min\" is not taken at opset 11");
}

TEST(LowerOnnxTest, TakesSoftmaxOverAllLaterAxesBeforeThirteen) {
  OnnxModel old = Of({2, 2}, 11);
  old.Node("Softmax", {"x"}, {"y"});
  EXPECT_THAT(Say(old, {0, 0, 0, 0}), ElementsAre(0.25, 0.25, 0.25, 0.25));
  OnnxModel later = Of({2, 2}, 13);
  later.Node("Softmax", {"x"}, {"y"});
  EXPECT_THAT(Say(later, {0, 0, 0, 0}), ElementsAre(0.5, 0.5, 0.5, 0.5));
}

TEST(LowerOnnxTest, ReducesAxesThatAreNoNeighbours) {
  OnnxModel model = Of({2, 2, 2}, 13);
  model.Ints("axes", {2}, {1, 3}).Node("ReduceSum", {"x", "axes"}, {"y"}).Int("keepdims", 0);
  EXPECT_THAT(Say(model, {1, 2, 3, 4, 5, 6, 7, 8}), ElementsAre(1 + 2 + 5 + 6, 3 + 4 + 7 + 8));
}

TEST(LowerOnnxTest, FoldsWhatExportersComputeFromShapes) {
  OnnxModel model = Of({2, 3});
  model.Ints("one", {}, {1}).Ints("two", {1}, {2}).Ints("axis", {1}, {0});
  model.Node("Shape", {"x"}, {"shape"}).Node("Gather", {"shape", "one"}, {"rows"});
  model.Node("Unsqueeze", {"rows", "axis"}, {"list"});
  model.Node("Mul", {"list", "two"}, {"four"}).Node("Sub", {"four", "two"}, {"ends"});
  model.Node("Slice", {"x", "axis", "ends", "two"}, {"y"});
  EXPECT_THAT(Say(model, {1, 2, 3, 4, 5, 6}), ElementsAre(1, 2, 4, 5));
  EXPECT_EQ(MustLower(model).instructions.size(), 1u);
}

TEST(LowerOnnxTest, TakesBoundsAtTheEndsOf64Bits) {
  OnnxModel model = Of({4});
  model.Ints("start", {1}, {-1}).Ints("end", {1}, {std::numeric_limits<int64_t>::min()});
  model.Ints("axis", {1}, {1}).Ints("step", {1}, {-2});
  model.Node("Slice", {"x", "start", "end", "axis", "step"}, {"y"});
  EXPECT_THAT(Say(model, {1, 2, 3, 4}), ElementsAre(4, 2));
}

TEST(LowerOnnxTest, WritesNothingForShapesAlone) {
  OnnxModel model = Of({2, 2});
  model.Ints("list", {2}, {0, -1}).Ints("axis", {1}, {1});
  model.Node("Reshape", {"x", "list"}, {"a"}).Node("Unsqueeze", {"a", "axis"}, {"b"});
  model.Node("Flatten", {"b"}, {"c"}).Node("Dropout", {"c"}, {"d", "mask"});
  model.Node("Cast", {"d"}, {"e"}).Int("to", TensorProto::DOUBLE).Node("Identity", {"e"}, {"y"});
  EXPECT_THAT(Say(model, {1, 2, 3, 4}), ElementsAre(1, 2, 3, 4));
  EXPECT_TRUE(MustLower(model).instructions.empty());
}

TEST(LowerOnnxTest, LeavesOutWhatThePredictionDoesNotNeed) {
  OnnxModel model = Of({2});
  model.Node("Relu", {"x"}, {"y"}).Node("NonZero", {"x"}, {"unread"});
  EXPECT_THAT(Say(model, {-1, 1}), ElementsAre(0, 1));
}

TEST(LowerOnnxTest, TakesTimeOfEveryShapeAndType) {
  for (const Shape& shape : {Shape{}, Shape{1}, Shape{-1}, Shape{-1, 1}}) {
    for (const int32_t type : {TensorProto::FLOAT, TensorProto::INT64, TensorProto::INT32}) {
      OnnxModel model = Of({2});
      model.Input("t", shape, type).Node("Cast", {"t"}, {"f"}).Int("to", TensorProto::FLOAT);
      model.Node("Add", {"x", "f"}, {"y"});
      const Program lowered = MustLower(model, {.state = "x", .time = "t"});
      EXPECT_THAT(Predict(lowered, {.time = 7}, {1, 2}), ElementsAre(8, 9));
    }
  }
}

TEST(LowerOnnxTest, LooksUpLabelsAndTimes) {
  OnnxModel model = Of({2});
  model.Input("t", {-1}, TensorProto::INT64).Input("c", {-1}, TensorProto::INT64);
  model.Floats("rows", {3, 2}, {1, 2, 3, 4, 5, 6}).Floats("list", {4}, {0, 10, 20, 30});
  model.Node("Gather", {"rows", "c"}, {"row"});
  model.Node("GatherElements", {"list", "t"}, {"element"});
  model.Node("Add", {"row", "element"}, {"sum"}).Node("Add", {"x", "sum"}, {"y"});
  const Program lowered = MustLower(model, {.state = "x", .time = "t", .label = "c"});
  EXPECT_THAT(Predict(lowered, {.time = 3, .label = 2}, {0, 0}), ElementsAre(35, 36));
  EXPECT_EQ(CountOf(lowered, Op::kLookup), 2);
}

// From opset 11 on, a negative index counts from the end.
TEST(LowerOnnxTest, MarksTheClassOfAnIndex) {
  for (const int64_t opset : {9, 11}) {
    OnnxModel model = Of({3}, opset);
    model.Ints("indices", {4}, {0, -1, 2, -4}).Ints("depth", {}, {3});
    model.Floats("off and on", {2}, {-1, 5});
    model.Node("OneHot", {"indices", "depth", "off and on"}, {"rows"});
    model.Node("Mul", {"rows", "x"}, {"product"}).Node("ReduceSum", {"product"}, {"y"});
    const std::vector<double> of_rows = Say(model, {1, 10, 100});
    // Rows 0 to 3, of which the second is the last class's from opset 11 on, and the fourth none's.
    const double second = opset < 11 ? -111 : 489;
    EXPECT_THAT(of_rows, ElementsAre(-105 + second + 489 - 111)) << opset;
  }
}

TEST(LowerOnnxTest, NamesValuesByTheGraphs) {
  OnnxModel model = Of({2});
  model.Node("Relu", {"x"}, {"hidden"}).Node("Neg", {"hidden"}, {"y"});
  const Program lowered = MustLower(model);
  EXPECT_EQ(lowered.at(lowered.prediction).name, "y");
  EXPECT_EQ(lowered.at(lowered.instructions[0].result).name, "hidden");
}

struct RefusedModel {
  std::string name;
  std::function<void(OnnxModel&)> build;  // from x, [batch, 2], to y
  std::string message_part;
  StatusCode code = StatusCode::kInvalidArgument;
};

const std::vector<RefusedModel>& RefusedModels() {
  static const std::vector<RefusedModel> cases = {
      {"UnknownOperator", [](OnnxModel& m) { m.Node("Frobnicate", {"x"}, {"y"}); },
       "node \"y\" (\"Frobnicate\"): the operator is not taken; those that are: Abs, Add, And"},
      {"UnknownDomain",
       [](OnnxModel& m) {
         m.Node("Gelu", {"x"}, {"y"});
         m.last_node().set_domain("com.microsoft");
       },
       "operators of domain \"com.microsoft\" are not taken"},
      {"Convolution",
       [](OnnxModel& m) {
         m.Node("Conv", {"x", "x"}, {"y"});
       },
       "convolutions"},
      {"Lstm",
       [](OnnxModel& m) {
         m.Node("LSTM", {"x", "x", "x"}, {"y"});
       },
       "the step is the recurrence"},
      {"Loop",
       [](OnnxModel& m) {
         m.Node("Loop", {"x", "x"}, {"y"});
       },
       "control flow"},
      {"Random", [](OnnxModel& m) { m.Node("RandomNormalLike", {"x"}, {"y"}); },
       "export the module in eval mode"},
      {"DataDependentShape", [](OnnxModel& m) { m.Node("NonZero", {"x"}, {"y"}); },
       "shapes and places that depend on data"},
      {"ProductOfStates",
       [](OnnxModel& m) {
         m.Node("Transpose", {"x"}, {"t"}).Node("MatMul", {"x", "t"}, {"y"});
       },
       "two matrices that both depend on the state"},
      {"ProductThatDoesNotFit",
       [](OnnxModel& m) {
         m.Floats("w", {3, 2}, {1, 2, 3, 4, 5, 6}).Node("MatMul", {"x", "w"}, {"y"});
       },
       "a product of shapes [1, 2] and [3, 2]"},
      {"InfiniteWeight",
       [](OnnxModel& m) {
         m.Floats("w", {2, 2}, {1, 2, 3, INFINITY}).Node("MatMul", {"x", "w"}, {"y"});
       },
       "a weight is not finite"},
      {"NewerThanTheFile", [](OnnxModel& m) { m.Node("Gelu", {"x"}, {"y"}); },
       "taken from opset 20 on; the file has opset 17"},
      {"UnknownAttribute", [](OnnxModel& m) { m.Node("Relu", {"x"}, {"y"}).Int("inplace", 1); },
       "attribute \"inplace\" is not taken"},
      {"AttributeOfWrongType",
       [](OnnxModel& m) { m.Node("LeakyRelu", {"x"}, {"y"}).Int("alpha", 1); },
       "attribute alpha: expected a float"},
      {"NanAttribute", [](OnnxModel& m) { m.Node("LeakyRelu", {"x"}, {"y"}).Float("alpha", NAN); },
       "attribute alpha: expected a finite float"},
      {"TooFewInputs", [](OnnxModel& m) { m.Node("Add", {"x"}, {"y"}); }, "input 1 is missing"},
      {"LeftOutInput",
       [](OnnxModel& m) {
         m.Node("Add", {"", "x"}, {"y"});
       },
       "input 0 is missing"},
      {"TooManyInputs",
       [](OnnxModel& m) {
         m.Node("Neg", {"x", "x"}, {"y"});
       },
       "2 inputs; at most 1 are expected"},
      {"DifferentTypes",
       [](OnnxModel& m) {
         m.Ints("one", {1}, {1}).Node("Add", {"x", "one"}, {"y"});
       },
       "operands of different types, float and integer"},
      {"MaskOfDropout",
       [](OnnxModel& m) {
         m.Node("Dropout", {"x"}, {"d", "mask"}).Node("Where", {"mask", "x", "d"}, {"y"});
       },
       "its input \"mask\" is an output that is not computed here"},
      {"TrainingDropout",
       [](OnnxModel& m) {
         m.Floats("r", {}, {0.5F}).Ints("train", {}, {1});
         m.Node("Dropout", {"x", "r", "train"}, {"y"});
       },
       "export the module in eval mode"},
      {"ShapeOfState",
       [](OnnxModel& m) {
         m.Node("Cast", {"x"}, {"i"}).Int("to", TensorProto::INT64);
         m.Node("Reshape", {"x", "i"}, {"y"});
       },
       "input 1, the shape, depends on the graph's inputs"},
      {"IndexOfState",
       [](OnnxModel& m) {
         m.Floats("rows", {3, 1}, {1, 2, 3});
         m.Node("Cast", {"x"}, {"i"}).Int("to", TensorProto::INT64);
         m.Node("Gather", {"rows", "i"}, {"y"});
       },
       "indices that depend on the state"},
      {"IndexBeyond",
       [](OnnxModel& m) {
         m.Ints("i", {1}, {2}).Node("Gather", {"x", "i"}, {"y"}).Int("axis", 1);
       },
       "the indices: 2 of 2 elements"},
      {"HalfPrecision",
       [](OnnxModel& m) { m.Node("Cast", {"x"}, {"y"}).Int("to", TensorProto::FLOAT16); },
       "export in float32"},
      {"NanByFolding",
       [](OnnxModel& m) {
         m.Floats("zero", {1}, {0}).Node("Div", {"zero", "zero"}, {"nan"});
         m.Node("Add", {"x", "nan"}, {"y"});
       },
       "a constant is not a number"},
      {"IntegerBeyond",
       [](OnnxModel& m) {
         m.Ints("big", {1}, {1LL << 40}).Node("Mul", {"big", "big"}, {"y"});
       },
       "an integer constant beyond 2^53"},
      {"AxisBeyond", [](OnnxModel& m) { m.Node("Softmax", {"x"}, {"y"}).Int("axis", 2); },
       "axis 2 of a tensor of rank 2"},
      {"AxisTwice",
       [](OnnxModel& m) {
         m.Ints("axes", {2}, {1, -1}).Node("ReduceSum", {"x", "axes"}, {"y"});
       },
       "an axis comes twice"},
      {"PermutationWithHoles",
       [](OnnxModel& m) {
         m.Node("Transpose", {"x"}, {"y"}).IntList("perm", {1, 1});
       },
       "an axis comes twice"},
      {"NegativeShape",
       [](OnnxModel& m) {
         m.Ints("s", {2}, {-3, -7}).Node("Expand", {"x", "s"}, {"y"});
       },
       "has a negative extent"},
      {"TwoOpenExtents",
       [](OnnxModel& m) {
         m.Ints("s", {2}, {-1, -1}).Node("Reshape", {"x", "s"}, {"y"});
       },
       "has a negative extent"},
      {"ShapeOfOtherSize",
       [](OnnxModel& m) {
         m.Ints("s", {1}, {3}).Node("Reshape", {"x", "s"}, {"y"});
       },
       "shape [1, 2] cannot be seen as [3]"},
      {"HugeExpand",
       [](OnnxModel& m) {
         m.Ints("s", {3}, {1 << 20, 1 << 20, 2}).Node("Expand", {"x", "s"}, {"y"});
       },
       "shapes grow far beyond the file's constants", StatusCode::kResourceExhausted},
      {"OverflowingExpand",
       [](OnnxModel& m) {
         m.Ints("s", {3}, {1LL << 40, 1LL << 40, 2}).Node("Expand", {"x", "s"}, {"y"});
       },
       "overflows 64 bits"},
      {"HugeTile",
       [](OnnxModel& m) {
         m.Ints("r", {2}, {1LL << 62, 2}).Node("Tile", {"x", "r"}, {"y"});
       },
       "overflows 64 bits"},
      {"HugeConstant",
       [](OnnxModel& m) {
         m.Ints("s", {2}, {1 << 20, 1 << 20}).Node("ConstantOfShape", {"s"}, {"c"});
         m.Node("Add", {"x", "c"}, {"y"});
       },
       "shapes grow far beyond", StatusCode::kResourceExhausted},
      {"HugeRange",
       [](OnnxModel& m) {
         m.Floats("zero", {}, {0}).Floats("many", {}, {9e8F}).Floats("one", {}, {1});
         m.Node("Range", {"zero", "many", "one"}, {"r"}).Node("ReduceSum", {"r"}, {"s"});
         m.Node("Add", {"x", "s"}, {"y"});
       },
       "shapes grow far beyond", StatusCode::kResourceExhausted},
      {"EndlessRange",
       [](OnnxModel& m) {
         m.Floats("zero", {}, {0}).Floats("one", {}, {1});
         m.Node("Range", {"zero", "one", "zero"}, {"y"});
       },
       "a range from 0 to 1 with step 0"},
      {"HugePads",
       [](OnnxModel& m) {
         m.Ints("p", {4}, {0, 1LL << 62, 0, 1LL << 62}).Node("Pad", {"x", "p"}, {"y"});
       },
       "pads beyond 2^40"},
      {"LeastPads",
       [](OnnxModel& m) {
         m.Ints("p", {4}, {0, std::numeric_limits<int64_t>::min(), 0, 2});
         m.Node("Pad", {"x", "p"}, {"y"});
       },
       "pads beyond 2^40"},
      {"HugeExtentsBesideZero",
       [](OnnxModel& m) {
         m.Ints("s", {3}, {0, 1LL << 40, 1LL << 40}).Node("ConstantOfShape", {"s"}, {"c"});
         m.Node("Transpose", {"c"}, {"y"});
       },
       "overflows 64 bits"},
      {"RankNine",
       [](OnnxModel& m) {
         m.Ints("axes", {7}, {0, 1, 2, 3, 4, 5, 6}).Node("Unsqueeze", {"x", "axes"}, {"y"});
       },
       "a result of rank 9"},
      {"GroupsThatDoNotFit",
       [](OnnxModel& m) {
         m.proto.mutable_opset_import(0)->set_version(21);
         m.Floats("w", {2}, {1, 1});
         m.Node("GroupNormalization", {"x", "w", "w"}, {"y"}).Int("num_groups", 3);
       },
       "3 groups of 2 channels"},
      {"BatchStatistics",
       [](OnnxModel& m) {
         m.Floats("w", {2}, {1, 1});
         m.Node("BatchNormalization", {"x", "w", "w", "w", "w"}, {"y"}).Int("training_mode", 1);
       },
       "export the module in eval mode"},
  };
  return cases;
}

class RefusedModelTest : public ::testing::TestWithParam<RefusedModel> {};

TEST_P(RefusedModelTest, IsRefusedWithItsReason) {
  OnnxModel model = Of({2});
  GetParam().build(model);
  ExpectError(LowerBytes(model.Bytes(), kState), GetParam().code, GetParam().message_part);
}

INSTANTIATE_TEST_SUITE_P(All, RefusedModelTest, ::testing::ValuesIn(RefusedModels()),
                         [](const auto& tested) { return tested.param.name; });

TEST(LowerOnnxTest, EndsGraphsThatDoubleATensorAgainAndAgain) {
  OnnxModel model = Of({2});
  std::string last = "x";
  for (int i = 0; i < 60; ++i) {
    const std::string next = i == 59 ? "y" : StrCat("v", i);
    model.Node("Concat", {last, last}, {next}).Int("axis", 1);
    last = next;
  }
  ExpectError(LowerBytes(model.Bytes(), kState), StatusCode::kResourceExhausted,
              "1048576 are allowed");
}

OnnxModel WithInput(const std::string& name, const Shape& shape, int32_t type) {
  OnnxModel model = Of({2});
  model.Input(name, shape, type).Node("Relu", {"x"}, {"y"});
  return model;
}

absl::Status RoleStatus(const OnnxModel& model, const OnnxInputs& inputs) {
  return LowerBytes(model.Bytes(), inputs).status();
}

TEST(OnnxInputsTest, RefusesInputsThatDoNotFitTheirRoles) {
  const auto code = StatusCode::kInvalidArgument;
  OnnxModel batch(17);
  batch.Input("x", {4, 2}).Output("y").Node("Relu", {"x"}, {"y"});
  ExpectError(RoleStatus(batch, kState), code,
              "the first axis, the batch, has extent 4; export with a batch of 1, or with "
              "dynamic_axes for axis 0");
  OnnxModel open = Of({2});
  open.graph()
      .mutable_input(0)
      ->mutable_type()
      ->mutable_tensor_type()
      ->mutable_shape()
      ->mutable_dim(1)
      ->set_dim_param("width");
  open.Node("Relu", {"x"}, {"y"});
  ExpectError(RoleStatus(open, kState), code, "axis 1 has no fixed extent (\"width\")");
  const OnnxModel extra = WithInput("c", {-1, 3}, TensorProto::FLOAT);
  ExpectError(RoleStatus(extra, kState), code,
              "input \"c\" is none of state, time, condition and label");
  ExpectError(RoleStatus(extra, {.state = "x", .time = "c"}), code,
              "input \"c\" (time): expected one number, got shape [1, 3]");
  ExpectError(RoleStatus(extra, {.state = "gone", .condition = "c"}), code,
              "the graph has no input \"gone\" for the state; it has \"x\", \"c\"");
  ExpectError(RoleStatus(extra, {.state = "x", .condition = "x"}), code,
              "another role has this input already");
  ExpectError(RoleStatus(extra, {.condition = "c"}), code, "no input is named as the state");
  const OnnxModel label = WithInput("c", {-1}, TensorProto::FLOAT);
  ExpectError(RoleStatus(label, {.state = "x", .label = "c"}), code,
              "elements of type float; expected integer");
  const OnnxModel classes = WithInput("c", {-1, 3}, TensorProto::INT64);
  ExpectError(RoleStatus(classes, {.state = "x", .condition = "c"}), code,
              "elements of type integer; expected float");
  const OnnxModel scalar = WithInput("c", {}, TensorProto::FLOAT);
  ExpectError(RoleStatus(scalar, {.state = "x", .condition = "c"}), code,
              "expected a shape [batch, ..]");
}

TEST(OnnxInputsTest, RefusesOutputsThatAreAmbiguous) {
  OnnxModel model = Of({2});
  model.Output("z").Node("Relu", {"x"}, {"y"}).Node("Neg", {"x"}, {"z"});
  ExpectError(RoleStatus(model, kState), StatusCode::kInvalidArgument,
              "the graph has the outputs \"y\", \"z\"; name the prediction");
  ExpectError(RoleStatus(model, {.state = "x", .prediction = "h"}), StatusCode::kInvalidArgument,
              "the graph has no output \"h\"; it has \"y\", \"z\"");
  const Program lowered = MustLower(model, {.state = "x", .prediction = "z"});
  EXPECT_THAT(Predict(lowered, {}, {1, 2}), ElementsAre(-1, -2));
}

TEST(OnnxOperatorsTest, AreListedOnceEach) {
  const std::string names = program::OnnxOperatorNames();
  EXPECT_THAT(names, HasSubstr("Gemm"));
  std::vector<std::string> list;
  for (size_t at = 0; at < names.size();) {
    const size_t end = std::min(names.find(", ", at), names.size());
    list.push_back(names.substr(at, end - at));
    at = end + 2;
  }
  EXPECT_GT(list.size(), 90u);
  EXPECT_EQ(std::ranges::adjacent_find(list), list.end()) << "sorted: equals are neighbours";
}

}  // namespace
}  // namespace deeppcr::testing
