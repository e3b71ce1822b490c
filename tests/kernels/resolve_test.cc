// SPDX-License-Identifier: Apache-2.0
#include "kernels/resolve.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/engine.h"
#include "kernels/solver/registry.h"
#include "tests/testing/expect_error.h"

namespace deeppcr::testing {
namespace {

using absl::StatusCode;

constexpr ResolveContext kContext = {.shape = {.num_steps = 1000}, .calibrated_guess = true};

Plan MakePlan() {
  Plan plan;
  plan.choices = {{.solver = "newton",
                   .shooting_interval = 16,
                   .initial_guess = InitialGuess::kCalibrated,
                   .warm_sweeps = 3,
                   .jacobian_refresh = JacobianRefresh::kWhileContracting},
                  {.solver = "picard", .shooting_interval = 4}};
  const PlanChoice wide = {.solver = "picard", .shooting_interval = 8};
  plan.entries = {{.max_samples = 2, .solver = "newton", .parallel = plan.choices[0]},
                  {.max_samples = 8, .solver = "picard", .parallel = wide},
                  {.max_samples = 64, .solver = "sequential", .parallel = plan.choices[0]}};
  return plan;
}

absl::StatusOr<ResolvedOptions> Resolve(const SolveOptions& options, int64_t num_samples = 1,
                                        const ResolveContext& context = kContext) {
  return ResolveOptions(options, num_samples, MakePlan(), context);
}

ResolvedOptions MustResolve(const SolveOptions& options, int64_t num_samples = 1,
                            const ResolveContext& context = kContext) {
  const auto resolved = Resolve(options, num_samples, context);
  EXPECT_TRUE(resolved.ok()) << resolved.status();
  return resolved.value_or(ResolvedOptions{});
}

void ExpectRefused(const SolveOptions& options, const std::string& message,
                   const ResolveContext& context = kContext) {
  ExpectError(Resolve(options, 1, context), StatusCode::kInvalidArgument, message);
}

// Iterating would end in a fallback. A request that names its solver still gets that solver.
TEST(ResolveAutoTest, BelowWhatFloat32CanCertifyItIsSequential) {
  Plan plan = MakePlan();
  plan.least_rtol = 2e-5;
  const auto solver_of = [&](const SolveOptions& options, int64_t num_samples) {
    const auto resolved = ResolveOptions(options, num_samples, plan, kContext);
    return resolved.ok() ? resolved->solver : "error";
  };
  EXPECT_EQ(solver_of({.rtol = 2e-5}, 1), "newton");
  EXPECT_EQ(solver_of({.rtol = 1.9e-5}, 1), "sequential");
  EXPECT_EQ(solver_of({.rtol = 2e-5}, 5), "picard");
  EXPECT_EQ(solver_of({.rtol = 1e-7}, 5), "sequential");
  EXPECT_EQ(solver_of({.solver = "newton", .rtol = 1e-7}, 1), "newton");
}

TEST(ResolveRangesTest, BoundsAreAccepted) {
  for (const double rtol : {1e-7, 0.1}) EXPECT_EQ(MustResolve({.rtol = rtol}).rtol, rtol);
  for (const double atol : {0.0, 1.0}) EXPECT_EQ(MustResolve({.atol = atol}).atol, atol);
  for (const int32_t most : {1, 10000})
    EXPECT_EQ(MustResolve({.max_iterations = most}).max_iterations, most);
  for (const int32_t interval : {1, 1000})
    EXPECT_EQ(MustResolve({.shooting_interval = interval}).shooting_interval, interval);
  for (const int32_t sweeps : {0, 64})
    EXPECT_EQ(MustResolve({.warm_sweeps = sweeps}).warm_sweeps, sweeps);
}

TEST(ResolveRangesTest, ValuesBeyondThemAreRefusedByName) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const double rtol : {0.99e-7, 0.11, 0.0, -1e-4, kNan, kInfinity})
    ExpectRefused({.rtol = rtol}, "rtol: expected a value in [1e-07, 0.1], got ");
  for (const double atol : {-1e-9, 1.1, kNan, kInfinity})
    ExpectRefused({.atol = atol}, "atol: expected a value in [0, 1], got ");
  ExpectRefused({.max_iterations = -1}, "max_iterations: expected a value in [0, 10000], got -1");
  ExpectRefused({.max_iterations = 10001},
                "max_iterations: expected a value in [0, 10000], got 10001");
  ExpectRefused({.shooting_interval = -1},
                "shooting_interval: expected a value in [0, 1000], got -1");
  ExpectRefused({.shooting_interval = 1001},
                "shooting_interval: expected a value in [0, 1000], got 1001");
  ExpectRefused({.warm_sweeps = -2}, "warm_sweeps: expected a value in [-1, 64], got -2");
  ExpectRefused({.warm_sweeps = 65}, "warm_sweeps: expected a value in [-1, 64], got 65");
}

