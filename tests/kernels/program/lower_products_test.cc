// SPDX-License-Identifier: Apache-2.0
// Matrix products and Einstein sums of ONNX graphs, by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/kernels/program/lowered.h"

namespace deeppcr::testing {
namespace {

using program::Op;
using program::Program;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(LowerProductsTest, WritesGemmAsOneLayerOfTheFilesWeights) {
  OnnxModel model = Of({2});
  model.Floats("w", {3, 2}, {1, 2, 3, 4, 5, 6}).Floats("b", {3}, {10, 20, 30});
  model.Node("Gemm", {"x", "w", "b"}, {"y"}).Int("transB", 1);
  EXPECT_THAT(Say(model, {1, -1}), ElementsAre(9, 19, 29));
  const Program lowered = MustLower(model);
  ASSERT_EQ(lowered.instructions.size(), 1u);
  EXPECT_EQ(lowered.instructions[0].linear.rows, 3);
  EXPECT_NE(lowered.instructions[0].linear.bias, nullptr);
}

TEST(LowerProductsTest, ScalesGemmAndTakesAConstantOnTheLeft) {
  OnnxModel scaled = Of({2});
  scaled.Floats("w", {2, 2}, {1, 2, 3, 4}).Floats("b", {1}, {10});
  scaled.Node("Gemm", {"x", "w", "b"}, {"y"}).Float("alpha", 2).Float("beta", 0.5F);
  EXPECT_THAT(Say(scaled, {1, 1}), ElementsAre(13, 17));
  OnnxModel left = Of({2});
  left.Floats("w", {3, 2}, {1, 2, 3, 4, 5, 6});
  left.Node("Transpose", {"x"}, {"column"}).Node("MatMul", {"w", "column"}, {"y"});
  EXPECT_THAT(Say(left, {1, -1}), ElementsAre(-1, -1, -1));
  EXPECT_EQ(CountOf(MustLower(left), Op::kLinear), 1);
  EXPECT_EQ(MustLower(left).instructions.size(), 1u) << "a column's elements are a row's";
}

TEST(LowerProductsTest, RepeatsALayerForTheRowsOfASample) {
  OnnxModel model = Of({2, 2});
  model.Floats("w", {2, 3}, {1, 0, 1, 0, 1, 1});
  model.Node("MatMul", {"x", "w"}, {"y"});
  EXPECT_THAT(Say(model, {1, 2, 3, 4}), ElementsAre(1, 2, 3, 3, 4, 7));
  EXPECT_EQ(MustLower(model).instructions[0].linear.repeat, 2);
}

TEST(LowerProductsTest, MultipliesTheStateByAMatrixOfTheCondition) {
  OnnxModel model = Of({2});
  model.Input("c", {-1, 2, 2}).Node("MatMul", {"x3", "c"}, {"y"});
  model.Ints("axis", {1}, {1}).Node("Unsqueeze", {"x", "axis"}, {"x3"});
  const Program lowered = MustLower(model, {.state = "x", .condition = "c"});
  const std::vector<double> matrix = {1, 2, 3, 4};
  EXPECT_THAT(Predict(lowered, {.condition = matrix}, {1, -1}), ElementsAre(-2, -2));
}

TEST(LowerProductsTest, SumsByEinstein) {
  OnnxModel outer = Of({2});
  outer.Floats("f", {3}, {1, 2, 3}).Ints("list", {1}, {2});
  outer.Node("Reshape", {"x", "list"}, {"v"});
  outer.Node("Einsum", {"v", "f"}, {"y"}).String("equation", "i,j->ij");
  EXPECT_THAT(Say(outer, {1, -1}), ElementsAre(1, 2, 3, -1, -2, -3));
  OnnxModel layer = Of({2});
  layer.Floats("w", {3, 2}, {1, 2, 3, 4, 5, 6});
  layer.Node("Einsum", {"x", "w"}, {"y"}).String("equation", "bi, oi -> bo");
  EXPECT_THAT(Say(layer, {1, -1}), ElementsAre(-1, -1, -1));
  EXPECT_EQ(CountOf(MustLower(layer), Op::kLinear), 1);
}

TEST(LowerProductsTest, SumsByEinsteinOverAxesThatAnEllipsisStandsFor) {
  const auto einsum = [](const std::string& equation) {
    OnnxModel model = Of({2});
    model.Floats("f", {3}, {1, 2, 3}).Floats("w", {3, 2}, {1, 2, 3, 4, 5, 6});
    model.Node("Einsum", {"x", equation.find('j') == std::string::npos ? "w" : "f"}, {"y"})
        .String("equation", equation);
    return model;
  };
  EXPECT_THAT(Say(einsum("...i,j->...ij"), {1, -1}), ElementsAre(1, 2, 3, -1, -2, -3));
  EXPECT_THAT(Say(einsum("...i,oi->...o"), {1, -1}), ElementsAre(-1, -1, -1));
  EXPECT_THAT(Say(einsum("...i,oi"), {1, -1}), ElementsAre(-1, -1, -1));
  EXPECT_THAT(Say(einsum("...,...->..."), {1, -1}), ElementsAre(1, -2, 3, -4, 5, -6));
  for (const std::string equation : {"....i,oi->...o", "...i...,oi->...o", "...bai,oi->...o"}) {
    EXPECT_THAT(LowerBytes(einsum(equation).Bytes(), kState).status().message(),
                HasSubstr("attribute equation"))
        << equation;
  }
}

}  // namespace
}  // namespace deeppcr::testing
