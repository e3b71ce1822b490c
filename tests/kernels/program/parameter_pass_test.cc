// SPDX-License-Identifier: Apache-2.0
#include "kernels/program/parameter_pass.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <set>
#include <vector>

#include "tests/kernels/program/draft.h"
#include "tests/kernels/program/parameter_differences.h"
#include "tests/kernels/program/parameters_of_constants.h"
#include "tests/kernels/program/random_program.h"

namespace deeppcr::program {
namespace {

// Programs of all rows: every constant in them is a parameter, or each with a chance of a half.
TEST(ParameterPassTest, IsTheDerivativeOfRandomPrograms) {
  std::set<Op> seen;
  Compared compared;
  for (uint64_t seed = 1; seed <= 120; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const int64_t layers = seed % 3 == 0 ? 37 : 0;
    const Program from = RandomProgram(seed, {.reverse_step = seed % 3 != 0, .layers = layers});
    const Program program = ParametersOfConstants(from, seed, seed % 2 == 0).Make();
    for (const Instruction& instruction : program.instructions)
      if ((program.at(instruction.result).depends & kOnParameters) != 0)
        seen.insert(instruction.op);
    const Steps steps(program, layers > 0 ? layers : 5, seed);
    ExpectDifferences(program, steps, Gradients(program, steps), &compared);
    if (HasFailure()) return;
  }
  EXPECT_GT(compared.smooth, 2000);
  EXPECT_LT(compared.bent, compared.smooth / 20);
  for (const OpRow& row : kOps) {
    if (row.op == Op::kLinear) continue;  // a product, where its weights are parameters
    EXPECT_TRUE(seen.contains(row.op)) << row.name;
  }
}

TEST(ParameterPassTest, HasTheSameBitsHoweverBlocksAreDivided) {
  const Program from = RandomProgram(3, {.layers = 83});
  const Program program = ParametersOfConstants(from, 3, true).Make();
  const Steps steps(program, 83, 3);
  const Sums one = Gradients(program, steps, 1);
  for (const size_t together : {2, 3, 100}) EXPECT_EQ(Gradients(program, steps, together), one);
}

// A matrix as it is and transposed, of the state, the time, the condition and another parameter,
// and with its elements in sums: what is forgotten is missing.
TEST(ParameterPassTest, AddsUpAllUsesOfAParameter) {
  constexpr int64_t kDim = 5;
  Draft draft;
  const ValueId z = draft.State(kDim), c = draft.Condition(kDim), t = draft.Time();
  std::vector<float> numbers;
  for (int i = 0; i < kDim * kDim; ++i)
    numbers.push_back(0.3F * std::sin(1.0F + 2 * static_cast<float>(i)));
  const auto parameter = [&](int32_t tensor) {
    return draft.builder()
        .AddParameter(std::make_shared<const std::vector<float>>(numbers), kDim * kDim, false,
                      {{tensor, kDim * kDim}})
        .value();
  };
  const ValueId w = parameter(0), v = parameter(1);
  const auto product = [&](ValueId x, ValueId matrix, bool transposed, int64_t repeat = 1) {
    return draft.Product(x, matrix, kNoValue,
                         {.rows = kDim, .cols = kDim, .repeat = repeat, .transposed = transposed});
  };
  const ValueId times = draft.Do(Op::kSin, {draft.Arrange({t}, std::vector<Element>(kDim))});
  ValueId y = draft.Do(Op::kTanh, {product(z, w, false)});
  y = draft.Add(product(y, w, true), draft.Slice(w, 2 * kDim, 3 * kDim));
  y = draft.Add(y, product(c, w, false));
  y = draft.Add(y, draft.Multiply(product(times, w, true), y));
  y = draft.Add(y, product(z, product(v, w, true, kDim), false));
  const Program program = draft.Finish(draft.Do(Op::kTanh, {y}));
  const Steps steps(program, 21, 5);
  Compared compared;
  ExpectDifferences(program, steps, Gradients(program, steps), &compared);
  EXPECT_EQ(compared.bent, 0);
}

// Numbers of each step go to the rows of the steps.
TEST(ParameterPassTest, KeepsWhatStepsHaveForThemselvesApart) {
  constexpr int64_t kSteps = 19, kDim = 3;
  Draft draft;
  const ValueId z = draft.State(kDim);
  std::vector<float> scales;
  for (int64_t i = 0; i < kSteps * kDim; ++i) scales.push_back(0.1F * static_cast<float>(i));
  const ValueId scale =
      draft.builder()
          .AddParameter(std::make_shared<const std::vector<float>>(scales), kDim, true, {{0, kDim}})
          .value();
  const Program program = draft.Finish(draft.Multiply(z, scale));
  const Steps steps(program, kSteps, 2);
  const Sums sums = Gradients(program, steps);
  for (int64_t i = 0; i < kSteps * kDim; ++i)
    EXPECT_FLOAT_EQ(sums[0][i], steps.cotangents[i] * steps.states[i]) << i;
}

TEST(ParameterPassTest, StopsWithinAProductOnceItsTokenHasFired) {
  constexpr int64_t kDim = 1500;  // more than a million products in a row
  Draft draft;
  const ValueId z = draft.State(kDim);
  const auto numbers = std::make_shared<const std::vector<float>>(kDim * kDim);
  const ValueId w =
      draft.builder().AddParameter(numbers, kDim * kDim, false, {{0, kDim * kDim}}).value();
  const Program program = draft.Finish(draft.Product(z, w, kNoValue, {.rows = kDim, .cols = kDim}));
  const Steps steps(program, 1, 2);
  const ParameterPass pass(program);
  const ParameterPass::Shared shared(pass);
  ParameterPass::Block block(pass);
  CancelToken token;
  EXPECT_TRUE(pass.Run(steps.Rows(program, 0, 1), shared, &token, &block));
  token.Cancel();
  EXPECT_FALSE(pass.Run(steps.Rows(program, 0, 1), shared, &token, &block));
}

}  // namespace
}  // namespace deeppcr::program
