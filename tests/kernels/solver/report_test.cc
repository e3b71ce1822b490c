// SPDX-License-Identifier: Apache-2.0
// The values that reports give for an answer, and the values that they leave out.
#include "kernels/solver/report.h"

#include <gtest/gtest.h>

#include <map>

#include "kernels/solver/registry.h"
#include "tests/testing/solver_rig.h"
#include "tests/testing/systems.h"

namespace deeppcr::testing {
namespace {

constexpr int64_t kSteps = 48, kDim = 4;

// A solve and how newton ends it; every case ends differently.
struct Ending {
  Termination by_newton;
  StackOptions stack;
  double rtol = 1e-4;
  int32_t max_iterations = 0;  // 0: as many as make the states exact
  bool automatic = false;
};

StackOptions Stack(Activation activation, double gain) {
  return {.num_steps = kSteps,
          .state_dim = kDim,
          .activation = activation,
          .gain = gain,
          .input_dim = 2,
          .output_dim = 3};
}

std::vector<Ending> Endings() {
  return {{Termination::kConverged, Stack(Activation::kTanh, 0.8)},
          {Termination::kMaxIterations, Stack(Activation::kTanh, 2.5), 1e-6, 1},
          {Termination::kPrecisionLimited, Stack(Activation::kTanh, 1.2), 1e-7},
          {Termination::kNonFinite, Stack(Activation::kRelu, 1e5)},
          {Termination::kSlow, Stack(Activation::kTanh, 2.5), 1e-4, 0, true}};
}

ResolvedOptions OptionsOf(const Ending& ending, std::string_view solver, OnNoConvergence action) {
  ResolvedOptions options = OptionsFor(solver, kSteps, 1, ending.rtol);
  options.max_iterations = ending.max_iterations > 0 ? ending.max_iterations : kSteps;
  options.automatic = ending.automatic;
  options.on_no_convergence = action;
  return options;
}

void ExpectNoEstimate(const SampleReport& report, const std::string& what) {
  EXPECT_FALSE(report.error_estimate.has_value()) << what;
  EXPECT_FALSE(report.output_error_estimate.has_value()) << what;
}

// Expects a consistent report of an answer by an iterative solver.
void ExpectHonest(const SampleReport& report, double rtol, const std::string& what) {
  EXPECT_EQ(report.converged, report.termination == Termination::kConverged) << what;
  EXPECT_FALSE(report.fallback) << what;
  const bool limited = report.termination == Termination::kPrecisionLimited;
  EXPECT_EQ(report.rounding_estimate.has_value(), report.converged || limited) << what;
  EXPECT_EQ(report.update.has_value(), report.termination != Termination::kNonFinite) << what;
  if (!report.converged) return ExpectNoEstimate(report, what);
  ASSERT_TRUE(report.error_estimate.has_value() && report.output_error_estimate.has_value())
      << what;
  EXPECT_GT(*report.error_estimate, 0) << what;
  EXPECT_LE(*report.error_estimate, rtol) << what;
  EXPECT_LE(*report.rounding_estimate, *report.error_estimate) << what;
  EXPECT_GT(*report.output_error_estimate, 0) << what;
}

TEST(ReportTest, OnlyWhatConvergedHasAnEstimate) {
  for (const BackendCase& backend : BackendCases()) {
    std::map<Termination, int> seen;
    for (const Ending& ending : Endings()) {
      const RandomSystem system(ending.stack);
      const SolverRig rig(backend.create(), system.spec());
      for (const SolverRow& row : Solvers()) {
        if (!row.iterative) continue;
        const std::string what = backend.name + " " + std::string(row.name) + " " +
                                 std::string(ToString(ending.by_newton));
        const SampleReport report =
            rig.Solve(OptionsOf(ending, row.name, OnNoConvergence::kReturn), system.Inputs(1, 5))
                .reports[0];
        ExpectHonest(report, ending.rtol, what);
        EXPECT_TRUE(row.name != "newton" || backend.name == "reference" ||
                    report.termination == ending.by_newton)
            << what;
        ++seen[report.termination];
      }
    }
    // The reference computes in double, where rounding limits nothing and nothing overflows.
    EXPECT_EQ(seen.size(), Endings().size() - (backend.name == "reference" ? 2 : 0));
  }
}

TEST(ReportTest, TheSequentialSolverEstimatesNothing) {
  for (const BackendCase& backend : BackendCases()) {
    const RandomSystem system(Endings()[0].stack);
    const SolverRig rig(backend.create(), system.spec());
    const SampleReport report = rig.Solve({.solver = "sequential"}, system.Inputs(1, 5)).reports[0];
    EXPECT_TRUE(report.converged && report.termination == Termination::kDirect) << backend.name;
    ExpectNoEstimate(report, backend.name);
    EXPECT_FALSE(report.rounding_estimate.has_value()) << backend.name;
    EXPECT_FALSE(report.update.has_value()) << backend.name;
  }
}

// `failed` is the report of the same solve without a fallback.
void ExpectAttempt(const Attempt& attempt, const SampleReport& failed, const std::string& what) {
  EXPECT_EQ(attempt.solver, failed.solver) << what;
  EXPECT_EQ(attempt.termination, failed.termination) << what;
  EXPECT_EQ(attempt.iterations, failed.iterations) << what;
  EXPECT_EQ(attempt.chord_corrections, failed.chord_corrections) << what;
  EXPECT_EQ(attempt.warm_sweeps, failed.warm_sweeps) << what;
  EXPECT_EQ(attempt.update, failed.update) << what;
  EXPECT_EQ(attempt.rounding_estimate, failed.rounding_estimate) << what;
  EXPECT_FALSE(attempt.error_estimate.has_value()) << what;
}

TEST(ReportTest, AFallbackKeepsWhatTheFailedAttemptKnew) {
  int fallbacks = 0;
  for (const BackendCase& backend : BackendCases()) {
    for (const Ending& ending : Endings()) {
      const RandomSystem system(ending.stack);
      const SolverRig rig(backend.create(), system.spec());
      const std::vector<float> inputs = system.Inputs(1, 5);
      const SampleReport direct = rig.Solve({.solver = "sequential"}, inputs).reports[0];
      for (const SolverRow& row : Solvers()) {
        if (!row.iterative) continue;
        const std::string what = backend.name + " " + std::string(row.name) + " " +
                                 std::string(ToString(ending.by_newton));
        const SampleReport failed =
            rig.Solve(OptionsOf(ending, row.name, OnNoConvergence::kReturn), inputs).reports[0];
        const SampleReport report =
            rig.Solve(OptionsOf(ending, row.name, OnNoConvergence::kFallback), inputs).reports[0];
        EXPECT_EQ(report.fallback, !failed.converged) << what;
        if (!report.fallback) continue;
        ++fallbacks;
        ExpectAttempt(report.attempt, failed, what);
        ExpectNoEstimate(report, what);
        EXPECT_EQ(report.solver, "sequential") << what;
        EXPECT_EQ(report.termination, direct.termination) << what;
        EXPECT_EQ(report.converged, direct.converged) << what;
        EXPECT_EQ(report.iterations, failed.iterations) << what;
        EXPECT_EQ(report.dependent_stages, failed.dependent_stages + direct.dependent_stages)
            << what;
        EXPECT_EQ(report.column_passes, failed.column_passes + 1) << what;
      }
    }
  }
  EXPECT_GT(fallbacks, 0);
}

class Estimates final : public ProgressListener {
 public:
  void OnProgress(const SolveProgress& progress) override {
    all.push_back(progress.error_estimate);
  }
  std::vector<std::optional<double>> all;
};

// An update that was put to the certificate on the way estimates the error of states that are gone.
TEST(ReportTest, ProgressHasAnEstimateFromTheUpdateOnThatConverged) {
  for (const BackendCase& backend : BackendCases()) {
    for (const Ending& ending : Endings()) {
      const RandomSystem system(ending.stack);
      const SolverRig rig(backend.create(), system.spec());
      const std::vector<float> inputs = system.Inputs(1, 5);
      std::vector<float> outputs(3);
      SampleReport report;
      Estimates told;
      RunItem item{.samples = {.num_samples = 1, .inputs = inputs},
                   .outputs = outputs,
                   .reports = {&report, 1},
                   .listener = &told};
      const ResolvedOptions options = OptionsOf(ending, "newton", OnNoConvergence::kReturn);
      ASSERT_TRUE(rig.runner().Run(options, {&item, 1}, nullptr).ok());
      ASSERT_FALSE(told.all.empty()) << backend.name;
      EXPECT_EQ(told.all.back(), report.error_estimate) << backend.name;
      told.all.pop_back();
      for (const std::optional<double>& estimate : told.all)
        EXPECT_FALSE(estimate.has_value()) << backend.name;
    }
  }
}

}  // namespace
}  // namespace deeppcr::testing
