// SPDX-License-Identifier: Apache-2.0
#include "kernels/program/passes/polynomial.h"

#include <gtest/gtest.h>

#include <optional>

#include "tests/kernels/program/draft.h"

namespace deeppcr::program {
namespace {

// The polynomial of a value, which the program's output reads once.
std::optional<Cubic> CubicIn(Draft& draft, ValueId value) {
  const Program program = draft.Finish(draft.Do(Op::kTanh, {value}));
  const ProgramIndex index(program);
  return CubicOf(index, program.instructions.back().operands[0]);
}

TEST(CubicTest, ReadsSumsAndProductsInAnyOrder) {
  Draft draft;
  const ValueId x = draft.State(3);
  // (2 x - 1) (x^2 / 4) - (-x) = x^3 / 2 - x^2 / 4 + x
  const ValueId left = draft.By(Op::kSubtract, draft.By(Op::kMultiply, x, 2), 1);
  const ValueId right = draft.By(Op::kDivide, draft.Do(Op::kSquare, {x}), 4);
  const ValueId product = draft.Multiply(left, right);
  const auto cubic = CubicIn(draft, draft.Subtract(product, draft.Do(Op::kNegate, {x})));
  ASSERT_TRUE(cubic.has_value());
  EXPECT_TRUE(cubic->Is({0, 1, -0.25, 0.5}));
  EXPECT_TRUE(cubic->Is({0, 1, -0.25, 0.5 * (1 + 1e-7)})) << "constants of float32 graphs";
  EXPECT_FALSE(cubic->Is({0, 1, -0.25, 0.5 * (1 + 1e-5)}));
  EXPECT_FALSE(cubic->Is({1e-9, 1, -0.25, 0.5})) << "zero is exact";
}

TEST(CubicTest, TakesWhatItCannotLookIntoForTheUnknown) {
  Draft draft;
  const ValueId x = draft.Do(Op::kSin, {draft.State(3)});
  const auto cubic = CubicIn(draft, draft.By(Op::kMultiply, x, 3));
  ASSERT_TRUE(cubic.has_value());
  EXPECT_TRUE(cubic->Is({0, 3, 0, 0}));
}

TEST(CubicTest, RefusesTwoUnknownsAndHigherPowers) {
  Draft two;
  const ValueId x = two.State(3);
  EXPECT_FALSE(CubicIn(two, two.Add(x, two.Do(Op::kSin, {x}))).has_value());
  Draft high;
  const ValueId cube = high.By(Op::kPower, high.State(3), 3);
  EXPECT_FALSE(CubicIn(high, high.Do(Op::kSquare, {cube})).has_value());
  Draft quotient;
  const ValueId y = quotient.State(3);
  EXPECT_FALSE(CubicIn(quotient, quotient.Divide(quotient.Number(2, y), y)).has_value());
}

TEST(CubicTest, LooksNoDeeperThanAFewLevels) {
  Draft draft;
  ValueId value = draft.State(3);
  for (int i = 0; i < 100; ++i) value = draft.By(Op::kAdd, value, 1);
  const auto cubic = CubicIn(draft, value);
  ASSERT_TRUE(cubic.has_value());
  EXPECT_LT(cubic->by_power[0], 20);
}

}  // namespace
}  // namespace deeppcr::program
