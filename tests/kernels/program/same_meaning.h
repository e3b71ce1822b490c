// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_KERNELS_PROGRAM_SAME_MEANING_H_
#define DEEPPCR_TESTS_KERNELS_PROGRAM_SAME_MEANING_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

#include "kernels/program/cost.h"
#include "kernels/program/evaluate.h"
#include "kernels/program/program.h"
#include "tests/kernels/program/random_program.h"
#include "tests/testing/larger.h"

namespace deeppcr::program {

// Rounding in double, through as many operations as a test's program has.
inline constexpr double kInDouble = 1e-10;
// Weights or biases that were rounded to float32 once more.
inline constexpr double kInFloat = 1e-6;

inline int64_t CountOf(const Program& program, Op op) {
  const auto is = [op](const Instruction& instruction) { return instruction.op == op; };
  return std::ranges::count_if(program.instructions, is);
}

// Multiply-adds that are left in the step.
inline double InStep(const Program& program) { return CostsOf(program).by_class[kOnState]; }

inline void ExpectClose(std::span<const double> got, std::span<const double> want, double rtol) {
  ASSERT_EQ(got.size(), want.size());
  double largest = 0;
  for (const double number : want) largest = testing::Larger(largest, std::fabs(number));
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_TRUE(std::isfinite(want[i])) << "element " << i;
    ASSERT_NEAR(got[i], want[i], rtol * largest) << "element " << i;
  }
}

// Expects two programs to say the same, relatively to the largest element, on a few random inputs,
// and no output of the second to depend on more.
inline void ExpectSameMeaning(const Program& before, const Program& after,
                              double rtol = kInDouble) {
  ASSERT_EQ(before.prediction == kNoValue, after.prediction == kNoValue);
  EXPECT_EQ(after.at(after.output).depends | before.at(before.output).depends,
            before.at(before.output).depends);
  Evaluation of_before(before), of_after(after);
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    SCOPED_TRACE(seed);
    const RandomInputs inputs(before, seed);
    of_before.Run(inputs.inputs(), inputs.state());
    of_after.Run(inputs.inputs(), inputs.state());
    ExpectClose(of_after.at(after.output), of_before.at(before.output), rtol);
    if (before.prediction == kNoValue) continue;
    ExpectClose(of_after.at(after.prediction), of_before.at(before.prediction), rtol);
  }
}

}  // namespace deeppcr::program

#endif  // DEEPPCR_TESTS_KERNELS_PROGRAM_SAME_MEANING_H_
