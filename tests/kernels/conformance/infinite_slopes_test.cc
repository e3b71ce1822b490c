// SPDX-License-Identifier: Apache-2.0
// Slopes that are infinite where the state is finite: a root of what is clipped to zero stands
// still, so it has no part in any derivative, on every backend.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "kernels/solver/registry.h"
#include "tests/kernels/program/draft.h"
#include "tests/testing/backward_rig.h"
#include "tests/testing/solver_rig.h"

namespace deeppcr::testing {
namespace {

using program::Draft;
using program::Op;
using program::Program;
using program::ValueId;

constexpr int64_t kRootSteps = 6, kRootDim = 3;

// What stands still at negative states, or beyond one, with an infinite slope on the way.
struct RootRow {
  const char* name;
  std::function<ValueId(Draft& draft, ValueId z)> write;
  bool certified = true;  // no rounding wakes what stands still
  bool clipped = false;   // the network says x0, beyond its clip
};
const std::vector<RootRow> kRoots = {
    {"RootOfRelu", [](Draft& d, ValueId z) { return d.Do(Op::kSqrt, {d.Do(Op::kRelu, {z})}); }},
    {"PowerOfRelu",
     [](Draft& d, ValueId z) { return d.By(Op::kPower, d.Do(Op::kRelu, {z}), 0.5); }},
    {"RootOfClip",
     [](Draft& d, ValueId z) {
       const ValueId rest = d.Subtract(d.Number(0.5, z), d.Multiply(z, z));
       return d.Do(Op::kSqrt, {d.By(Op::kMaximum, rest, 0)});
     }},
    {"Length",
     [](Draft& d, ValueId z) {
       const ValueId x = d.Do(Op::kRelu, {z});
       const ValueId sum = d.Along(Op::kSum, d.Multiply(x, x), {1, kRootDim, 1});
       return d.Broadcast(d.Do(Op::kSqrt, {sum}), {1, kRootDim, 1});
     }},
    // The slope of the relu is zero, behind one that is infinite at the first state.
    {"ReluOfRoot",
     [](Draft& d, ValueId z) {
       const ValueId root = d.Do(Op::kSqrt, {d.Add(z, d.Constant({3, 2.5, 4}))});
       return d.Do(Op::kRelu, {d.By(Op::kAdd, d.Do(Op::kNegate, {root}), -1)});
     },
     false},
    {"ClippedRoot",
     [](Draft& d, ValueId z) {
       return d.By(Op::kAdd, d.Do(Op::kSqrt, {d.Add(z, d.Constant({3, 2.5, 4}))}), 5);
     },
     false, true},
    {"RootOfLargest",
     [](Draft& d, ValueId z) {
       const ValueId largest = d.Along(Op::kLargest, d.Do(Op::kRelu, {z}), {1, kRootDim, 1});
       return d.Broadcast(d.Do(Op::kSqrt, {largest}), {1, kRootDim, 1});
     }},
    {"SideNotChosen",
     [](Draft& d, ValueId z) {
       const ValueId zero = d.Number(0, z);
       const ValueId root = d.Do(Op::kSqrt, {d.Do(Op::kRelu, {z})});
       return d.Do(Op::kSelect, {d.Do(Op::kLess, {z, zero}), zero, root});
     }},
};

// z' = 0.9 z + 0.1 of the row, or of its clip.
Program ProgramOfRoot(const RootRow& row) {
  Draft draft(1);
  const ValueId z = draft.State(kRootDim);
  const ValueId moved = row.write(draft, z);
  return draft.Finish(draft.ReverseStep(z, moved), moved);
}
std::vector<ReverseStep> StepsOfRoot(bool clipped) {
  std::vector<ReverseStep> steps;
  for (int64_t l = 0; l < kRootSteps; ++l)
    steps.push_back({.timestep = static_cast<double>(kRootSteps - l),
                     .x0_z = clipped ? 0.0 : 1.0,
                     .x0_m = clipped ? 1.0 : 0.0,
                     .z_z = 0.9,
                     .z_m = clipped ? 0 : 0.1,
                     .z_x0 = clipped ? 0.1 : 0});
  return steps;
}

class InfiniteSlopesTest : public ::testing::TestWithParam<size_t> {
 protected:
  std::unique_ptr<Backend> NewBackend() const { return BackendCases()[GetParam()].create(); }

  // Calls f(spec) with each row's system.
  void ForRoots(const std::function<void(const RootRow& row, const SystemSpec& spec)>& f) const {
    for (const RootRow& row : kRoots) {
      SCOPED_TRACE(row.name);
      const std::vector<ReverseStep> steps = StepsOfRoot(row.clipped);
      const Program program = ProgramOfRoot(row);
      f(row, DiffusionProgramSpec{.state_dim = kRootDim,
                                  .steps = steps,
                                  .clip_range = row.clipped ? 1.0F : INFINITY,
                                  .program = &program,
                                  .step_weights = 10});
    }
  }

  static constexpr std::array<float, kRootDim> kStart = {-3, -2.5F,
                                                         -4};  // 0.9^6 of it is below -1.3
};

TEST_P(InfiniteSlopesTest, EverySolverConverges) {
  ForRoots([&](const RootRow& system, const SystemSpec& spec) {
    const SolverRig rig(NewBackend(), spec);
    const SampleInputs request{.num_samples = 1, .initial_noise = kStart};
    const Solved sequential = rig.Solve({.solver = "sequential"}, request);
    for (const SolverRow& row : Solvers()) {
      if (!row.iterative || !Suits(row, ShapeOf(spec))) continue;
      SCOPED_TRACE(row.name);
      const Solved solved = rig.Solve(OptionsFor(row.name, kRootSteps, 1, 1e-4), request);
      EXPECT_TRUE(solved.reports[0].converged);
      EXPECT_TRUE(!system.certified || !solved.reports[0].fallback);
      EXPECT_NE(solved.reports[0].attempt.termination, Termination::kNonFinite);
      for (size_t i = 0; i < sequential.trajectory.size(); ++i)
        EXPECT_NEAR(solved.trajectory[i], sequential.trajectory[i], 1e-3);
    }
  });
}

TEST_P(InfiniteSlopesTest, GradientsAreThoseOfTheRest) {
  ForRoots([&](const RootRow&, const SystemSpec& spec) {
    const SampleInputs request{.num_samples = 1, .initial_noise = kStart};
    const std::vector<float> states =
        SolverRig(NewBackend(), spec).Solve({.solver = "sequential"}, request).trajectory;
    const BackwardRig rig(NewBackend(), spec);
    const BackwardRequest back{.samples = request, .states = states, .of_outputs = {1, -1, 0}};
    for (const Gradients& way :
         {rig.Sequential(back), rig.Parallel(back, 1), rig.Parallel(back, 4)})
      for (int64_t i = 0; i < kRootDim; ++i)
        EXPECT_NEAR(way.initial[i], back.of_outputs[i] * std::pow(0.9, kRootSteps), 1e-6);
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, InfiniteSlopesTest,
                         ::testing::Range(size_t{0}, BackendCases().size()),
                         [](const auto& test) { return BackendCases()[test.param].name; });

}  // namespace
}  // namespace deeppcr::testing
