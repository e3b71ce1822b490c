// SPDX-License-Identifier: Apache-2.0
// Every row of kOps: tangents and cotangents against differences in double.
#include "kernels/program/evaluate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/program/builder.h"

namespace deeppcr::program {
namespace {

using Vector = std::vector<double>;

constexpr int64_t kDim = 12;
constexpr int64_t kSteps = 3;  // of stacked constants
constexpr ReverseStep kReverse = {
    .x0_z = 1.1, .x0_m = -0.7, .z_z = 0.3, .z_m = 0.2, .z_x0 = 0.6, .sigma = 0.5};

struct Random {
  std::mt19937 engine{7};
  double Normal() { return std::normal_distribution<double>()(engine); }
  Vector Normals(int64_t n) {
    Vector x(static_cast<size_t>(n));
    for (double& e : x) e = Normal();
    return x;
  }
};

std::shared_ptr<const std::vector<float>> Weights(Random& random, int64_t n) {
  auto weights = std::make_shared<std::vector<float>>();
  for (int64_t i = 0; i < n; ++i) weights->push_back(static_cast<float>(random.Normal()));
  return weights;
}

// x -> a program in which the operation of `row` is between two linear layers, so that no operand
// is the state itself. Operands of functions that are not defined everywhere are made positive.
Program ProgramOf(const OpRow& row, Random& random) {
  ProgramBuilder builder;
  const ValueId z = *builder.AddState(kDim);
  const auto layer = [&](ValueId from) {
    return *builder.AddLinear(from, {.rows = kDim,
                                     .cols = kDim,
                                     .weight = Weights(random, kDim * kDim),
                                     .bias = Weights(random, kDim)});
  };
  const auto positive = [&](ValueId from) {
    const ValueId one = *builder.AddConstant(Vector(kDim, 1.0));
    const ValueId square = *builder.AddElementwise(Op::kSquare, std::array{from});
    return *builder.AddElementwise(Op::kAdd, std::array{square, one});
  };
  const bool needs_positive = row.op == Op::kSqrt || row.op == Op::kLog || row.op == Op::kPower ||
                              row.op == Op::kReciprocal || row.op == Op::kDivide;
  std::vector<ValueId> operands;
  for (int k = 0; k < (row.operands < 0 ? 2 : row.operands); ++k) {
    operands.push_back(layer(z));
    if (needs_positive) operands.back() = positive(operands.back());
  }
  ValueId result = kNoValue;
  switch (row.kind) {
    case OpKind::kElementwise:
      result = *builder.AddElementwise(row.op, operands);
      break;
    case OpKind::kAlongAxis:
      result = *builder.AddAlongAxis(row.op, operands[0], {2, 3, 2}, 1e-5);
      break;
    case OpKind::kReduction: {
      const ValueId reduced = *builder.AddAlongAxis(row.op, operands[0], {2, 3, 2});
      std::vector<Element> back;
      for (int64_t i = 0; i < kDim; ++i) back.push_back({0, i % 4});
      result = *builder.AddArrange(std::array{reduced}, back);
      break;
    }
    case OpKind::kLinear: {
      const auto weights = Weights(random, 6);
      result = *builder.AddLinear(
          operands[0], {.rows = 2, .cols = 3, .repeat = 4, .weight = weights, .bias = nullptr});
      std::vector<Element> back;
      for (int64_t i = 0; i < kDim; ++i) back.push_back({0, i % 8});
      result = *builder.AddArrange(std::array{result}, back);
      break;
    }
    case OpKind::kProduct: {
      const ValueId matrix = *builder.AddStacked(Weights(random, kSteps * 6), 6);
      const ValueId bias = *builder.AddStacked(Weights(random, kSteps * 2), 2);
      result = *builder.AddProduct(operands[0], matrix, bias,
                                   {.rows = 2, .cols = 3, .repeat = 4, .transposed = true});
      std::vector<Element> back;
      for (int64_t i = 0; i < kDim; ++i) back.push_back({0, i % 8});
      result = *builder.AddArrange(std::array{result}, back);
      break;
    }
    case OpKind::kLookup: {
      const ValueId time = *builder.AddTime();
      const ValueId found =
          *builder.AddLookup(time, {.rows = 5, .cols = kDim, .weight = Weights(random, 5 * kDim)});
      result = *builder.AddElementwise(Op::kMultiply, std::array{found, operands[0]});
      break;
    }
    case OpKind::kArrange: {
      std::vector<Element> elements;
      for (int64_t i = 0; i < kDim; ++i)
        elements.push_back({static_cast<int32_t>(i % 2), (i * 5) % kDim});
      result = *builder.AddArrange(operands, elements);
      break;
    }
    case OpKind::kReverseStep:
      result = *builder.AddReverseStep(z, operands[0]);
      return *builder.Finish(result, operands[0]);
  }
  return *builder.Finish(layer(result));
}

StepInputs Inputs(const Vector& noise) {
  return {.time = 3, .step = 2, .reverse = &kReverse, .clip_range = 1.5, .noise = noise};
}

class EveryRowTest : public testing::TestWithParam<OpRow> {};

TEST_P(EveryRowTest, TangentsAndCotangentsAreThoseOfDifferences) {
  Random random;
  const Program program = ProgramOf(GetParam(), random);
  Evaluation evaluation(program);
  const Vector noise = random.Normals(kDim);
  for (int trial = 0; trial < 5; ++trial) {
    const Vector z = random.Normals(kDim), direction = random.Normals(kDim);
    const Vector weights = random.Normals(kDim);
    const double h = 1e-6;
    const auto output_at = [&](double way) {
      Vector moved = z;
      for (int64_t i = 0; i < kDim; ++i) moved[i] += way * direction[i];
      evaluation.Run(Inputs(noise), moved);
      const auto out = evaluation.at(program.output);
      return Vector(out.begin(), out.end());
    };
    const Vector above = output_at(h), below = output_at(-h);
    evaluation.Run(Inputs(noise), z);
    const Vector tangent = evaluation.Tangents(direction, 1);
    const Vector cotangent = evaluation.Cotangent(weights);
    double forward = 0, backward = 0, size = 0;
    for (int64_t i = 0; i < kDim; ++i) {
      const double difference = (above[i] - below[i]) / (2 * h);
      // Units change sides within h with a probability of some 1e-5: no seed here does.
      EXPECT_NEAR(tangent[i], difference, 1e-7 * (1 + std::fabs(difference)) * 10) << i;
      forward += weights[i] * tangent[i];
      backward += direction[i] * cotangent[i];
      size += std::fabs(weights[i] * tangent[i]);
    }
    EXPECT_NEAR(forward, backward, 1e-12 * (1 + size) * kDim);
  }
}

INSTANTIATE_TEST_SUITE_P(Rows, EveryRowTest, testing::ValuesIn(kOps),
                         [](const auto& row) { return std::string(row.param.name); });

TEST(EvaluationTest, RunSetsOnlyWhatDependsOnTheGivenInputs) {
  ProgramBuilder builder;
  const ValueId z = *builder.AddState(2), time = *builder.AddTime();
  const ValueId condition = *builder.AddCondition(2);
  const ValueId both = *builder.AddArrange(std::array{time}, {{0, 0}, {0, 0}});
  const ValueId mixed = *builder.AddElementwise(Op::kMultiply, std::array{both, condition});
  const ValueId out = *builder.AddElementwise(Op::kAdd, std::array{z, mixed});
  EXPECT_EQ(builder.at(both).depends, kOnTime);
  EXPECT_EQ(builder.at(mixed).depends, kOnTimeAndCondition);
  const Program program = *builder.Finish(out);
  Evaluation evaluation(program);
  evaluation.Run({.time = 3}, {}, kOnTime);
  EXPECT_TRUE(evaluation.at(program.output).empty());
  const Vector c = {2, 5}, state = {1, 1};
  evaluation.Run({.time = 4, .condition = c}, state);
  EXPECT_EQ(evaluation.at(program.output)[1], 21);
}

}  // namespace
}  // namespace deeppcr::program
