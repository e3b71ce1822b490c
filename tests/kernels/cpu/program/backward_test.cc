// SPDX-License-Identifier: Apache-2.0
// The way back through programs of forms that random ones do not have, beside the reference, and
// the same request again after others.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/reference/reference_backend.h"
#include "tests/kernels/program/draft.h"
#include "tests/testing/backward_rig.h"

namespace deeppcr::testing {
namespace {

using program::Draft;
using program::Op;
using program::Program;

constexpr int64_t kDim = 3, kInputs = 2, kSteps = 4;

// A reverse process of three elements with a program, and a request of one sample.
class Process {
 public:
  explicit Process(Program program, int64_t inputs = kInputs) : program_(std::move(program)) {
    for (int64_t l = 0; l < kSteps; ++l)
      steps_.push_back(
          {.timestep = static_cast<double>(l), .x0_z = 1, .x0_m = -0.5, .z_z = 0.5, .z_x0 = 0.4});
    spec_ = {.state_dim = kDim,
             .steps = steps_,
             .clip_range = std::numeric_limits<double>::infinity(),
             .program = &program_,
             .step_weights = 1,
             .condition_dim = inputs};
    for (int64_t i = 0; i < (kSteps + 1) * kDim; ++i)
      request_.states.push_back(0.3F * std::sin(static_cast<float>(i) + 1));
    condition_ = {1.25F, -0.75F};
    condition_.resize(inputs);
    request_.samples = {.num_samples = 1, .inputs = condition_};
    request_.of_outputs = {0.5F, -1.0F, 2.0F};
  }
  Process(const Process&) = delete;

  const DiffusionProgramSpec& spec() const { return spec_; }
  BackwardRequest& request() { return request_; }

  // Compares both ways with the reference.
  void Check() {
    const Gradients expected =
        BackwardRig(reference::NewReferenceBackend(), spec_).Sequential(request_);
    const BackwardRig rig(*cpu::NewCpuBackend(), spec_);
    for (const Gradients& got : {rig.Sequential(request_), rig.Parallel(request_, 2)}) {
      ASSERT_EQ(got.inputs.size(), expected.inputs.size());
      for (size_t i = 0; i < got.inputs.size(); ++i)
        EXPECT_NEAR(got.inputs[i], expected.inputs[i], 1e-5) << "input " << i;
      for (size_t i = 0; i < got.initial.size(); ++i)
        EXPECT_NEAR(got.initial[i], expected.initial[i], 1e-5) << "initial " << i;
    }
  }

 private:
  const Program program_;
  std::vector<ReverseStep> steps_;
  DiffusionProgramSpec spec_;
  std::vector<float> condition_;
  BackwardRequest request_;
};

// A denoiser that reads an index of the condition as a number, too: `jumps` through a floor.
Program IndexThatIsReadTwice(bool jumps) {
  Draft draft(5);
  const auto z = draft.State(kDim);
  const auto condition = draft.Condition(kInputs);
  const auto first = draft.Slice(condition, 0, 1);
  const auto index = jumps ? draft.Do(Op::kFloor, {first}) : draft.Do(Op::kSquare, {first});
  const auto twice = draft.Arrange({index}, {{0, 0}, {0, 0}});
  const auto scaled = draft.Linear(draft.Multiply(twice, condition), kDim);
  const auto row =
      draft.Lookup(jumps ? index : draft.Do(Op::kFloor, {index}), draft.Layer(7, kDim, false));
  const auto said = draft.Add(draft.Do(Op::kTanh, {z}), draft.Add(scaled, row));
  return draft.Finish(draft.ReverseStep(z, said), said);
}

TEST(ProgramBackwardTest, AnIndexMayBeReadAsANumberToo) {
  for (const bool jumps : {false, true}) Process(IndexThatIsReadTwice(jumps)).Check();
}

// One space, as a server's lane: what overflowed in a request is not in the next.
TEST(ProgramBackwardTest, ARequestLeavesNothingToTheNext) {
  for (const bool jumps : {false, true}) {
    Process process(IndexThatIsReadTwice(jumps));
    const BackwardRig rig(*cpu::NewCpuBackend(), process.spec());
    const auto space = *rig.system().NewBackwardSpace({});
    const auto gradients_of = [&](float cotangent) {
      const std::vector<float> of_outputs(kDim, cotangent);
      const SampleInput input = InputOf(process.request().samples, 0, nullptr);
      std::vector<float> gradients(kInputs + kDim);
      space->Begin(0, {.input = &input,
                       .states = process.request().states.data(),
                       .of_outputs = of_outputs.data(),
                       .inputs = gradients.data(),
                       .initial = gradients.data() + kInputs});
      space->Retreat(1, 0, kSteps);
      space->Finish(0);
      return gradients;
    };
    const std::vector<float> first = gradients_of(1);
    for (const float cotangent : {3e38F, std::numeric_limits<float>::infinity(), 1.0F, 1.0F})
      if (cotangent != 1) gradients_of(cotangent);
    EXPECT_EQ(gradients_of(1), first);
    EXPECT_EQ(gradients_of(1), first);
  }
}

TEST(ProgramBackwardTest, AConditionThatNothingReadsHasNoGradient) {
  Draft draft;
  const auto z = draft.State(kDim);
  const auto said = draft.Do(Op::kTanh, {z});
  Process process(draft.Finish(draft.ReverseStep(z, said), said));
  process.Check();
  const BackwardRig rig(*cpu::NewCpuBackend(), process.spec());
  EXPECT_EQ(rig.Sequential(process.request()).inputs, (std::vector<float>{0, 0}));
}

// The condition of a select is one of its sides.
TEST(ProgramBackwardTest, ASelectByOneOfItsSides) {
  for (const int side : {1, 2}) {
    Draft draft;
    const auto z = draft.State(kDim);
    const auto t = draft.Do(Op::kTanh, {z}), h = draft.Do(Op::kSin, {z});
    const auto said =
        side == 1 ? draft.Do(Op::kSelect, {t, t, h}) : draft.Do(Op::kSelect, {t, h, t});
    Process(draft.Finish(draft.ReverseStep(z, said), said), 0).Check();
  }
}

// A side that is not chosen has no part in the gradient, whatever its slope is there.
TEST(ProgramBackwardTest, WhatIsNotChosenGivesNothing) {
  Draft draft;
  const auto z = draft.State(kDim);
  const auto positive = draft.Do(Op::kLess, {draft.Number(0, z), z});
  const auto root = draft.Do(Op::kSqrt, {z});  // of negative numbers, too
  const auto said = draft.Do(Op::kSelect, {positive, root, draft.By(Op::kMultiply, z, 0.5)});
  Process process(draft.Finish(draft.ReverseStep(z, said), said), 0);
  process.Check();
  const BackwardRig rig(*cpu::NewCpuBackend(), process.spec());
  for (const float g : rig.Sequential(process.request()).initial) EXPECT_TRUE(std::isfinite(g));
}

}  // namespace
}  // namespace deeppcr::testing
