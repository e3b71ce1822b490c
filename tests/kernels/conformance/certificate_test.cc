// SPDX-License-Identifier: Apache-2.0
// The honesty of claims and error estimates: a thousand random systems around the edge of
// stability, at three tolerances, through every iterative solver.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/reference/reference_ops.h"
#include "kernels/solver/registry.h"
#include "tests/testing/solver_rig.h"
#include "tests/testing/systems.h"

namespace deeppcr::testing {
namespace {

constexpr int64_t kInterval = 4;

// The number of systems to draw; the slow run of this test asks for more.
int NumSystems() {
  const char* text = std::getenv("DEEPPCR_TEST_SYSTEMS");
  return text == nullptr ? 1000 : std::atoi(text);
}

struct Ranges {
  int64_t min_dim, max_dim, min_steps, max_steps;
  double max_gain;  // gains go from 0.5 to this
};

// Draws every activation, and three MLPs for each residual network.
StackOptions DrawShape(int seed, const Ranges& ranges) {
  std::mt19937_64 generator(seed);
  const auto within = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(generator() % static_cast<uint64_t>(high - low + 1));
  };
  StackOptions shape;
  shape.state_dim = within(ranges.min_dim, ranges.max_dim);
  shape.num_steps = within(ranges.min_steps, ranges.max_steps);
  shape.gain = 0.5 + (ranges.max_gain - 0.5) * static_cast<double>(within(0, 999999)) / 1e6;
  shape.residual = seed % 4 == 3;
  shape.activation = kActivationNames[within(0, std::size(kActivationNames) - 1)].activation;
  shape.seed = seed;
  return shape;
}

// A system around the edge of stability.
StackOptions EdgeShape(int index) { return DrawShape(1000 + index, {2, 16, 16, 256, 2.2}); }

// A system from wider ranges, with biases that saturate: probes overflow to NaN there, which a
// maximum may lose.
StackOptions RoughShape(int index) {
  StackOptions shape = DrawShape(50000 + index, {1, 16, 8, 407, 3.0});
  shape.bias = index % 2 == 1 ? 0.1 : 1.0;
  return shape;
}

// The states at the ends of intervals, which are those that the contract covers.
template <class T>
std::vector<T> IntervalEnds(const std::vector<T>& trajectory, int64_t steps, int64_t dim,
                            int64_t interval) {
  std::vector<T> ends;
  for (int64_t l = interval; l < steps + interval; l += interval) {
    const auto z = trajectory.begin() + std::min(l, steps) * dim;
    ends.insert(ends.end(), z, z + dim);
  }
  return ends;
}

struct Tally {
  int solves = 0, converged = 0;
  int false_single = 0, false_double = 0;
  int estimates = 0, estimates_close = 0;
  int precise = 0, precise_converged = 0;
  double worst_single = 0, worst_double = 0;  // largest errors, in units of the tolerance
};

// A system with everything that judges a solver's claim.
struct Judge {
  explicit Judge(const StackOptions& drawn)
      : shape(drawn),
        system(shape),
        rig(*cpu::NewCpuBackend(), system.spec()),
        inputs(system.Inputs(1, drawn.seed)),
        sequential(rig.Solve({.solver = "sequential"}, inputs)),
        oracle(reference::Trajectory(system.spec(),
                                     std::vector<double>(inputs.begin(), inputs.end()))) {}

  void Run(const SolverRow& row, double rtol, Tally* tally) const {
    Run(OptionsFor(row.name, shape.num_steps, kInterval, rtol), tally);
  }

  void Run(ResolvedOptions options, Tally* tally) const {
    const double rtol = options.rtol;
    options.on_no_convergence = OnNoConvergence::kReturn;
    const Solved solved = rig.Solve(options, inputs);
    const double floor = options.atol / rtol;
    const auto ends = [&](const auto& t) {
      return IntervalEnds(t, shape.num_steps, shape.state_dim, options.shooting_interval);
    };
    const std::vector<float> single_ends = ends(sequential.trajectory),
                             got = ends(solved.trajectory);
    const std::vector<double> exact = ends(oracle);
    const std::vector<double> single(single_ends.begin(), single_ends.end());
    const double to_single = RelativeError(got, single, shape.state_dim, floor);
    const double to_double = RelativeError(got, exact, shape.state_dim, floor);
    const double rounding = RelativeError(single_ends, exact, shape.state_dim, floor);
    Count(solved.reports[0], rtol, to_single, to_double, rounding, tally);
  }

