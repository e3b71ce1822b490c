// SPDX-License-Identifier: Apache-2.0
// Every solver x family x size x backend, compared with the oracle in double. A new solver or
// backend joins by its registry row.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "kernels/reference/reference_ops.h"
#include "kernels/solver/registry.h"
#include "tests/testing/solver_rig.h"
#include "tests/testing/systems.h"

namespace deeppcr::testing {
namespace {

constexpr double kRtol = 1e-4;
constexpr double kFloor = 1e-6 / kRtol;
constexpr int64_t kSamples = 3;

std::vector<double> OracleTrajectories(const DenseStackSpec& spec,
                                       const std::vector<float>& inputs) {
  std::vector<double> all;
  for (size_t at = 0; at < inputs.size(); at += spec.input_dim()) {
    const std::vector<double> x(inputs.begin() + at, inputs.begin() + at + spec.input_dim());
    const std::vector<double> states = reference::Trajectory(spec, reference::Encode(spec, x));
    all.insert(all.end(), states.begin(), states.end());
  }
  return all;
}

struct Tally {
  int answers = 0;
  int fallbacks = 0;
};

// Checks one solver on one system.
void CheckSolver(const SolverRig& rig, const RandomSystem& system, const SolverRow& row,
                 const std::vector<float>& inputs, const Solved& sequential,
                 const std::vector<double>& oracle, Tally* tally) {
  const DenseStackSpec& spec = system.spec();
  const Solved solved = rig.Solve(OptionsFor(row.name, spec.num_steps, 8, kRtol), inputs);
  ASSERT_EQ(static_cast<int64_t>(solved.reports.size()), kSamples);
  const double rounding = RelativeError(sequential.trajectory, oracle, spec.state_dim, kFloor);
  for (const SampleReport& report : solved.reports) {
    EXPECT_TRUE(report.converged) << "an answer is certified or is the sequential one";
    tally->fallbacks += report.fallback ? 1 : 0;
    ++tally->answers;
  }
  if (rounding > 10 * kRtol) {
    // Single precision is lost here, so that only the sequential bits are an honest answer.
    EXPECT_TRUE(solved.SameAnswers(sequential));
    return;
  }
  const std::vector<double> expected(sequential.trajectory.begin(), sequential.trajectory.end());
  EXPECT_LE(RelativeError(solved.trajectory, expected, spec.state_dim, kFloor), kRtol);
  EXPECT_LE(RelativeError(solved.trajectory, oracle, spec.state_dim, kFloor),
            std::max(1.5 * kRtol, rounding));
}

class SolverConformanceTest : public ::testing::TestWithParam<std::tuple<size_t, bool>> {
 protected:
  const BackendCase& backend() const { return BackendCases()[std::get<0>(GetParam())]; }
  bool residual() const { return std::get<1>(GetParam()); }

  void CheckSystem(const StackOptions& shape) {
    SCOPED_TRACE(Describe(shape));
    const RandomSystem system(shape);
    const SolverRig rig(backend().create(), system.spec());
    const std::vector<float> inputs = system.Inputs(kSamples, shape.seed + 1);
    const std::vector<double> oracle = OracleTrajectories(system.spec(), inputs);
    const Solved sequential = rig.Solve({.solver = "sequential"}, inputs);
    for (const SolverRow& row : Solvers()) {
      SCOPED_TRACE(std::string(row.name));
      CheckSolver(rig, system, row, inputs, sequential, oracle, &tallies_[std::string(row.name)]);
    }
  }

