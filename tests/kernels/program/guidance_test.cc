// SPDX-License-Identifier: Apache-2.0
#include "kernels/program/guidance.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/program/evaluate.h"
#include "kernels/program/sampler_step.h"
#include "tests/kernels/program/draft.h"
#include "tests/kernels/program/random_program.h"
#include "tests/kernels/program/same_meaning.h"
#include "tests/testing/expect_error.h"

namespace deeppcr::program {
namespace {

// What a program makes of its inputs under a condition and under no condition.
class Evaluated {
 public:
  Evaluated(const Program& program, uint64_t seed)
      : program_(program), inputs_(program, seed), other_(program, seed + 1000) {}

  StepInputs condition() const { return inputs_.inputs(); }
  StepInputs null() const {
    StepInputs inputs = inputs_.inputs();
    const StepInputs other = other_.inputs();
    inputs.condition = other.condition;
    inputs.label = null_class();
    return inputs;
  }
  static double null_class() { return 3; }
  const std::vector<double>& state() const { return inputs_.state(); }

  std::vector<double> Prediction(const StepInputs& inputs, std::span<const double> state) const {
    Evaluation evaluation(program_);
    evaluation.Run(inputs, state);
    const auto m = evaluation.at(program_.prediction);
    return {m.begin(), m.end()};
  }
  // m_null + w (m_condition - m_null).
  std::vector<double> Guided(double scale, std::span<const double> state) const {
    std::vector<double> m = Prediction(null(), state);
    const std::vector<double> of_condition = Prediction(condition(), state);
    for (size_t i = 0; i < m.size(); ++i) m[i] += scale * (of_condition[i] - m[i]);
    return m;
  }
  // The condition's vector of the guided program.
  std::vector<double> Controls(double scale) const {
    std::vector<double> controls;
    for (const StepInputs& inputs : {condition(), null()})
      controls.insert(controls.end(), inputs.condition.begin(), inputs.condition.end());
    controls.push_back(scale);
    return controls;
  }

 private:
  const Program& program_;
  RandomInputs inputs_, other_;
};

std::vector<double> Next(const StepInputs& inputs, std::span<const double> z,
                         std::span<const double> m) {
  std::vector<double> next;
  for (size_t i = 0; i < z.size(); ++i)
    next.push_back(ApplyReverseStep(*inputs.reverse, inputs.clip_range, z[i], m[i],
                                    inputs.noise.empty() ? 0 : inputs.noise[i]));
  return next;
}

bool DependsOnCondition(const Program& program) {
  return (program.at(program.prediction).depends & kOnCondition) != 0;
}

constexpr double kScales[] = {0.0, 1.0, -0.5, 2.0, 7.5};

TEST(GuidanceTest, RandomProgramsSayWhatTwoEvaluationsDo) {
  int guided = 0;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    const Program program = RandomProgram(seed, {.jumps = seed % 2 == 0});
    const auto with = WithGuidance(program, 3);
    if (!DependsOnCondition(program)) {
      testing::ExpectError(with, absl::StatusCode::kInvalidArgument, "depend on the condition");
      continue;
    }
    ASSERT_TRUE(with.ok()) << with.status();
    ++guided;
    const Evaluated once(program, seed);
    for (const double scale : kScales) {
      StepInputs inputs = once.condition();
      const std::vector<double> controls = once.Controls(scale);
      inputs.condition = controls;
      Evaluation evaluation(*with);
      evaluation.Run(inputs, once.state());
      const std::vector<double> m = once.Guided(scale, once.state());
      ExpectClose(evaluation.at(with->prediction), m, kInDouble);
      ExpectClose(evaluation.at(with->output), Next(inputs, once.state(), m), kInDouble);
    }
  }
  EXPECT_GT(guided, 200);
}

// One sample's step has as many instructions with weights as before: both halves go through them
// together.
TEST(GuidanceTest, EveryLayerIsThereOnce) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    const Program program = RandomProgram(seed);
    if (!DependsOnCondition(program)) continue;
    const Program with = WithGuidance(program, 3).value();
    const auto layers = [](const Program& of) {
      int64_t count = 0;
      for (const Instruction& instruction : of.instructions)
        count += (instruction.op == Op::kLinear || instruction.op == Op::kProduct) &&
                 (of.at(instruction.result).depends & kOnState) != 0;
      return count;
    };
    EXPECT_EQ(layers(with), layers(program));
  }
}

// What the condition has no part in is computed once: here all but one sum.
TEST(GuidanceTest, WhatBothShareIsComputedOnce) {
  Draft draft;
  const ValueId z = draft.State(4);
  const ValueId c = draft.Condition(4);
  const ValueId m = draft.Add(draft.Linear(draft.Do(Op::kTanh, {draft.Linear(z, 32)}), 4), c);
  const Program program = draft.Finish(draft.ReverseStep(z, m), m);
  const Program with = WithGuidance(program, 0).value();
  EXPECT_LT(InStep(with), 1.1 * InStep(program) + 32);
  for (const Instruction& instruction : with.instructions)
    EXPECT_EQ(instruction.linear.repeat, 1) << RowOf(instruction.op).name;
}