TEST(ResolveRangesTest, ApplyToEverySolver) {
  ExpectRefused({.solver = "auto", .rtol = 1}, "rtol");
  for (const SolverRow& row : Solvers()) ExpectRefused({.solver = row.name, .rtol = 1}, "rtol");
}

TEST(ResolveTest, AnUnknownSolverIsToldTheKnownOnes) {
  ExpectRefused({.solver = "gauss"},
                "solver: expected auto, sequential, newton, quasi_newton, picard, jacobi, got "
                "\"gauss\"");
  ExpectRefused({.solver = ""}, "got \"\"");
  ExpectRefused({.solver = "Newton"}, "got \"Newton\"");
}

TEST(ResolveTest, AutoFollowsTheEntryOfTheSampleCount) {
  for (const int64_t n : {1, 2}) {
    const ResolvedOptions resolved = MustResolve({}, n);
    EXPECT_EQ(resolved.solver, "newton") << n;
    EXPECT_TRUE(resolved.automatic);
    EXPECT_EQ(resolved.shooting_interval, 16);
    EXPECT_EQ(resolved.initial_guess, InitialGuess::kCalibrated);
    EXPECT_EQ(resolved.warm_sweeps, 3);
    EXPECT_EQ(resolved.jacobian_refresh, JacobianRefresh::kWhileContracting);
  }
  for (const int64_t n : {3, 8}) {
    EXPECT_EQ(MustResolve({}, n).solver, "picard") << n;
    EXPECT_EQ(MustResolve({}, n).shooting_interval, 8) << "the entry's choice, not the solver's";
  }
  for (const int64_t n : {9, 64, 65}) EXPECT_EQ(MustResolve({}, n).solver, "sequential") << n;
}

// The choice that was measured to be fastest must not make a valid request invalid.
TEST(ResolveTest, AutoLeavesOutWhatItsChoiceDoesNotTake) {
  const ResolvedOptions picard = MustResolve({.warm_sweeps = 2}, 8);
  EXPECT_EQ(picard.solver, "picard");
  EXPECT_EQ(picard.warm_sweeps, 0);
  Plan plan = MakePlan();
  plan.entries[0].parallel = {.solver = "quasi_newton"};
  plan.entries[0].solver = "quasi_newton";
  const auto diagonal = ResolveOptions({.shooting_interval = 4}, 1, plan, kContext).value();
  EXPECT_EQ(diagonal.shooting_interval, 1);
}

TEST(ResolveTest, ANamedSolverTakesThePlansChoiceForIt) {
  const ResolvedOptions newton = MustResolve({.solver = "newton"}, 64);
  EXPECT_EQ(newton.solver, "newton");
  EXPECT_FALSE(newton.automatic);
  EXPECT_EQ(newton.shooting_interval, 16);
  EXPECT_EQ(newton.warm_sweeps, 3);
  EXPECT_EQ(MustResolve({.solver = "picard"}, 8).shooting_interval, 4);
}

TEST(ResolveTest, ASolverThatThePlanDoesNotKnowStillRuns) {
  EXPECT_EQ(MustResolve({.solver = "quasi_newton"}).shooting_interval, 1);
  EXPECT_EQ(MustResolve({.solver = "jacobi"}).shooting_interval, 16);
  EXPECT_EQ(MustResolve({.solver = "jacobi"}).initial_guess, InitialGuess::kCalibrated);
  const ResolveContext small = {.shape = {.num_steps = 3}};
  EXPECT_EQ(MustResolve({.solver = "jacobi"}, 1, small).shooting_interval, 3);
  EXPECT_EQ(MustResolve({.solver = "jacobi"}, 1, small).initial_guess, InitialGuess::kConstant);
}

