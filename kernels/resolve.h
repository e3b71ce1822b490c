// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_RESOLVE_H_
#define DEEPPCR_KERNELS_RESOLVE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "kernels/plan/plan.h"
#include "kernels/problem/spec.h"
#include "kernels/problem/system_key.h"
#include "kernels/solver/options.h"

namespace deeppcr {

// Properties of a model that options are checked against.
struct ResolveContext {
  SystemShape shape;
  int64_t min_shooting_interval = 1;
  bool calibrated_guess = false;  // an affine guess was fitted
  bool iterative = true;          // the workspace of iterative solvers fits
  SystemKey system = {};          // its name
  std::string_view backend = {};  // of the system; static storage
};

// True if a model of this shape can run the solver at all.
bool SolverFits(std::string_view solver, const ResolveContext& context);

// Describes a choice of the plan that `auto` or a solver's name may take and a model of this shape
// cannot run; empty if there is no such choice. The plan may have been measured by another process
// or edited by hand.
std::string UnfitChoice(const Plan& plan, const ResolveContext& context);

// Validates options and fills the values that they leave open from the plan entry for num_samples;
// see LoadedSystem::Resolve.
absl::StatusOr<ResolvedOptions> ResolveOptions(const SolveOptions& options, int64_t num_samples,
                                               const Plan& plan, const ResolveContext& context);

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_RESOLVE_H_
