// SPDX-License-Identifier: Apache-2.0
// Graphs whose initialisers stay values: what they say, and what they are differentiated by.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "kernels/program/program.h"
#include "tests/kernels/program/lowered.h"
#include "tests/kernels/program/parameter_differences.h"

namespace deeppcr::testing {
namespace {

using program::Compared;
using program::OnnxInputs;
using program::Program;
using program::Steps;

constexpr int64_t kDim = 4;

std::vector<float> Drawn(int64_t n, int seed) {
  std::vector<float> values;
  for (int64_t i = 0; i < n; ++i)
    values.push_back(0.6F * std::sin(1.0F + static_cast<float>(37 * seed) + 2.3F * i));
  return values;
}

// A graph of a state x, a time t, a condition c and a class k, those of them that it reads.
struct Graph {
  OnnxModel model;
  OnnxInputs inputs = {.state = "x"};
  int parameters = 0;

  explicit Graph(const Shape& shape = {kDim}) : model(Of(shape)) {}
  Graph& Time() {
    model.Input("t", {-1, 1});
    inputs.time = "t";
    return *this;
  }
  Graph& Condition(int64_t size) {
    model.Input("c", {-1, size});
    inputs.condition = "c";
    return *this;
  }
  Graph& Label() {
    model.Input("k", {-1}, onnx::TensorProto::INT64);
    inputs.label = "k";
    return *this;
  }
  Graph& Parameter(const std::string& name, const Shape& shape) {
    int64_t size = 1;
    for (const int64_t extent : shape) size *= extent;
    model.Floats(name, shape, Drawn(size, ++parameters));
    inputs.parameters[name] = parameters - 1;
    return *this;
  }
  Graph& Node(const std::string& op, const std::vector<std::string>& in, const std::string& out) {
    model.Node(op, in, {out});
    return *this;
  }
};

// Compares the program with that of constants, and its gradients with differences.
void Check(const Graph& graph) {
  Program with = MustLower(graph.model, graph.inputs);
  OnnxInputs plain = graph.inputs;
  plain.parameters.clear();
  const Program without = MustLower(graph.model, plain);
  ASSERT_NE(with.prediction, program::kNoValue);
  ASSERT_EQ(std::ssize(with.parameters), graph.parameters);
  const program::RandomInputs random(with, 3);
  const std::vector<double> said = Predict(with, random.inputs(), random.state());
  const std::vector<double> expected = Predict(without, random.inputs(), random.state());
  ASSERT_EQ(said.size(), expected.size());
  for (size_t i = 0; i < said.size(); ++i)
    EXPECT_NEAR(said[i], expected[i], 1e-6 * (1 + std::fabs(expected[i]))) << i;
  with.output = with.prediction;
  const Steps steps(with, 18, 4);
  const program::Sums sums = program::Gradients(with, steps);
  for (const std::vector<float>& tensor : sums) EXPECT_GT(program::NormOf(tensor), 0);
  Compared compared;
  program::ExpectDifferences(with, steps, sums, &compared);
  EXPECT_EQ(compared.bent, 0);
}

TEST(LowerParametersTest, OfMatMulAndGemm) {
  Check(Graph().Parameter("w", {kDim, 3}).Node("MatMul", {"x", "w"}, "y"));
  Graph gemm;
  gemm.Parameter("w", {3, kDim}).Parameter("b", {3}).Node("Gemm", {"x", "w", "b"}, "y");
  gemm.model.Int("transB", 1).Float("alpha", 2).Float("beta", 0.5F);
  Check(gemm);
  Graph rows({3, kDim});
  Check(rows.Parameter("w", {kDim, 2}).Node("MatMul", {"x", "w"}, "y"));
  Graph left({kDim, 3});
  Check(left.Parameter("w", {2, kDim}).Node("MatMul", {"w", "x"}, "y"));
}

TEST(LowerParametersTest, OfSumsProductsAndPowers) {
  Graph graph;
  graph.Parameter("a", {kDim}).Parameter("b", {1, kDim}).Parameter("s", {1});
  graph.Node("Add", {"x", "a"}, "sum").Node("Mul", {"sum", "b"}, "product");
  graph.Node("Div", {"product", "s"}, "ratio").Node("Sub", {"ratio", "a"}, "less");
  Check(graph.Node("Tanh", {"less"}, "y"));
}

TEST(LowerParametersTest, OfNorms) {
  Graph graph;
  graph.Parameter("w", {kDim}).Parameter("b", {kDim});
  Check(graph.Node("LayerNormalization", {"x", "w", "b"}, "y"));
  Graph channels({kDim, 3});
  channels.Parameter("w", {kDim}).Parameter("b", {kDim});
  Check(channels.Node("InstanceNormalization", {"x", "w", "b"}, "y"));
}

TEST(LowerParametersTest, OfTablesByClassTimeAndPlace) {
  Graph by_class;
  by_class.Label().Parameter("table", {7, kDim}).Node("Gather", {"table", "k"}, "row");
  Check(by_class.Node("Mul", {"row", "x"}, "y"));
  Graph by_place;
  by_place.Parameter("table", {3, kDim});
  by_place.model.Ints("place", {1}, {2});
  Check(by_place.Node("Gather", {"table", "place"}, "row").Node("Mul", {"row", "x"}, "y"));
}

TEST(LowerParametersTest, OfWhatTheTimeAndAConditionAlonePassThrough) {
  Graph graph;
  graph.Time().Condition(3);
  graph.Parameter("time1", {1, 5}).Parameter("time2", {5, kDim}).Parameter("cond", {3, kDim});
  graph.Node("MatMul", {"t", "time1"}, "t1").Node("Sin", {"t1"}, "t2");
  graph.Node("MatMul", {"t2", "time2"}, "t3").Node("Tanh", {"t3"}, "t4");
  graph.Node("MatMul", {"c", "cond"}, "c1").Node("Tanh", {"c1"}, "c2");
  graph.Node("Mul", {"t4", "c2"}, "tc").Node("Mul", {"tc", "x"}, "scaled");
  Check(graph.Node("Add", {"scaled", "c2"}, "y"));
}

TEST(LowerParametersTest, OfOneMatrixAsItIsAndTransposed) {
  Graph graph;
  graph.Parameter("w", {kDim, kDim}).Node("MatMul", {"x", "w"}, "h").Node("Tanh", {"h"}, "a");
  graph.Node("Transpose", {"w"}, "turned").Node("MatMul", {"a", "turned"}, "b");
  graph.Node("Gemm", {"a", "w"}, "c");
  graph.model.Int("transB", 1);
  Check(graph.Node("Mul", {"b", "c"}, "y"));
}

TEST(LowerParametersTest, OfAMatrixThatIsAProductOfTwo) {
  Graph graph;
  graph.Parameter("a", {kDim, 2}).Parameter("b", {2, kDim}).Parameter("w", {kDim, kDim});
  graph.Node("MatMul", {"a", "b"}, "low").Node("Add", {"w", "low"}, "sum");
  Check(graph.Node("MatMul", {"x", "sum"}, "y"));
}

}  // namespace
}  // namespace deeppcr::testing