TEST(ResolveTest, OptionsOfTheRequestGoBeforeThePlan) {
  const ResolvedOptions resolved =
      MustResolve({.solver = "newton",
                   .rtol = 1e-3,
                   .atol = 1e-5,
                   .max_iterations = 5,
                   .shooting_interval = 7,
                   .warm_sweeps = 0,
                   .initial_guess = InitialGuess::kPrevious,
                   .jacobian_refresh = JacobianRefresh::kEveryIteration,
                   .on_no_convergence = OnNoConvergence::kError});
  const ResolvedOptions want = {.solver = "newton",
                                .rtol = 1e-3,
                                .atol = 1e-5,
                                .max_iterations = 5,
                                .shooting_interval = 7,
                                .warm_sweeps = 0,
                                .initial_guess = InitialGuess::kPrevious,
                                .jacobian_refresh = JacobianRefresh::kEveryIteration,
                                .on_no_convergence = OnNoConvergence::kError,
                                .num_steps = 1000};
  EXPECT_EQ(resolved, want);
}

TEST(ResolveTest, MaxIterationsDefaultsToTheIntervalsButAtMost32) {
  EXPECT_EQ(MustResolve({.solver = "newton", .shooting_interval = 1}).max_iterations, 32);
  EXPECT_EQ(MustResolve({.solver = "newton", .shooting_interval = 32}).max_iterations, 32);
  EXPECT_EQ(MustResolve({.solver = "newton", .shooting_interval = 33}).max_iterations, 31);
  EXPECT_EQ(MustResolve({.solver = "newton", .shooting_interval = 999}).max_iterations, 2);
  EXPECT_EQ(MustResolve({.solver = "newton", .shooting_interval = 1000}).max_iterations, 1);
}

TEST(ResolveTest, SequentialRequestsAreEqualWhateverTheirOptions) {
  const ResolvedOptions plain = MustResolve({.solver = "sequential"});
  const ResolvedOptions other = MustResolve({.solver = "sequential",
                                             .rtol = 1e-6,
                                             .atol = 0,
                                             .max_iterations = 9,
                                             .shooting_interval = 5,
                                             .warm_sweeps = 2,
                                             .initial_guess = InitialGuess::kPrevious,
                                             .jacobian_refresh = JacobianRefresh::kWhileContracting,
                                             .on_no_convergence = OnNoConvergence::kError,
                                             .return_trajectory = true});
  EXPECT_EQ(plain, other);
  EXPECT_EQ(plain, MustResolve({.rtol = 1e-5}, 64)) << "auto that chose sequential";
  EXPECT_EQ(plain.shooting_interval, 0);
}

TEST(ResolveTest, WhereResultsAreWrittenDoesNotKeepRequestsApart) {
  EXPECT_EQ(MustResolve({.solver = "newton", .return_trajectory = true}),
            MustResolve({.solver = "newton"}));
  EXPECT_NE(MustResolve({.solver = "newton", .rtol = 1e-3}), MustResolve({.solver = "newton"}));
  EXPECT_NE(MustResolve({}), MustResolve({.solver = "newton"})) << "auto may give up early";
}

TEST(ResolveTest, IntervalsBelowTheModelsLeastAreRefusedWithTheReason) {
  const ResolveContext context = {
      .shape = {.num_steps = 1000}, .min_shooting_interval = 8, .calibrated_guess = true};
  EXPECT_EQ(MustResolve({.solver = "newton", .shooting_interval = 8}, 1, context).shooting_interval,
            8);
  ExpectRefused({.solver = "newton", .shooting_interval = 7},
                "shooting_interval: expected at least 8 for this model (its workspace at a smaller "
                "one exceeds the limit), got 7",
                context);
  EXPECT_EQ(MustResolve({.solver = "jacobi"}, 1,
                        {.shape = {.num_steps = 1000}, .min_shooting_interval = 64})
                .shooting_interval,
            64);
}

