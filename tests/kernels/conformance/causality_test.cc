// SPDX-License-Identifier: Apache-2.0
// After k updates the first k intervals equal the sequential states in every bit, whatever the
// transition matrices; and bits do not depend on the other samples of a batch.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>

#include "kernels/solver/registry.h"
#include "tests/testing/solver_rig.h"
#include "tests/testing/systems.h"

namespace deeppcr::testing {
namespace {

// Counts the leading steps at which two trajectories agree in every bit.
int64_t EqualSteps(const std::vector<float>& a, const std::vector<float>& b, int64_t dim) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::bit_cast<uint32_t>(a[i]) != std::bit_cast<uint32_t>(b[i]))
      return static_cast<int64_t>(i) / dim - 1;
  }
  return static_cast<int64_t>(a.size()) / dim - 1;
}

class CausalityTest : public ::testing::TestWithParam<size_t> {
 protected:
  std::unique_ptr<Backend> NewBackend() const { return BackendCases()[GetParam()].create(); }
};

TEST_P(CausalityTest, EveryUpdateMakesOneMoreIntervalExact) {
  // Relu networks have signed zeros, and a wrong sign is a wrong bit.
  for (const Activation activation : {Activation::kTanh, Activation::kRelu}) {
    const RandomSystem system(
        {.num_steps = 67, .state_dim = 5, .activation = activation, .gain = 1.3, .seed = 11});
    const SolverRig rig(NewBackend(), system.spec());
    const std::vector<float> inputs = system.Inputs(1, 12);
    const Solved sequential = rig.Solve({.solver = "sequential"}, inputs);
    for (const SolverRow& row : Solvers()) {
      if (!row.iterative) continue;
      for (const int64_t interval : {1, 4, 9}) {
        if (row.max_shooting_interval > 0 && interval > row.max_shooting_interval) continue;
        for (int32_t k = 1; k <= 12; ++k) {
          ResolvedOptions options = OptionsFor(row.name, 67, interval, 1e-7);
          options.max_iterations = k;
          options.on_no_convergence = OnNoConvergence::kReturn;
          const Solved solved = rig.Solve(options, inputs);
          const SampleReport& report = solved.reports[0];
          if (report.termination == Termination::kNonFinite) break;
          const int64_t updates = report.iterations + report.chord_corrections;
          // The solve went on for k updates, or knew that it was done.
          EXPECT_TRUE(updates >= k || report.termination == Termination::kConverged ||
                      report.termination == Termination::kPrecisionLimited);
          EXPECT_GE(EqualSteps(solved.trajectory, sequential.trajectory, 5),
                    std::min<int64_t>(67, updates * interval))
              << row.name << " C=" << interval << " k=" << k;
        }
      }
    }
  }
}

TEST_P(CausalityTest, BitsDoNotDependOnTheBatch) {
  const RandomSystem system({.num_steps = 150,
                             .state_dim = 6,
                             .residual = true,
                             .input_dim = 9,
                             .output_dim = 4,
                             .seed = 21});
  const SolverRig one_thread(NewBackend(), system.spec(), 1),
      four_threads(NewBackend(), system.spec(), 4);
  const std::vector<float> inputs = system.Inputs(13, 22);
  for (const SolverRow& row : Solvers()) {
    const ResolvedOptions options = OptionsFor(row.name, 150, 8, 1e-4);
    const Solved together = one_thread.Solve(options, inputs);
    EXPECT_TRUE(together.SameAnswers(one_thread.Solve(options, inputs)))
        << row.name << ": repeated";
    EXPECT_TRUE(together.SameAnswers(four_threads.Solve(options, inputs)))
        << row.name << ": four threads";
    for (int64_t s = 0; s < 13; ++s) {
      const Solved alone =
          one_thread.Solve(options, {inputs.begin() + s * 9, inputs.begin() + (s + 1) * 9});
      EXPECT_TRUE(
          std::equal(alone.outputs.begin(), alone.outputs.end(), together.outputs.begin() + s * 4))
          << row.name;
      EXPECT_EQ(EqualSteps(alone.trajectory,
                           {together.trajectory.begin() + s * 151 * 6,
                            together.trajectory.begin() + (s + 1) * 151 * 6},
                           6),
                150)
          << row.name << " sample " << s;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, CausalityTest,
                         ::testing::Range(size_t{0}, BackendCases().size()),
                         [](const auto& test) { return BackendCases()[test.param].name; });

}  // namespace
}  // namespace deeppcr::testing
