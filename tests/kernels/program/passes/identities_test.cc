// SPDX-License-Identifier: Apache-2.0
#include "kernels/program/passes/identities.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "kernels/program/optimize.h"
#include "tests/kernels/program/draft.h"
#include "tests/kernels/program/same_meaning.h"

namespace deeppcr::program {
namespace {

struct Identity {
  std::string name;
  std::vector<Op> left;  // operations of the optimised program
  std::function<ValueId(Draft&, ValueId)> make;
};

void ExpectLeft(const std::vector<Identity>& identities) {
  for (const Identity& one : identities) {
    SCOPED_TRACE(one.name);
    Draft draft;
    const ValueId x = draft.Do(Op::kExp, {draft.State(5)});
    const Program before = draft.Finish(one.make(draft, x));
    const Program after = *Optimize(before);
    ExpectSameMeaning(before, after);
    std::vector<Op> left;
    for (const Instruction& instruction : after.instructions) left.push_back(instruction.op);
    std::vector<Op> want = {Op::kExp};
    want.insert(want.end(), one.left.begin(), one.left.end());
    EXPECT_EQ(left, want);
  }
}

TEST(IdentitiesTest, LeaveOutWhatChangesNothing) {
  ExpectLeft({
      {"x + 0", {}, [](Draft& d, ValueId x) { return d.By(Op::kAdd, x, 0); }},
      {"0 + x", {}, [](Draft& d, ValueId x) { return d.Add(d.Number(0, x), x); }},
      {"x - 0", {}, [](Draft& d, ValueId x) { return d.By(Op::kSubtract, x, 0); }},
      {"x * 1", {}, [](Draft& d, ValueId x) { return d.By(Op::kMultiply, x, 1); }},
      {"1 * x", {}, [](Draft& d, ValueId x) { return d.Multiply(d.Number(1, x), x); }},
      {"x / 1", {}, [](Draft& d, ValueId x) { return d.By(Op::kDivide, x, 1); }},
      {"x^1", {}, [](Draft& d, ValueId x) { return d.By(Op::kPower, x, 1); }},
      {"-(-x)",
       {},
       [](Draft& d, ValueId x) { return d.Do(Op::kNegate, {d.Do(Op::kNegate, {x})}); }},
      {"((x + 0) * 1)^1",
       {},
       [](Draft& d, ValueId x) {
         return d.By(Op::kPower, d.By(Op::kMultiply, d.By(Op::kAdd, x, 0), 1), 1);
       }},
  });
}

TEST(IdentitiesTest, WriteSimplerOperations) {
  ExpectLeft({
      {"0 - x", {Op::kNegate}, [](Draft& d, ValueId x) { return d.Subtract(d.Number(0, x), x); }},
      {"x * -1", {Op::kNegate}, [](Draft& d, ValueId x) { return d.By(Op::kMultiply, x, -1); }},
      {"x * x", {Op::kSquare}, [](Draft& d, ValueId x) { return d.Multiply(x, x); }},
      {"x^2", {Op::kSquare}, [](Draft& d, ValueId x) { return d.By(Op::kPower, x, 2); }},
      {"x^0.5", {Op::kSqrt}, [](Draft& d, ValueId x) { return d.By(Op::kPower, x, 0.5); }},
      {"x^-1", {Op::kReciprocal}, [](Draft& d, ValueId x) { return d.By(Op::kPower, x, -1); }},
      {"1 / x", {Op::kReciprocal}, [](Draft& d, ValueId x) { return d.Divide(d.Number(1, x), x); }},
      {"x / 8", {Op::kMultiply}, [](Draft& d, ValueId x) { return d.By(Op::kDivide, x, 8); }},
      {"x / -0.25",
       {Op::kMultiply},
       [](Draft& d, ValueId x) { return d.By(Op::kDivide, x, -.25); }},
      {"x + (-sin x)",
       {Op::kSin, Op::kSubtract},
       [](Draft& d, ValueId x) { return d.Add(x, d.Do(Op::kNegate, {d.Do(Op::kSin, {x})})); }},
      {"-sin x + x",
       {Op::kSin, Op::kSubtract},
       [](Draft& d, ValueId x) { return d.Add(d.Do(Op::kNegate, {d.Do(Op::kSin, {x})}), x); }},
      {"x - (-sin x)",
       {Op::kSin, Op::kAdd},
       [](Draft& d, ValueId x) { return d.Subtract(x, d.Do(Op::kNegate, {d.Do(Op::kSin, {x})})); }},
  });
}

TEST(IdentitiesTest, LeaveTheModulesArithmetic) {
  ExpectLeft({
      {"x / 3", {Op::kDivide}, [](Draft& d, ValueId x) { return d.By(Op::kDivide, x, 3); }},
      {"x / 2^-130, whose inverse is no float32",
       {Op::kDivide},
       [](Draft& d, ValueId x) { return d.By(Op::kDivide, x, 0x1p-130); }},
      {"x^3", {Op::kPower}, [](Draft& d, ValueId x) { return d.By(Op::kPower, x, 3); }},
      {"x * 0", {Op::kMultiply}, [](Draft& d, ValueId x) { return d.By(Op::kMultiply, x, 0); }},
      {"x + [0 0 0 0 1]",
       {Op::kAdd},
       [](Draft& d, ValueId x) {
         return d.Add(x, d.Constant({0, 0, 0, 0, 1}));
       }},
      {"x * [1 1 1 1 2]",
       {Op::kMultiply},
       [](Draft& d, ValueId x) {
         return d.Multiply(x, d.Constant({1, 1, 1, 1, 2}));
       }},
  });
}

}  // namespace
}  // namespace deeppcr::program