TEST(ResolveTest, QuasiNewtonTakesSingleStepsOnly) {
  EXPECT_EQ(MustResolve({.solver = "quasi_newton", .shooting_interval = 1}).shooting_interval, 1);
  ExpectRefused({.solver = "quasi_newton", .shooting_interval = 2},
                "shooting_interval: expected at most 1 for quasi_newton, got 2");
  ExpectRefused({.solver = "quasi_newton"}, "solver: quasi_newton does not fit this model",
                {.shape = {.num_steps = 1000}, .min_shooting_interval = 2});
}

TEST(ResolveTest, SolverFitsWhatTheWorkspaceAllows) {
  const ResolveContext narrow = {.shape = {.num_steps = 1000}, .min_shooting_interval = 2};
  EXPECT_TRUE(SolverFits("auto", narrow));
  EXPECT_TRUE(SolverFits("newton", narrow));
  EXPECT_FALSE(SolverFits("quasi_newton", narrow));
  EXPECT_TRUE(SolverFits("quasi_newton", kContext));
  EXPECT_FALSE(SolverFits("gauss", kContext));
}

TEST(UnfitChoiceTest, AMeasuredPlanFits) {
  EXPECT_EQ(UnfitChoice(MakePlan(), kContext), "");
  EXPECT_EQ(UnfitChoice(
                MakePlan(),
                {.shape = {.num_steps = 16}, .min_shooting_interval = 4, .calibrated_guess = true}),
            "");
}

// A choice that does not fit must be refused in the choices of solvers and in those of entries.
TEST(UnfitChoiceTest, NoChoiceBeyondTheModelsLimitsFits) {
  const PlanChoice bad[] = {
      {.solver = "newton", .shooting_interval = 3},
      {.solver = "newton", .shooting_interval = 1001},
      {.solver = "quasi_newton", .shooting_interval = 1},  // the interval of 1 is below the least
      {.solver = "quasi_newton", .shooting_interval = 4},
      {.solver = "picard", .shooting_interval = 4, .initial_guess = InitialGuess::kCalibrated},
      {.solver = "sequential", .shooting_interval = 4},
      {.solver = "gauss", .shooting_interval = 4}};
  const ResolveContext context = {.shape = {.num_steps = 1000}, .min_shooting_interval = 4};
  Plan good;
  good.choices = {{.solver = "newton", .shooting_interval = 4}};
  good.entries = {{.max_samples = 8, .solver = "newton", .parallel = good.choices[0]}};
  EXPECT_EQ(UnfitChoice(good, context), "");
  for (const PlanChoice& choice : bad) {
    Plan plan = good;
    plan.choices[0] = choice;
    EXPECT_NE(UnfitChoice(plan, context), "") << choice.solver << " " << choice.shooting_interval;
    plan = good;
    plan.entries[0].parallel = choice;
    for (const std::string& runs : {choice.solver, std::string("sequential")}) {
      plan.entries[0].solver = runs;
      EXPECT_NE(UnfitChoice(plan, context), "") << choice.solver << " " << choice.shooting_interval;
    }
  }
}

TEST(UnfitChoiceTest, SaysWhichItIs) {
  Plan plan;
  plan.choices = {{.solver = "newton", .shooting_interval = 1001, .warm_sweeps = 2}};
  EXPECT_EQ(UnfitChoice(plan, {.shape = {.num_steps = 1000}}),
            "newton, C = 1001, constant guess, 2 warm sweeps, Jacobians every_iteration");
  plan.entries = {{.max_samples = 8, .solver = "newton", .parallel = plan.choices[0]}};
  plan.choices.clear();
  EXPECT_EQ(
      UnfitChoice(plan, {.shape = {.num_steps = 1000}}),
      "its entry for 8 samples: auto = newton, parallel = newton, C = 1001, constant guess, 2 "
      "warm sweeps, Jacobians every_iteration");
}

