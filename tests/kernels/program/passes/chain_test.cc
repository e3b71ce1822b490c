// SPDX-License-Identifier: Apache-2.0
#include "kernels/program/passes/chain.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "tests/kernels/program/draft.h"

namespace deeppcr::program {
namespace {

TEST(ChainTest, KeepsTheOrderAndTheSignsOfItsTerms) {
  Draft draft;
  const ValueId z = draft.State(2), a = draft.Do(Op::kSin, {z}), b = draft.Do(Op::kCos, {z});
  // (z - (a - b)) - z
  const ValueId inner = draft.Subtract(z, draft.Subtract(a, b));
  const Program program = draft.Finish(draft.Subtract(inner, z));
  const ProgramIndex index(program);
  ASSERT_TRUE(EndsChain(index, program.instructions.back(), Op::kAdd));
  EXPECT_FALSE(EndsChain(index, *index.Producer(inner), Op::kAdd)) << "the middle of one";
  EXPECT_FALSE(EndsChain(index, program.instructions.back(), Op::kMultiply));
  const Chain chain = ChainThatEndsIn(index, program.instructions.back(), Op::kAdd);
  std::vector<std::pair<ValueId, bool>> terms;
  for (const Term& term : chain.terms) terms.emplace_back(term.value, term.negative);
  const std::vector<std::pair<ValueId, bool>> want = {{z, false}, {a, true}, {b, false}, {z, true}};
  EXPECT_EQ(terms, want);
  EXPECT_EQ(chain.joins[kOnState], 3);
}

TEST(ChainTest, StopsWhereAnInnerSumIsReadElsewhere) {
  Draft draft;
  const ValueId z = draft.State(2), sum = draft.Add(z, draft.Do(Op::kSin, {z}));
  const Program program = draft.Finish(draft.Add(sum, draft.Do(Op::kCos, {sum})));
  const ProgramIndex index(program);
  const Chain chain = ChainThatEndsIn(index, program.instructions.back(), Op::kAdd);
  EXPECT_EQ(chain.terms.size(), 2u);
}

TEST(ChainTest, CountsTheJoinsOfTermsByClass) {
  // nothing, time, condition, time and condition, state
  EXPECT_EQ(LeastJoins({0, 1, 1, 1, 2}), (ByClass{0, 0, 0, 2, 2}));
  EXPECT_EQ(LeastJoins({3, 0, 0, 0, 1}), (ByClass{0, 0, 0, 0, 1})) << "constants are folded";
  EXPECT_EQ(LeastJoins({1, 2, 0, 0, 1}), (ByClass{0, 2, 0, 0, 1}));
  EXPECT_EQ(LeastJoins({0, 0, 2, 0, 3}), (ByClass{0, 0, 1, 0, 3}));
}

TEST(ChainTest, ComparesTheStepFirst) {
  EXPECT_TRUE(IsLess({0, 9, 9, 9, 1}, {0, 0, 0, 0, 2}));
  EXPECT_TRUE(IsLess({0, 9, 0, 1, 1}, {0, 0, 0, 2, 1}));
  EXPECT_FALSE(IsLess({0, 1, 1, 1, 1}, {0, 1, 1, 1, 1}));
}

}  // namespace
}  // namespace deeppcr::program
