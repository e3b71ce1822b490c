// SPDX-License-Identifier: Apache-2.0
// Rows of tables by class, by time and by both, with indices of every kind, against double.
#include "kernels/program/lookups.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/cpu/program/system.h"
#include "kernels/program/evaluate.h"
#include "tests/kernels/cpu/diffusion/plain_diffusion.h"
#include "tests/kernels/program/draft.h"

namespace deeppcr::cpu {
namespace {

using program::Draft;
using program::Op;
using program::Program;
using program::ValueId;

constexpr int64_t kElements = 2, kClasses = 30, kTimes = 40;

// A program that adds rows of six tables to its state. Where `by_condition` is set, the class is
// the only element of a condition instead.
Program Lookups(bool by_condition) {
  Draft draft(5);
  const ValueId z = draft.State(kElements), time = draft.Time();
  const ValueId label = by_condition ? draft.Condition(1) : draft.Label();
  const auto floor = [&](ValueId id) { return draft.Do(Op::kFloor, {id}); };
  const ValueId both = draft.Add(draft.By(Op::kMultiply, label, kTimes), time);
  const struct {
    ValueId index;
    int64_t rows;
  } lookups[] = {{label, kClasses},
                 {draft.By(Op::kSubtract, label, kClasses), kClasses},
                 {draft.By(Op::kAdd, draft.By(Op::kMultiply, label, 3), 1), 3 * kClasses},
                 {floor(draft.By(Op::kDivide, label, 10)), kClasses},
                 {floor(draft.By(Op::kDivide, time, 7)), kTimes},
                 {both, kClasses * kTimes}};
  ValueId said = draft.By(Op::kMultiply, z, 0.5);
  for (const auto& [index, rows] : lookups)
    said = draft.Add(said, draft.Lookup(index, draft.Layer(rows, kElements, false)));
  return draft.Finish(draft.ReverseStep(z, said), said);
}

class LookupsTest : public ::testing::TestWithParam<bool> {};

TEST_P(LookupsTest, FindTheRowsThatDoubleFinds) {
  const Program program = Lookups(GetParam());
  std::vector<ReverseStep> steps;
  std::vector<double> times;
  for (int64_t l = 0; l < kTimes; ++l) {
    steps.push_back({.timestep = static_cast<double>(kTimes - 1 - l), .z_z = 0, .z_m = 1});
    times.push_back(steps.back().timestep);
  }
  ASSERT_TRUE(program::CheckLookups(program, kClasses, times, nullptr).ok());
  const DiffusionProgramSpec spec = {.state_dim = kElements,
                                     .steps = steps,
                                     .clip_range = std::numeric_limits<double>::infinity(),
                                     .program = &program,
                                     .step_weights = 1,
                                     .condition_dim = GetParam() ? 1 : 0,
                                     .num_classes = GetParam() ? 0 : kClasses};
  const auto packed =
      *PackProgramSystem(spec, testing::KernelsOfThisMachine().back().set, PackingLimits{});
  const auto recurrence = packed->NewRecurrence();
  program::Evaluation evaluation(program);
  const std::vector<float> noise = {0.25F, -0.5F};
  const std::vector<double> state(noise.begin(), noise.end());
  std::vector<float> z(static_cast<size_t>(packed->width));
  for (int64_t label = 0; label < kClasses; ++label) {
    const auto condition = static_cast<float>(label);
    const double class_of[] = {condition};
    SampleInput input;
    input.inputs = &condition;
    input.label = static_cast<int32_t>(label);
    input.initial_noise = noise.data();
    for (int64_t l = 0; l < kTimes; ++l) {
      recurrence->Encode(0, input, z.data());
      recurrence->Advance(z.data(), 1, l, l + 1, nullptr);
      evaluation.Run({.time = static_cast<double>(times[static_cast<size_t>(l)]),
                      .condition = class_of,
                      .label = static_cast<double>(label),
                      .reverse = &steps[static_cast<size_t>(l)],
                      .clip_range = spec.clip_range},
                     state);
      for (int64_t i = 0; i < kElements; ++i)
        ASSERT_NEAR(z[static_cast<size_t>(i)], evaluation.at(program.output)[i], 1e-5)
            << "class " << label << ", step " << l;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Conditions, LookupsTest, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "Vector" : "Class"; });

}  // namespace
}  // namespace deeppcr::cpu