  void Count(const SampleReport& report, double rtol, double to_single, double to_double,
             double rounding, Tally* tally) const {
    ++tally->solves;
    if (rounding < rtol / 10) {
      ++tally->precise;
      tally->precise_converged += report.converged ? 1 : 0;
    }
    if (!report.converged) return;
    ++tally->converged;
    tally->worst_single = std::max(tally->worst_single, to_single / rtol);
    tally->worst_double = std::max(tally->worst_double, to_double / rtol);
    tally->false_single += to_single > rtol ? 1 : 0;
    tally->false_double += to_double > 1.5 * rtol ? 1 : 0;
    const double error = std::max(to_single, to_double);
    ++tally->estimates;
    const double estimate = report.error_estimate.value_or(0);
    tally->estimates_close += estimate <= 10 * error && error <= 10 * estimate ? 1 : 0;
    EXPECT_LE(to_single, rtol) << Describe(shape) << " rtol=" << rtol;
    EXPECT_LE(to_double, 1.5 * rtol) << Describe(shape) << " rtol=" << rtol;
  }

  const StackOptions shape;
  const RandomSystem system;
  const SolverRig rig;
  const std::vector<float> inputs;
  const Solved sequential;
  const std::vector<double> oracle;
};

double Percent(int part, int whole) { return 100.0 * part / std::max(whole, 1); }

TEST(CertificateTest, NoClaimIsFalseAndEstimatesAreCloseAroundTheEdgeOfStability) {
  constexpr double kTolerances[] = {1e-3, 1e-4, 1e-5};
  std::vector<std::vector<Tally>> tallies(Solvers().size(), std::vector<Tally>(3));
  const int num_systems = NumSystems();
  for (int index = 0; index < num_systems; ++index) {
    const Judge judge(EdgeShape(index));
    // There is nothing to compare with if the sequential run overflows.
    if (!judge.sequential.reports[0].converged) continue;
    for (size_t s = 0; s < Solvers().size(); ++s) {
      for (size_t t = 0; t < 3 && Solvers()[s].iterative; ++t)
        judge.Run(Solvers()[s], kTolerances[t], &tallies[s][t]);
    }
  }
  std::printf("%-13s %-6s %6s %10s %14s %14s %12s %12s %12s\n", "solver", "rtol", "solves",
              "converged", "false (fp32)", "false (1.5x)", "worst/rtol", "close est.",
              "precise ok");
  for (size_t s = 0; s < Solvers().size(); ++s) {
    for (size_t t = 0; t < 3 && Solvers()[s].iterative; ++t) {
      const Tally& tally = tallies[s][t];
      std::printf("%-13s %-6.0e %6d %10d %14d %14d %5.2f/%-6.2f %11.1f%% %11.1f%%\n",
                  std::string(Solvers()[s].name).c_str(), kTolerances[t], tally.solves,
                  tally.converged, tally.false_single, tally.false_double, tally.worst_single,
                  tally.worst_double, Percent(tally.estimates_close, tally.estimates),
                  Percent(tally.precise_converged, tally.precise));
      EXPECT_GT(tally.solves, 0.9 * num_systems);
      EXPECT_EQ(tally.false_single, 0);
      EXPECT_EQ(tally.false_double, 0);
      EXPECT_GE(Percent(tally.estimates_close, tally.estimates), 90.0);
      if (Solvers()[s].name == "newton") {
        EXPECT_GE(Percent(tally.precise_converged, tally.precise), 90.0);
      } else {
        EXPECT_GT(tally.converged, 100) << "too few claims to judge";
      }
    }
  }
}

// Runs Newton with every combination of options.
TEST(CertificateTest, NoClaimIsFalseWhateverTheOptionsOfNewton) {
  Tally tally;
  const int num_systems = NumSystems() / 5;
  for (int index = 0; index < num_systems; ++index) {
    const Judge judge(EdgeShape(5 * index));
    if (!judge.sequential.reports[0].converged) continue;
    for (const int64_t interval : {1, 4, 16, 64}) {
      for (const int32_t sweeps : {0, 4}) {
        for (const JacobianRefresh refresh :
             {JacobianRefresh::kEveryIteration, JacobianRefresh::kWhileContracting}) {
          ResolvedOptions options = OptionsFor("newton", judge.shape.num_steps, interval, 1e-4);
          options.warm_sweeps = sweeps;
          options.jacobian_refresh = refresh;
          judge.Run(options, &tally);
        }
      }
    }
  }
  EXPECT_GT(tally.converged, 12 * num_systems);
}

TEST(CertificateTest, NoClaimIsFalseWhereProbesOverflow) {
  Tally tally;
  constexpr int kSystems = 300;
  for (int index = 0; index < kSystems; ++index) {
    const Judge judge(RoughShape(index));
    if (!judge.sequential.reports[0].converged) continue;
    for (const SolverRow& row : Solvers()) {
      for (const double rtol : {1e-2, 1e-4}) {
        if (!row.iterative) continue;
        ResolvedOptions options = OptionsFor(row.name, judge.shape.num_steps, kInterval, rtol);
        options.jacobian_refresh = JacobianRefresh::kWhileContracting;
        judge.Run(options, &tally);
      }
    }
  }
  EXPECT_GT(tally.converged, 3 * kSystems);
}

}  // namespace
}  // namespace deeppcr::testing