TEST(UnfitChoiceTest, QuasiNewtonFitsAtSingleStepsOnly) {
  Plan plan;
  for (const int32_t interval : {1, 2}) {
    plan.entries = {{.max_samples = 1,
                     .solver = "quasi_newton",
                     .parallel = {.solver = "quasi_newton", .shooting_interval = interval}}};
    EXPECT_EQ(UnfitChoice(plan, kContext).empty(), interval == 1);
  }
}

// An entry without a parallel choice has the default choice, which may be out of bounds only if
// nothing runs it.
TEST(UnfitChoiceTest, AnEntryWithoutAParallelChoiceFitsWhileAutoIsSequential) {
  for (const bool iterative : {true, false}) {
    const ResolveContext context = {
        .shape = {.num_steps = 1000}, .min_shooting_interval = 4, .iterative = iterative};
    Plan plan;
    plan.entries.emplace_back().max_samples = 8;
    EXPECT_EQ(UnfitChoice(plan, context), "");
    plan.entries[0].solver = "newton";
    EXPECT_NE(UnfitChoice(plan, context), "");
  }
}

TEST(ResolveTest, CalibratedGuessMustExist) {
  const ResolveContext none = {.shape = {.num_steps = 1000}};
  EXPECT_EQ(
      MustResolve({.solver = "jacobi", .initial_guess = InitialGuess::kCalibrated}).initial_guess,
      InitialGuess::kCalibrated);
  ExpectRefused({.solver = "jacobi", .initial_guess = InitialGuess::kCalibrated},
                "initial_guess: calibrated is not available for this model", none);
}

TEST(ResolveTest, WarmSweepsAreForTheRowsThatTakeThem) {
  for (const SolverRow& row : Solvers()) {
    if (!row.iterative || row.takes_warm_sweeps) continue;
    ExpectRefused({.solver = row.name, .warm_sweeps = 1},
                  "warm_sweeps: " + std::string(row.name) + " takes none, got 1");
    EXPECT_EQ(MustResolve({.solver = row.name, .warm_sweeps = 0}).warm_sweeps, 0);
    EXPECT_EQ(MustResolve({.solver = row.name}).warm_sweeps, 0);
  }
}

constexpr BackwardOptions Parallel(int64_t interval) {
  return {.way = BackwardWay::kParallel, .shooting_interval = interval};
}

TEST(ResolveBackwardTest, AnOpenIntervalIsTheRootOfTheSteps) {
  for (const auto& [steps, root] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 1}, {2, 2}, {3, 2}, {4, 2}, {5, 3}, {1000, 32}, {1024, 32}, {1025, 33}})
    EXPECT_EQ(ResolveBackward(Parallel(0), {}, steps).value(), Parallel(root)) << steps;
  EXPECT_EQ(ResolveBackward(Parallel(0), {.min_shooting_interval = 64}, 1000).value(),
            Parallel(64));
  EXPECT_EQ(ResolveBackward(Parallel(1000), {}, 1000).value(), Parallel(1000));
  EXPECT_EQ(ResolveBackward({}, {}, 1000).value(), BackwardOptions{});
}

TEST(ResolveBackwardTest, RefusesWhatDoesNotFit) {
  for (const BackwardWay way : {BackwardWay::kSequential, BackwardWay::kParallel}) {
    for (const int64_t wrong : {-1, 1001})
      ExpectError(ResolveBackward({.way = way, .shooting_interval = wrong}, {}, 1000),
                  StatusCode::kInvalidArgument,
                  "shooting_interval: expected a value in [0, 1000], got ");
  }
  ExpectError(ResolveBackward({.shooting_interval = 7}, {}, 1000), StatusCode::kInvalidArgument,
              "shooting_interval: expected 0 for the sequential way, got 7");
  ExpectError(ResolveBackward(Parallel(3), {.min_shooting_interval = 4}, 1000),
              StatusCode::kInvalidArgument,
              "shooting_interval: expected a value in [4, 1000], got 3");
  ExpectError(ResolveBackward(Parallel(3), {.parallel = false}, 1000), StatusCode::kInvalidArgument,
              "way: expected sequential, got parallel, whose memory exceeds max_workspace_bytes");
}

}  // namespace
}  // namespace deeppcr::testing
