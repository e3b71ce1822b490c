// SPDX-License-Identifier: Apache-2.0
// Claims of convergence at tolerances of per cents, by denoisers that clip. stopping_test.cc tests
// the bound that limits a correction there: these systems meet the bound by themselves.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/testing/larger.h"
#include "tests/testing/random_diffusion.h"
#include "tests/testing/solver_rig.h"

namespace deeppcr::testing {
namespace {

constexpr int kProcesses = 1000;

DiffusionOptions Shape(int index) {
  return {.kind = index % 2 == 0 ? DenoiserKind::kResidualMlp : DenoiserKind::kAdaLnMlp,
          .state_dim = 1 + index % 5,
          .num_blocks = 1 + index % 2,
          .num_steps = 8 + 7 * (index % 9),
          .clip = index % 4 != 3,
          .output_gain = 0.2 + 0.15 * (index % 11),
          .first_signal = 0.02 + 0.05 * (index % 6),
          .ddpm = index % 3 == 0,
          .seed = static_cast<uint64_t>(index) + 100};
}

// The largest error of a state at the end of an interval, as the certificate bounds it.
double WorstError(const Solved& got, const Solved& want, const ResolvedOptions& options,
                  int64_t steps, int64_t dim) {
  double worst = 0;
  for (int64_t l = options.shooting_interval; l < steps + options.shooting_interval;
       l += options.shooting_interval) {
    const int64_t at = std::min(l, steps) * dim;
    double error = 0, size = 0;
    for (int64_t i = 0; i < dim; ++i) {
      const double state = want.trajectory[at + i];
      error = Larger(error, std::fabs(got.trajectory[at + i] - state));
      size = Larger(size, std::fabs(state));
    }
    worst = Larger(worst, error / (size + options.atol / options.rtol));
  }
  return worst;
}

TEST(LooseToleranceTest, NoClaimOfAClippedDenoiserIsFalse) {
  int converged = 0, solves = 0;
  for (int index = 0; index < kProcesses; ++index) {
    const DiffusionOptions shape = Shape(index);
    const RandomDiffusion process(shape);
    const SolverRig rig(BackendCases().front().create(), process.spec());
    const SampleInputs request{.num_samples = 1, .seed = 5};
    const Solved sequential = rig.Solve({.solver = "sequential"}, request);
    if (!sequential.reports[0].converged) continue;
    for (const char* solver : {"newton", "picard", "jacobi"}) {
      for (const double rtol : {0.1, 0.03, 0.01}) {
        ResolvedOptions options = OptionsFor(solver, shape.num_steps, 1 + 3 * (index % 2), rtol);
        options.initial_guess = index % 3 == 0 ? InitialGuess::kCoarse : InitialGuess::kConstant;
        options.on_no_convergence = OnNoConvergence::kReturn;
        const Solved got = rig.Solve(options, request);
        ++solves;
        if (!got.reports[0].converged) continue;
        ++converged;
        EXPECT_LE(WorstError(got, sequential, options, shape.num_steps, shape.state_dim), rtol)
            << "process " << index << ", " << solver << ", rtol " << rtol;
      }
    }
  }
  EXPECT_GT(converged, solves / 2);
}

}  // namespace
}  // namespace deeppcr::testing
