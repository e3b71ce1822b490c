// SPDX-License-Identifier: Apache-2.0
#include "kernels/program/describe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/program/optimize.h"
#include "tests/kernels/program/draft.h"
#include "tests/kernels/program/random_program.h"

namespace deeppcr::program {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(DescribeTest, SaysHowEachValueIsMadeAndWhatItCosts) {
  Draft draft;
  const ValueId z = draft.State(4), t = draft.Time();
  draft.builder().Name(z, "z");
  const ValueId embedded = draft.Lookup(t, draft.Layer(10, 4, false));
  draft.builder().Name(embedded, "embedding");
  const ValueId sum = draft.Add(draft.Linear(z, 4), embedded);
  const ValueId norm = draft.Along(Op::kStandardize, sum, {2, 2, 1}, 0.001);
  const ValueId said = draft.By(Op::kMultiply, norm, 0.5);
  const Program program = draft.Finish(draft.ReverseStep(z, said), said);
  EXPECT_EQ(Describe(program),
            "z = input state  [4]  state\n"
            "%1 = input time  [1]  time\n"
            "embedding = lookup(%1) 10 x 4  [4]  time  0\n"
            "%3 = linear(z) 4 x 4  [4]  state  16\n"
            "%4 = add(%3, embedding)  [4]  state  4\n"
            "%5 = standardize(%4) of [2, 2, 1], epsilon 0.001  [4]  state  12\n"
            "%6 = constant 0.5  [4]  nothing\n"
            "%7 = multiply(%5, %6)  [4]  state  4  (prediction)\n"
            "%8 = reverse_step(z, %7)  [4]  state  24  (output)\n"
            "program: multiply-adds 0 on time, 0 on condition, 0 on time and condition, "
            "60 on state; 100.0 % in the step\n"
            "6 instructions; 1 constants of 4 elements; 1 linear layers and 1 tables of "
            "60 numbers\n");
}

TEST(DescribeTest, ComparesWithTheProgramAsWritten) {
  Draft draft;
  const ValueId z = draft.State(2), c = draft.Condition(6);
  const Program written = draft.Finish(draft.Linear(draft.Concatenate({z, c}), 2));
  const std::string text = Describe(*Optimize(written), &written);
  EXPECT_THAT(text, HasSubstr("as written: multiply-adds 0 on time, 0 on condition, 0 on time and "
                              "condition, 16 on state; 100.0 % in the step\n"));
  EXPECT_THAT(text, HasSubstr("optimised: multiply-adds 0 on time, 12 on condition, 0 on time and "
                              "condition, 6 on state; 33.3 % in the step\n"));
  EXPECT_THAT(text, HasSubstr("left in the step: 37.5 % of the arithmetic as written\n"));
}

TEST(DescribeTest, TellsValuesOfOneNameApartAndEscapesNames) {
  Draft draft;
  const ValueId z = draft.State(2), a = draft.Do(Op::kSin, {z}), b = draft.Do(Op::kCos, {a});
  draft.builder().Name(z, "bell\a\nline");
  draft.builder().Name(a, "same");
  draft.builder().Name(b, "same");
  const std::string text = Describe(draft.Finish(b));
  EXPECT_THAT(text, HasSubstr("same%2 = cos(same%1)"));
  EXPECT_THAT(text, HasSubstr("bell\\x07\\nline"));
  EXPECT_THAT(text, Not(HasSubstr("\a")));
}

TEST(DescribeTest, NamesOnlyTheFirstOfManyOperands) {
  Draft draft;
  std::vector<ValueId> operands;
  std::vector<Element> elements;
  ValueId z = draft.State(10);
  for (int32_t i = 0; i < 10; ++i) {
    operands.push_back(z = draft.Do(Op::kSin, {z}));
    elements.push_back({i, 0});
  }
  const std::string text = Describe(draft.Finish(draft.Arrange(operands, elements)));
  EXPECT_THAT(text, HasSubstr("arrange(%1, %2, %3, %4, %5, %6, %7, %8 and 2 more)"));
}

TEST(DescribeTest, SaysTheSameOfTheSameProgram) {
  for (uint64_t seed = 1; seed <= 20; ++seed)
    EXPECT_EQ(Describe(RandomProgram(seed)), Describe(RandomProgram(seed)));
}

}  // namespace
}  // namespace deeppcr::program
