// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PLAN_PLANNER_H_
#define DEEPPCR_KERNELS_PLAN_PLANNER_H_

#include <cstdint>
#include <functional>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/plan/calibration.h"
#include "kernels/plan/plan.h"
#include "kernels/solver/runner.h"

namespace deeppcr {

// Every candidate must get the first so many inputs right.
inline constexpr int kJudgedSamples = 8;

struct PlannerOptions {
  double rtol = 1e-4;
  double atol = 1e-6;
  int32_t max_batch_size = 1;
  bool calibrated_guess = false;       // the system has one
  double seconds_per_run = 1.0;        // a candidate that takes longer for one sample is out
  double seconds_in_all = 8.0;         // no new candidate is started after this
  const CancelToken* token = nullptr;  // may be null
  std::function<void(std::string_view)> progress;  // may be empty
};

// Measures which solver answers requests of 1, 2, 4, ... max_batch_size samples fastest. Candidates
// run on calibration inputs, are checked against the sequential trajectory, and are timed
// interleaved with the sequential solver; medians decide. The best configuration of an iterative
// solver is looked for one option at a time: C, then guess and warm sweeps, then Jacobian refresh.
// Errors: kCancelled if the token has fired.
absl::StatusOr<Plan> MeasurePlan(const Runner& runner, const CalibrationInputs& inputs,
                                 const PlannerOptions& options);

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_PLAN_PLANNER_H_
