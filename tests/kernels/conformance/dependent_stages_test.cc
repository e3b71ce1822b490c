// SPDX-License-Identifier: Apache-2.0
// Dependent stages, as counted by the loops, compared with the formula in the documentation.
#include <gtest/gtest.h>

#include <bit>

#include "tests/testing/solver_rig.h"
#include "tests/testing/systems.h"

namespace deeppcr::testing {
namespace {

// The stages of a pass: C steps, an up-sweep and a down-sweep, and the update.
int64_t StagesPerPass(int64_t steps, int64_t interval) {
  const int64_t intervals = (steps - 1) / interval + 1;
  const int64_t levels = std::bit_width(static_cast<uint64_t>(intervals - 1));
  return interval + (levels > 0 ? 2 * levels - 1 : 0) + 1;
}

class DependentStagesTest : public ::testing::TestWithParam<int64_t> {};

TEST_P(DependentStagesTest, NewtonGrowsWithTheLogarithmOfDepthAndSequentialWithDepth) {
  const int64_t steps = GetParam();
  const RandomSystem system(
      {.num_steps = steps, .state_dim = 4, .residual = true, .gain = 0.5, .seed = 31});
  const SolverRig rig(BackendCases().front().create(), system.spec());
  const std::vector<float> inputs = system.Inputs(1, 32);
  EXPECT_EQ(rig.Solve({.solver = "sequential"}, inputs).reports[0].dependent_stages, steps);
  for (const int64_t interval : {1, 16, 32}) {
    ResolvedOptions options = OptionsFor("newton", steps, interval, 1e-4);
    options.warm_sweeps = 2;
    const SampleReport report = rig.Solve(options, inputs).reports[0];
    ASSERT_TRUE(report.converged && !report.fallback);
    const int64_t updates = report.iterations + report.chord_corrections + report.warm_sweeps;
    const int64_t passes = updates + report.confirmations;
    EXPECT_EQ(report.warm_sweeps, 2);
    // States that causality has made exact need no confirmation.
    const bool exact = updates >= (steps - 1) / interval + 1;
    EXPECT_EQ(report.confirmations > 0, !exact) << "C=" << interval;
    EXPECT_EQ(report.dependent_stages, passes * StagesPerPass(steps, interval)) << "C=" << interval;
    // A pass has a primal column, a linearisation D tangents, and the correction that is to be
    // confirmed four probes; a confirmation has none.
    EXPECT_GE(report.column_passes, passes + 4 * report.iterations + 4);
    EXPECT_LE(report.column_passes, passes + 4 * report.iterations + 4 * report.chord_corrections);
  }
}

INSTANTIATE_TEST_SUITE_P(Depths, DependentStagesTest,
                         ::testing::Values(64, 100, 256, 1024, 4096, 16384));

}  // namespace
}  // namespace deeppcr::testing
