// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PLAN_WAYS_H_
#define DEEPPCR_KERNELS_PLAN_WAYS_H_

#include "absl/status/status.h"
#include "kernels/plan/calibration.h"
#include "kernels/plan/plan.h"
#include "kernels/plan/planner.h"
#include "kernels/solver/backward_runner.h"
#include "kernels/solver/runner.h"

namespace deeppcr {

// True if every entry has its ways.
bool HasWays(const Plan& plan);

// Chooses the way back of every entry of the plan: both go back along sequential trajectories of
// calibration inputs, with one cotangent of each sample and the default interval. As with solvers
// the counted work decides, unless the clock contradicts it clearly. Leaves the plan as it is where
// a trajectory overflows. Errors: kCancelled if the token has fired; those of the runners.
absl::Status MeasureWays(const Runner& runner, const BackwardRunner& backward,
                         const CalibrationInputs& inputs, const PlannerOptions& options,
                         Plan* plan);

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_PLAN_WAYS_H_
