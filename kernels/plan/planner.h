// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PLAN_PLANNER_H_
#define DEEPPCR_KERNELS_PLAN_PLANNER_H_

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend/cost_rates.h"
#include "kernels/plan/calibration.h"
#include "kernels/plan/plan.h"
#include "kernels/solver/runner.h"

namespace deeppcr {

struct PlannerOptions {
  double rtol = 1e-4;
  double atol = 1e-6;
  int32_t max_batch_size = 1;
  bool calibrated_guess = false;  // the system has a calibrated guess
  CostRates rates;
  double flops_in_all = 1e11;    // counted work of all candidates; others are left out
  double seconds_per_run = 30;   // limit for one sample, where a machine stands still
  double seconds_of_timing = 4;  // later sample counts have no figures
  std::function<bool(int64_t)> solves_at_once;     // System::SolvesAtOnce; may be empty
  const CancelToken* token = nullptr;              // may be null
  std::function<void(std::string_view)> progress;  // may be empty
};

// Seconds of runs in turns.
struct Timing {
  std::vector<double> sequential;
  std::vector<double> parallel;
};

// True if `auto` takes the parallel choice: by the counts, unless the clock contradicts clearly.
// `counted_ratio` is the sequential solver's counted seconds by the parallel choice's.
bool ParallelIsFaster(double counted_ratio, const Timing& timing);

// Decides how requests of 1, 2, 4, ... max_batch_size samples are answered. Candidates run on
// calibration inputs and are checked against the sequential trajectory; of those that meet the
// tolerance the cheapest by counted cost is chosen, so that every measurement on one kind of device
// chooses alike. The best configuration of an iterative solver is looked for one option at a time:
// C, then guess and warm sweeps, then Jacobian refresh. Sequential or parallel is decided by
// counted cost as well, unless the clock contradicts it clearly. Errors: kCancelled if the token
// has fired.
absl::StatusOr<Plan> MeasurePlan(const Runner& runner, const CalibrationInputs& inputs,
                                 const PlannerOptions& options);

// Checks a plan that another build made, by running its choices on calibration inputs without
// timing anything, and sets least_rtol from the rounding that this build sees. Errors:
// kFailedPrecondition, naming the choice that misses the tolerance; kCancelled.
absl::Status CheckPlan(const Runner& runner, const CalibrationInputs& inputs,
                       const PlannerOptions& options, Plan* plan);

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_PLAN_PLANNER_H_