  std::map<std::string, Tally> tallies_;
};

TEST_P(SolverConformanceTest, EverySizeAgreesWithTheOracle) {
  uint64_t seed = 1;
  for (const int64_t steps : kAwkwardSteps) {
    for (const int64_t width : kAwkwardWidths) {
      // The reference is slow.
      if (backend().name == "reference" && steps * width > 4000) continue;
      if (steps * width * width > 1200000) continue;  // minutes under a sanitizer
      CheckSystem({.num_steps = steps,
                   .state_dim = width,
                   .residual = residual(),
                   .activation = kActivationNames[seed % std::size(kActivationNames)].activation,
                   .gain = 0.9,
                   .input_dim = seed % 2 == 0 ? 5 : 0,
                   .output_dim = seed % 3 == 0 ? 7 : 0,
                   .seed = seed});
      ++seed;
    }
  }
  // If all answers came from the fallback, they would agree as well and prove nothing.
  EXPECT_EQ(tallies_["sequential"].fallbacks, 0);
  EXPECT_LE(tallies_["newton"].fallbacks, tallies_["newton"].answers / 20);
  for (const SolverRow& row : Solvers()) {
    const Tally& tally = tallies_[std::string(row.name)];
    EXPECT_LT(tally.fallbacks, tally.answers / 2) << row.name;
  }
}

TEST_P(SolverConformanceTest, EveryActivationAgreesWithTheOracle) {
  for (const ActivationName& activation : kActivationNames) {
    CheckSystem({.num_steps = 97,
                 .state_dim = 6,
                 .residual = residual(),
                 .activation = activation.activation,
                 .gain = 0.8,
                 .input_dim = 4,
                 .output_dim = 3,
                 .seed = 77});
  }
  EXPECT_EQ(tallies_["newton"].fallbacks, 0);
}

INSTANTIATE_TEST_SUITE_P(Backends, SolverConformanceTest,
                         ::testing::Combine(::testing::Range(size_t{0}, BackendCases().size()),
                                            ::testing::Bool()),
                         [](const auto& test) {
                           return BackendCases()[std::get<0>(test.param)].name +
                                  (std::get<1>(test.param) ? "_resnet" : "_mlp");
                         });

class ChaoticSystemTest : public ::testing::TestWithParam<size_t> {};

TEST_P(ChaoticSystemTest, FallsBackToTheSequentialBitsAndSaysSo) {
  const RandomSystem system({.num_steps = 1024, .state_dim = 16, .gain = 2.0, .seed = 5});
  const SolverRig rig(BackendCases()[GetParam()].create(), system.spec());
  const std::vector<float> inputs = system.Inputs(1, 6);

  const Solved sequential = rig.Solve({.solver = "sequential"}, inputs);
  const Solved newton = rig.Solve(OptionsFor("newton", 1024, 4, kRtol), inputs);

  const SampleReport& report = newton.reports[0];
  EXPECT_GT(report.iterations, 0);
  EXPECT_TRUE(report.fallback);
  EXPECT_EQ(report.termination, Termination::kDirect);
  EXPECT_EQ(report.attempt.solver, "newton");
  EXPECT_NE(report.attempt.termination, Termination::kConverged);
  EXPECT_EQ(report.solver, "sequential");
  EXPECT_GT(report.dependent_stages, 1024) << "the failed attempt is part of the bill";
  EXPECT_TRUE(newton.SameAnswers(sequential));
}

TEST_P(ChaoticSystemTest, ReturnsUnconvergedWhereTheRequestSaysSo) {
  const RandomSystem system({.num_steps = 1024, .state_dim = 16, .gain = 2.0, .seed = 5});
  const SolverRig rig(BackendCases()[GetParam()].create(), system.spec());
  ResolvedOptions options = OptionsFor("newton", 1024, 4, kRtol);
  options.on_no_convergence = OnNoConvergence::kReturn;

  const SampleReport report = rig.Solve(options, system.Inputs(1, 6)).reports[0];

  EXPECT_FALSE(report.converged);
  EXPECT_FALSE(report.fallback);
  EXPECT_EQ(report.solver, "newton");
}

INSTANTIATE_TEST_SUITE_P(Backends, ChaoticSystemTest,
                         ::testing::Range(size_t{0}, BackendCases().size()),
                         [](const auto& test) { return BackendCases()[test.param].name; });

}  // namespace
}  // namespace deeppcr::testing
