// SPDX-License-Identifier: Apache-2.0
#include "kernels/program/builder.h"

#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <memory>
#include <vector>

#include "absl/status/status.h"

namespace deeppcr::program {
namespace {

std::shared_ptr<const std::vector<float>> Ones(int64_t n) {
  return std::make_shared<std::vector<float>>(static_cast<size_t>(n), 1.0F);
}

TEST(ProgramBuilderTest, FoldsWhatDependsOnNothing) {
  ProgramBuilder builder;
  const ValueId z = *builder.AddState(2);
  const ValueId a = *builder.AddConstant({1, 2}), b = *builder.AddConstant({3, 4});
  const ValueId sum = *builder.AddElementwise(Op::kAdd, std::array{a, b});
  EXPECT_EQ(builder.at(sum).constant, (std::vector<double>{4, 6}));
  const ValueId out = *builder.AddElementwise(Op::kMultiply, std::array{z, sum});
  const Program program = *builder.Finish(out);
  EXPECT_EQ(program.instructions.size(), 1u);
  EXPECT_EQ(program.values.size(), 3u) << "the state, the folded constant, the output";
}

TEST(ProgramBuilderTest, SharesEqualInstructions) {
  ProgramBuilder builder;
  const ValueId z = *builder.AddState(4);
  const auto weight = Ones(16);
  const auto layer = [&] {
    return *builder.AddLinear(z, {.rows = 4, .cols = 4, .weight = weight});
  };
  EXPECT_EQ(layer(), layer());
  EXPECT_NE(layer(), *builder.AddLinear(z, {.rows = 4, .cols = 4, .weight = Ones(16)}));
  const ValueId first = *builder.AddAlongAxis(Op::kStandardize, z, {1, 4, 1}, 1e-5);
  EXPECT_EQ(first, *builder.AddAlongAxis(Op::kStandardize, z, {1, 4, 1}, 1e-5));
  EXPECT_NE(first, *builder.AddAlongAxis(Op::kStandardize, z, {1, 4, 1}, 1e-6));
  EXPECT_NE(first, *builder.AddAlongAxis(Op::kStandardize, z, {2, 2, 1}, 1e-5));
  const ValueId swapped = *builder.AddArrange(std::array{z}, {{0, 1}, {0, 0}, {0, 2}, {0, 3}});
  EXPECT_NE(swapped, *builder.AddArrange(std::array{z}, {{0, 1}, {0, 0}, {0, 3}, {0, 2}}));
}

TEST(ProgramBuilderTest, RefusesShapesThatDoNotFit) {
  ProgramBuilder builder;
  const ValueId z = *builder.AddState(4), t = *builder.AddTime();
  const auto refused = [](const auto& result) {
    return result.status().code() == absl::StatusCode::kInvalidArgument;
  };
  EXPECT_TRUE(refused(builder.AddElementwise(Op::kAdd, std::array{z, t})));
  EXPECT_TRUE(refused(builder.AddLinear(z, {.rows = 2, .cols = 3, .weight = Ones(6)})));
  EXPECT_TRUE(refused(builder.AddLinear(z, {.rows = 0, .cols = 4, .weight = Ones(0)})));
  EXPECT_TRUE(refused(builder.AddAlongAxis(Op::kMean, z, {1, 3, 1})));
  EXPECT_TRUE(refused(builder.AddAlongAxis(Op::kMean, z, {0, 4, 1})));
  EXPECT_TRUE(refused(builder.AddAlongAxis(Op::kStandardize, z, {1, 4, 1}, -1)));
  EXPECT_TRUE(refused(builder.AddArrange(std::array{z}, {{0, 4}})));
  EXPECT_TRUE(refused(builder.AddArrange(std::array{z}, {{1, 0}})));
  EXPECT_TRUE(refused(builder.AddArrange(std::array{z}, {{0, -1}})));
  EXPECT_TRUE(refused(builder.AddConstant({})));
  EXPECT_TRUE(refused(builder.AddReverseStep(z, t)));
  EXPECT_TRUE(refused(builder.AddLookup(*builder.AddArrange(std::array{z}, {{0, 0}}),
                                        {.rows = 2, .cols = 2, .weight = Ones(4)})));
  EXPECT_TRUE(refused(builder.Finish(t)));
}

TEST(ProgramBuilderTest, StaysWithinItsLimits) {
  ProgramBuilder builder({.max_value_size = 100,
                          .max_instructions = 3,
                          .max_constant_elements = 10,
                          .max_weight_elements = 100});
  const ValueId z = *builder.AddState(8);
  const auto exhausted = [](const auto& result) {
    return result.status().code() == absl::StatusCode::kResourceExhausted;
  };
  EXPECT_TRUE(exhausted(builder.AddConstant(std::vector<double>(11))));
  EXPECT_TRUE(exhausted(builder.AddArrange(std::array{z}, std::vector<Element>(11))));
  EXPECT_TRUE(exhausted(builder.AddLinear(z, {.rows = 13, .cols = 8, .weight = Ones(104)})));
  constexpr int64_t kHuge = int64_t{1} << 62;
  EXPECT_FALSE(builder.AddLinear(z, {.rows = kHuge, .cols = 8, .weight = Ones(8)}).ok());
  EXPECT_FALSE(builder.AddAlongAxis(Op::kMean, z, {kHuge, kHuge, 4}).ok());
  ValueId last = z;
  for (int i = 0; i < 3; ++i) last = *builder.AddElementwise(Op::kTanh, std::array{last});
  EXPECT_TRUE(exhausted(builder.AddElementwise(Op::kTanh, std::array{last})));
}

// A small graph of large vectors would take memory for each of them when its tables are made.
TEST(ProgramBuilderTest, BoundsAllResultsTogether) {
  ProgramBuilder builder({.max_result_elements = 1000});
  const ValueId z = *builder.AddState(400);
  ASSERT_TRUE(builder.AddElementwise(Op::kSin, std::array{z}).ok());
  const ValueId cosine = *builder.AddElementwise(Op::kCos, std::array{z});
  EXPECT_EQ(builder.AddElementwise(Op::kSin, std::array{cosine}).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(ProgramBuilderTest, FinishDropsWhatNobodyReads) {
  ProgramBuilder builder;
  const ValueId z = *builder.AddState(3), time = *builder.AddTime();
  const ValueId spread = *builder.AddArrange(std::array{time}, {{0, 0}, {0, 0}, {0, 0}});
  ASSERT_TRUE(builder.AddElementwise(Op::kExp, std::array{spread}).ok());
  const ValueId prediction = *builder.AddElementwise(Op::kTanh, std::array{z});
  const ValueId out = *builder.AddReverseStep(z, prediction);
  const Program program = *builder.Finish(out, prediction);
  EXPECT_EQ(program.time, kNoValue);
  ASSERT_EQ(program.instructions.size(), 2u);
  EXPECT_EQ(program.instructions[0].result, program.prediction);
  EXPECT_EQ(program.instructions[1].operands[1], program.prediction);
  EXPECT_EQ(program.instructions[1].result, program.output);
}

}  // namespace
}  // namespace deeppcr::program