// With a learned variance m is guided, and v is that of the condition: in the step, and in what the
// coarse guess reads.
TEST(GuidanceTest, ALearnedVarianceIsThatOfTheCondition) {
  for (const NoiseScale noise_scale : {NoiseScale::kLearned, NoiseScale::kLearnedRange}) {
    for (const bool carries : {false, true}) {
      constexpr int64_t kElements = 4;
      Draft draft(3);
      ProgramBuilder& builder = draft.builder();
      const ValueId z = AddSamplerState(builder, kElements, carries).value();
      const ValueId c = draft.Condition(kElements);
      const ValueId hidden = draft.Do(Op::kTanh, {draft.Linear(draft.Add(z, c), 16)});
      // sigmoid, so that what is a variance is positive.
      const ValueId prediction = draft.Do(Op::kSigmoid, {draft.Linear(hidden, 2 * kElements)});
      const Program program =
          FinishSampler(builder, z, prediction, {.carries = carries, .noise_scale = noise_scale})
              .value();
      const Program with = WithGuidance(program, 0).value();
      const RandomInputs drawn(program, 5), other(program, 6);
      StepInputs inputs = drawn.inputs(), null = inputs;
      null.condition = other.inputs().condition;
      Evaluation of_condition(program), of_null(program), guided(with);
      of_condition.Run(inputs, drawn.state());
      of_null.Run(null, drawn.state());
      const double scale = 2.5;
      std::vector<double> controls(inputs.condition.begin(), inputs.condition.end());
      controls.insert(controls.end(), null.condition.begin(), null.condition.end());
      controls.push_back(scale);
      inputs.condition = controls;
      guided.Run(inputs, drawn.state());
      const auto m = of_condition.at(program.prediction), m_null = of_null.at(program.prediction);
      std::vector<double> want(m.begin(), m.end());
      for (int64_t i = 0; i < kElements; ++i) want[i] = m_null[i] + scale * (m[i] - m_null[i]);
      ExpectClose(guided.at(with.prediction), want, kInDouble);

      // The step of a network that says just this.
      Draft saying(3);
      const ValueId state = AddSamplerState(saying.builder(), kElements, carries).value();
      const ValueId constant = saying.Constant(want);
      const Program said = FinishSampler(saying.builder(), state, constant,
                                         {.carries = carries, .noise_scale = noise_scale})
                               .value();
      Evaluation of_said(said);
      of_said.Run(inputs, drawn.state());
      ExpectClose(guided.at(with.output), of_said.at(said.output), kInDouble);
    }
  }
}

TEST(GuidanceTest, DerivativesAreThoseOfTheWhole) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(seed);
    const Program program = RandomProgram(seed, {.jumps = false});
    if (!DependsOnCondition(program)) continue;
    const Program with = WithGuidance(program, 3).value();
    const Evaluated once(program, seed);
    StepInputs inputs = once.condition();
    const std::vector<double> controls = once.Controls(2.0);
    inputs.condition = controls;
    Evaluation evaluation(with);
    evaluation.Run(inputs, once.state());
    const std::vector<double> z = once.state();
    const auto dim = static_cast<int64_t>(z.size());
    std::vector<double> unit(z.size() * z.size());
    for (int64_t i = 0; i < dim; ++i) unit[i * dim + i] = 1;
    const std::vector<double> tangents = evaluation.Tangents(unit, dim);
    std::vector<double> by_rows, wanted(tangents.size());
    for (int64_t i = 0; i < dim; ++i) {
      std::vector<double> g(z.size());
      g[i] = 1;
      const std::vector<double> row = evaluation.Cotangent(g);
      by_rows.insert(by_rows.end(), row.begin(), row.end());
    }
    for (int64_t j = 0; j < dim; ++j) {
      const double h = 1e-6;
      std::vector<double> up = z, down = z;
      up[j] += h, down[j] -= h;
      const std::vector<double> high = Next(inputs, up, once.Guided(2.0, up));
      const std::vector<double> low = Next(inputs, down, once.Guided(2.0, down));
      for (int64_t i = 0; i < dim; ++i) wanted[i * dim + j] = (high[i] - low[i]) / (2 * h);
    }
    ExpectClose(tangents, wanted, 1e-6);
    ExpectClose(by_rows, tangents, kInDouble);
  }
}

// The derivative by the scale is m_condition - m_null, taken through the reverse step.
TEST(GuidanceTest, TheScaleHasACotangent) {
  const Program program = RandomProgram(2, {.jumps = false});
  ASSERT_TRUE(DependsOnCondition(program));
  const Program with = WithGuidance(program, 3).value();
  const Evaluated once(program, 2);
  StepInputs inputs = once.condition();
  inputs.clip_range = 1e9;
  const std::vector<double> controls = once.Controls(1.5);
  inputs.condition = controls;
  Evaluation evaluation(with);
  evaluation.Run(inputs, once.state());
  const std::vector<double> low = Next(inputs, once.state(), once.Guided(1.25, once.state()));
  const std::vector<double> high = Next(inputs, once.state(), once.Guided(1.75, once.state()));
  for (size_t i = 0; i < low.size(); ++i) {
    std::vector<double> g(low.size());
    g[i] = 1;
    EXPECT_NEAR(evaluation.Cotangent(g, with.condition).back(), (high[i] - low[i]) / 0.5, 1e-9);
  }
}

}  // namespace
}  // namespace deeppcr::program
