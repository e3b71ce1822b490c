// SPDX-License-Identifier: Apache-2.0
#include "kernels/resolve.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/engine.h"
#include "kernels/plan/candidates.h"
#include "kernels/solver/registry.h"

namespace deeppcr {
namespace {

template <class T>
absl::Status CheckRange(std::string_view field, T value, T min, T max) {
  if (value >= min && value <= max) return absl::OkStatus();  // a NaN is outside
  return InvalidArgument(field, ": expected a value in [", min, ", ", max, "], got ", value);
}

absl::Status CheckOptions(const SolveOptions& options, const ResolveContext& context) {
  DEEPPCR_RETURN_IF_ERROR(CheckRange("rtol", options.rtol, 1e-7, 0.1));
  DEEPPCR_RETURN_IF_ERROR(CheckRange("atol", options.atol, 0.0, 1.0));
  DEEPPCR_RETURN_IF_ERROR(CheckRange("max_iterations", options.max_iterations, 0, 10000));
  DEEPPCR_RETURN_IF_ERROR(CheckRange("warm_sweeps", options.warm_sweeps, -1, 64));
  DEEPPCR_RETURN_IF_ERROR(CheckRange<int64_t>("shooting_interval", options.shooting_interval, 0,
                                              context.shape.num_steps));
  if (options.shooting_interval > 0 && options.shooting_interval < context.min_shooting_interval)
    return InvalidArgument(
        "shooting_interval: expected at least ", context.min_shooting_interval,
        " for this model (its workspace at a smaller one exceeds the limit), got ",
        options.shooting_interval);
  if (options.initial_guess == InitialGuess::kCalibrated && !context.calibrated_guess)
    return InvalidArgument("initial_guess: calibrated is not available for this model (",
                           context.shape.coarse_guess ? "a diffusion model has coarse instead"
                           : context.shape.affine_guess
                               ? "its calibration failed when it was loaded"
                               : "its family has no such guess",
                           ")");
  if (options.initial_guess == InitialGuess::kCoarse && !context.shape.coarse_guess)
    return InvalidArgument("initial_guess: coarse is for diffusion models only");
  return absl::OkStatus();
}

absl::Status CheckInterval(const SolverRow& row, int64_t interval, const ResolveContext& context) {
  if (!Suits(row, context.shape))
    return InvalidArgument(
        "solver: ", row.name,
        " needs the diagonals of Jacobians, which cost as much as all of them for this model");
  if (!SolverFits(row.name, context))
    return InvalidArgument("solver: ", row.name,
                           " does not fit this model: its workspace exceeds the limit");
  if (row.max_shooting_interval > 0 && interval > row.max_shooting_interval)
    return InvalidArgument("shooting_interval: expected at most ", row.max_shooting_interval,
                           " for ", row.name, ", got ", interval);
  return absl::OkStatus();
}

// Default choice of a solver, where neither the request nor the plan says.
PlanChoice DefaultChoice(const SolverRow& row, const ResolveContext& context) {
  PlanChoice choice;
  const int64_t most = row.max_shooting_interval > 0 ? row.max_shooting_interval : kDefaultInterval;
  const int64_t interval =
      std::max(std::min(most, context.shape.num_steps), context.min_shooting_interval);
  choice.solver = std::string(row.name);
  choice.shooting_interval = static_cast<int32_t>(interval);
  if (context.calibrated_guess) choice.initial_guess = InitialGuess::kCalibrated;
  if (context.shape.coarse_guess) choice.initial_guess = InitialGuess::kCoarse;
  return choice;
}

int32_t DefaultMaxIterations(int64_t num_steps, int64_t interval) {
  return static_cast<int32_t>(
      std::min<int64_t>((num_steps - 1) / interval + 1, kDefaultMostIterations));
}

// An iterative solver with the options that the request sets put over the choice.
absl::StatusOr<ResolvedOptions> ResolveIterative(const SolveOptions& options, const SolverRow& row,
                                                 const PlanChoice& choice,
                                                 const ResolveContext& context) {
  ResolvedOptions resolved;
  resolved.solver = row.name;
  resolved.rtol = options.rtol;
  resolved.atol = options.atol;
  resolved.shooting_interval =
      options.shooting_interval > 0 ? options.shooting_interval : choice.shooting_interval;
  DEEPPCR_RETURN_IF_ERROR(CheckInterval(row, resolved.shooting_interval, context));
  resolved.max_iterations =
      options.max_iterations > 0
          ? options.max_iterations
          : DefaultMaxIterations(context.shape.num_steps, resolved.shooting_interval);
  resolved.initial_guess = options.initial_guess == InitialGuess::kFromPlan ? choice.initial_guess
                                                                            : options.initial_guess;
  if (row.takes_refresh) {
    resolved.jacobian_refresh = options.jacobian_refresh == JacobianRefresh::kFromPlan
                                    ? choice.jacobian_refresh
                                    : options.jacobian_refresh;
  }
  if (row.takes_warm_sweeps) {
    resolved.warm_sweeps = options.warm_sweeps >= 0 ? options.warm_sweeps : choice.warm_sweeps;
  } else if (options.warm_sweeps > 0) {
    return InvalidArgument("warm_sweeps: ", row.name, " takes none, got ", options.warm_sweeps);
  }
  resolved.on_no_convergence = options.on_no_convergence;
  resolved.num_steps = context.shape.num_steps;
  return resolved;
}

// Removes the options that the choice of `auto` does not take: the validity of a request must not
// depend on the solver that was measured to be fastest.
SolveOptions OptionsFor(const SolverRow& row, SolveOptions options) {
  if (!row.takes_warm_sweeps) options.warm_sweeps = -1;
  if (row.max_shooting_interval > 0) options.shooting_interval = 0;
  return options;
}

bool ChoiceFits(const PlanChoice& choice, const ResolveContext& context) {
  const SolverRow* row = FindSolver(choice.solver);
  if (row == nullptr || !row->iterative || !SolverFits(row->name, context)) return false;
  if (!row->takes_warm_sweeps && choice.warm_sweeps > 0) return false;
  if (!row->takes_refresh && choice.jacobian_refresh == JacobianRefresh::kWhileContracting)
    return false;
  const int64_t most = row->max_shooting_interval > 0 ? row->max_shooting_interval : INT32_MAX;
  return choice.shooting_interval >= context.min_shooting_interval &&
         choice.shooting_interval <= std::min(most, context.shape.num_steps) &&
         (choice.initial_guess != InitialGuess::kCalibrated || context.calibrated_guess) &&
         (choice.initial_guess != InitialGuess::kCoarse || context.shape.coarse_guess);
}

// An entry without a parallel choice carries the default one, which nothing runs.
bool EntryFits(const PlanEntry& entry, const ResolveContext& context) {
  const SolverRow* row = FindSolver(entry.solver);
  if (row == nullptr || (row->iterative && !row->automatic)) return false;
  if (!row->iterative && entry.parallel == PlanChoice{}) return true;
  return ChoiceFits(entry.parallel, context);
}

// Resolves `auto` to the sequential solver below least_rtol: a tolerance that float32 cannot be
// relied on to certify would cost the iterations, and the sequential solver after them.
absl::StatusOr<ResolvedOptions> ResolveAuto(const SolveOptions& options, const PlanEntry& entry,
                                            double least_rtol, const ResolveContext& context) {
  const SolverRow* row = FindSolver(entry.solver);
  if (row == nullptr || !row->iterative || options.rtol < least_rtol)
    return ResolvedOptions{.solver = "sequential", .num_steps = context.shape.num_steps};
  DEEPPCR_ASSIGN_OR_RETURN(
      ResolvedOptions resolved,
      ResolveIterative(OptionsFor(*row, options), *row, entry.parallel, context));
  resolved.automatic = true;
  return resolved;
}

absl::StatusOr<ResolvedOptions> ResolveSolver(const SolveOptions& options, int64_t num_samples,
                                              const Plan& plan, const ResolveContext& context) {
  if (options.solver == "auto")
    return ResolveAuto(options, plan.Lookup(num_samples), plan.least_rtol, context);
  const SolverRow* row = FindSolver(options.solver);
  if (row == nullptr) {
    const auto name_of = [](const SolverRow& r) { return std::string(r.name); };
    return InvalidArgument("solver: expected auto, ", StrJoin(Solvers(), ", ", name_of), ", got ",
                           Quoted(options.solver));
  }
  // The sequential solver takes no options: leaving them out lets requests that differ in them
  // share a batch.
  if (!row->iterative)
    return ResolvedOptions{.solver = row->name, .num_steps = context.shape.num_steps};
  const PlanChoice* planned = plan.ChoiceOf(row->name);
  return ResolveIterative(options, *row,
                          planned != nullptr ? *planned : DefaultChoice(*row, context), context);
}

}  // namespace

bool SolverFits(std::string_view solver, const ResolveContext& context) {
  const SolverRow* row = FindSolver(solver);
  if (row == nullptr) return solver == "auto";
  if (!row->iterative) return true;
  return Suits(*row, context.shape) && context.iterative &&
         (row->max_shooting_interval == 0 ||
          context.min_shooting_interval <= row->max_shooting_interval);
}

std::string UnfitChoice(const Plan& plan, const ResolveContext& context) {
  for (const PlanChoice& choice : plan.choices) {
    if (!ChoiceFits(choice, context)) return Describe(choice);
  }
  for (const PlanEntry& entry : plan.entries) {
    if (!EntryFits(entry, context))
      return StrCat("its entry for ", entry.max_samples, " samples: auto = ", entry.solver,
                    ", parallel = ", Describe(entry.parallel));
  }
  return "";
}

absl::StatusOr<ResolvedOptions> ResolveOptions(const SolveOptions& options, int64_t num_samples,
                                               const Plan& plan, const ResolveContext& context) {
  DEEPPCR_RETURN_IF_ERROR(CheckOptions(options, context));
  DEEPPCR_ASSIGN_OR_RETURN(ResolvedOptions resolved,
                           ResolveSolver(options, num_samples, plan, context));
  resolved.system = context.system;
  resolved.backend = context.backend;
  return resolved;
}

absl::StatusOr<BackwardOptions> ResolveBackward(const BackwardOptions& wanted,
                                                const BackwardLimits& limits, int64_t num_steps) {
  DEEPPCR_RETURN_IF_ERROR(
      CheckRange<int64_t>("shooting_interval", wanted.shooting_interval, 0, num_steps));
  if (wanted.way == BackwardWay::kSequential) {
    if (wanted.shooting_interval == 0) return BackwardOptions{};
    return InvalidArgument("shooting_interval: expected 0 for the sequential way, got ",
                           wanted.shooting_interval);
  }
  if (!limits.parallel)
    return InvalidArgument("way: expected sequential, got ", ToString(wanted.way),
                           ", whose memory exceeds max_workspace_bytes");
  // The root balances the two passes through an interval and the matrices between them.
  const auto root = static_cast<int64_t>(std::ceil(std::sqrt(static_cast<double>(num_steps))));
  if (wanted.shooting_interval == 0)
    return BackwardOptions{.way = BackwardWay::kParallel,
                           .shooting_interval = std::max(root, limits.min_shooting_interval)};
  DEEPPCR_RETURN_IF_ERROR(CheckRange<int64_t>("shooting_interval", wanted.shooting_interval,
                                              limits.min_shooting_interval, num_steps));
  return wanted;
}

}  // namespace deeppcr
