// SPDX-License-Identifier: Apache-2.0
// The derivative by the noise of every step, on every backend: of factors of either sign, and of
// elements that are known beforehand, which take none of it. Compared with differences of runs in
// double precision.
#include <gtest/gtest.h>

#include <cmath>
#include <utility>
#include <vector>

#include "kernels/program/known_elements.h"
#include "tests/kernels/program/draft.h"
#include "tests/testing/backward_rig.h"
#include "tests/testing/solver_rig.h"

namespace deeppcr::testing {
namespace {

using program::Draft;
using program::Op;
using program::Program;
using program::ValueId;

class StepNoiseTest : public ::testing::TestWithParam<size_t> {
 protected:
  static constexpr int64_t kSteps = 4, kDim = 3;
  static constexpr float kFactors[kSteps] = {0.5F, -0.25F, 0, -0.75F};

  // z' = 0.8 z + 0.3 tanh(z's sum) + sigma noise, with known elements.
  StepNoiseTest() {
    Draft draft(1);
    const ValueId z = draft.State(kDim);
    const ValueId sum = draft.Along(Op::kSum, z, {1, kDim, 1});
    const ValueId m = draft.Broadcast(draft.Do(Op::kTanh, {sum}), {1, kDim, 1});
    program_ = program::WithKnownElements(draft.Finish(draft.ReverseStep(z, m), m)).value();
    for (int64_t l = 0; l < kSteps; ++l)
      steps_.push_back({.timestep = static_cast<double>(kSteps - l),
                        .x0_z = 1,
                        .z_z = 0.8,
                        .z_m = 0.3,
                        .sigma = kFactors[l]});
  }
  SystemSpec spec() const {
    return DiffusionProgramSpec{.state_dim = kDim,
                                .steps = steps_,
                                .clip_range = INFINITY,
                                .program = &program_,
                                .step_weights = 10,
                                .condition_dim = 2 * kDim};
  }
  SampleInputs Inputs() const {
    return {.num_samples = 1,
            .inputs = known_,
            .initial_noise = std::span(noise_).first(kDim),
            .step_noise = std::span(noise_).subspan(kDim)};
  }

  Program program_;
  std::vector<ReverseStep> steps_;
  std::vector<float> known_ = {0, 1, 0, 0, 0.5F, 0};  // the mask, and the values
  std::vector<float> noise_ = {0.3F, -1.1F, 0.7F,  0.2F,  0.9F, -0.4F, 1.3F, -0.6F,
                               0.1F, -0.8F, 0.45F, -0.2F, 0.6F, 1.2F,  -0.9F};
};

TEST_P(StepNoiseTest, IsThatOfDifferences) {
  constexpr float kDistance = 0x1p-9F;
  const SolverRig oracle(BackendCases().back().create(), spec());
  BackwardRequest request{.samples = Inputs(), .of_outputs = {1, -2, 3}};
  request.states = oracle.Solve({.solver = "sequential"}, Inputs()).trajectory;
  const BackwardRig rig(BackendCases()[GetParam()].create(), spec());
  const std::vector<Gradients> ways = {rig.Sequential(request), rig.Parallel(request, 1),
                                       rig.Parallel(request, 3)};
  const auto form_at = [&](size_t i, float to) {
    const float from = std::exchange(noise_[i], to);
    const Solved solved = oracle.Solve({.solver = "sequential"}, Inputs());
    noise_[i] = from;
    double sum = 0;
    for (size_t k = 0; k < kDim; ++k) sum += double{request.of_outputs[k]} * solved.outputs[k];
    return sum;
  };
  for (size_t i = 0; i < noise_.size(); ++i) {
    SCOPED_TRACE(i);
    const double rise = form_at(i, noise_[i] + kDistance) - form_at(i, noise_[i] - kDistance);
    for (const Gradients& way : ways)
      EXPECT_NEAR(i < kDim ? way.initial[i] : way.step_noise[i - kDim], rise / (2 * kDistance),
                  1e-3);
  }
  for (const Gradients& way : ways) {
    EXPECT_EQ(way.step_noise[kDim * (kSteps - 1) + 1], 0) << "a known element";
    EXPECT_NEAR(way.step_noise[kDim * (kSteps - 1) + 2], -0.75 * 3, 1e-6) << "the last step's";
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, StepNoiseTest,
                         ::testing::Range(size_t{0}, BackendCases().size()),
                         [](const auto& test) { return BackendCases()[test.param].name; });

}  // namespace
}  // namespace deeppcr::testing
