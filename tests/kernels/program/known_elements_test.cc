// SPDX-License-Identifier: Apache-2.0
#include "kernels/program/known_elements.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "kernels/program/evaluate.h"
#include "kernels/program/guidance.h"
#include "tests/kernels/program/draft.h"
#include "tests/kernels/program/random_program.h"
#include "tests/kernels/program/same_meaning.h"

namespace deeppcr::program {
namespace {

// The step of the program itself, with the known elements put in before and after.
std::vector<double> Expected(const Program& program, const StepInputs& inputs,
                             std::vector<double> z, const std::vector<double>& mask,
                             const std::vector<double>& values) {
  const auto put = [&](std::vector<double>& into) {
    for (size_t i = 0; i < into.size(); ++i)
      if (mask[i] != 0) into[i] = values[i];
  };
  put(z);
  Evaluation evaluation(program);
  evaluation.Run(inputs, z);
  const auto output = evaluation.at(program.output);
  std::vector<double> next(output.begin(), output.end());
  put(next);
  return next;
}

TEST(KnownElementsTest, TheNetworkSeesThemAndTheStepKeepsThem) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(seed);
    Program program = RandomProgram(seed, {.condition = seed % 3 == 0 ? 1 : 4});
    if (seed % 4 == 0 && (program.at(program.prediction).depends & kOnCondition) != 0)
      program = WithGuidance(program, 2).value();
    const Program with = WithKnownElements(program).value();
    const RandomInputs drawn(program, seed);
    const std::vector<double>& z = drawn.state();
    for (uint64_t bits : {0u, 1u, 5u, 0xFFFFu}) {
      std::vector<double> mask, values;
      for (size_t i = 0; i < z.size(); ++i) {
        mask.push_back((bits >> i & 1) != 0 ? 1 : 0);
        values.push_back(0.25 * static_cast<double>(i) - 0.5);
      }
      StepInputs inputs = drawn.inputs();
      const std::vector<double> want = Expected(program, inputs, z, mask, values);
      std::vector<double> controls(inputs.condition.begin(), inputs.condition.end());
      if (program.condition == kNoValue) controls.clear();
      controls.insert(controls.end(), mask.begin(), mask.end());
      controls.insert(controls.end(), values.begin(), values.end());
      inputs.condition = controls;
      Evaluation evaluation(with);
      evaluation.Run(inputs, z);
      ExpectClose(evaluation.at(with.output), want, kInDouble);
      for (size_t i = 0; i < z.size(); ++i)
        EXPECT_TRUE(mask[i] == 0 || evaluation.at(with.output)[i] == values[i]) << i;
    }
  }
}

// Behind a condition that the program does not read, as its model's requests bring it all the same.
TEST(KnownElementsTest, StandBehindAConditionThatIsNotRead) {
  Draft draft;
  const ValueId z = draft.State(3);
  const ValueId m = draft.Linear(z, 3);
  const Program program = draft.Finish(draft.ReverseStep(z, m), m);
  ASSERT_EQ(program.condition, kNoValue);
  const Program with = WithKnownElements(program, 2).value();
  const RandomInputs drawn(program, 4);
  StepInputs inputs = drawn.inputs();
  const std::vector<double> want = Expected(program, inputs, drawn.state(), {0, 1, 0}, {0, 0.5, 0});
  const std::vector<double> controls = {7, 8, 0, 1, 0, 9, 0.5, 9};
  inputs.condition = controls;
  Evaluation evaluation(with);
  evaluation.Run(inputs, drawn.state());
  ExpectClose(evaluation.at(with.output), want, kInDouble);
}

// A known element's next value depends on nothing, and its present value counts for nothing.
TEST(KnownElementsTest, NothingGoesThroughThem) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    const Program program = RandomProgram(seed, {.jumps = false});
    const Program with = WithKnownElements(program).value();
    const RandomInputs drawn(program, seed);
    const auto dim = static_cast<int64_t>(drawn.state().size());
    StepInputs inputs = drawn.inputs();
    std::vector<double> controls(inputs.condition.begin(), inputs.condition.end());
    if (program.condition == kNoValue) controls.clear();
    for (int64_t i = 0; i < dim; ++i) controls.push_back(i == 2 ? 1 : 0);
    controls.insert(controls.end(), static_cast<size_t>(dim), 0.125);
    inputs.condition = controls;
    Evaluation evaluation(with);
    evaluation.Run(inputs, drawn.state());
    std::vector<double> unit(static_cast<size_t>(dim * dim));
    for (int64_t i = 0; i < dim; ++i) unit[i * dim + i] = 1;
    const std::vector<double> jacobian = evaluation.Tangents(unit, dim);
    double rest = 0;
    for (int64_t i = 0; i < dim; ++i) {
      EXPECT_EQ(jacobian[2 * dim + i], 0) << "row, element " << i;
      EXPECT_EQ(jacobian[i * dim + 2], 0) << "column, element " << i;
      for (int64_t j = 0; j < dim; ++j) rest += jacobian[i * dim + j] * jacobian[i * dim + j];
    }
    EXPECT_GT(rest, 0);
  }
}

}  // namespace
}  // namespace deeppcr::program
