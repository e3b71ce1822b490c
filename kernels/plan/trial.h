// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PLAN_TRIAL_H_
#define DEEPPCR_KERNELS_PLAN_TRIAL_H_

// Runs of choices on calibration inputs, judged against the sequential trajectory and counted.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/plan/calibration.h"
#include "kernels/plan/counted_cost.h"
#include "kernels/plan/plan.h"
#include "kernels/plan/planner.h"
#include "kernels/solver/runner.h"

namespace deeppcr {

// Results of a choice with one sample at a time.
struct Trial {
  PlanChoice choice;
  bool met_tolerance = false;
  std::string why_not;       // reason where it did not meet the tolerance
  bool within_steps = true;  // no more dependent stages than steps, beyond which `auto` gives up
  bool at_once = false;      // PlannerOptions::solves_at_once
  CountedCost cost;          // flops: mean, stages: worst
  double iterations = 0;     // mean
  double error = 0;          // worst
  double rounding = 0;       // worst
};

// Text of a trial in one line, for reading.
std::string Describe(const Trial& trial);

// Cheapest trial that met the tolerance, among those within the steps if there are any; null if no
// trial met the tolerance. Among trials of equal work, the trial with the fewest stages, of those
// that solve at once if there are any.
const Trial* BestOf(const std::vector<Trial>& trials, const CostRates& rates);

// True if the backend solves so without the host (PlannerOptions::solves_at_once).
bool AtOnce(const PlannerOptions& options, const PlanChoice& choice);

class TrialBench {
 public:
  TrialBench(const Runner& runner, const CalibrationInputs& inputs, const PlannerOptions& options);

  // Computes the sequential answers that choices are judged by. Returns an empty text, or the
  // reason why there are no answers: a sample overflowed or took too long.
  absl::StatusOr<std::string> RunReference();

  // Runs a choice on the judged samples; stops as soon as it misses the tolerance, or its counted
  // work is beyond max_flops per sample.
  absl::StatusOr<Trial> Run(const PlanChoice& choice, double max_flops);

  // Runs samples [first, first + n) once and returns the seconds; in_time() tells afterwards
  // whether all samples got to their end.
  absl::StatusOr<double> Time(const ResolvedOptions& options, int64_t first, int64_t n);
  ResolvedOptions Resolve(const PlanChoice& choice) const;

  bool in_time() const { return in_time_; }
  const SystemShape& shape() const { return shape_; }
  double spent_flops() const { return spent_flops_; }

 private:
  absl::StatusOr<double> RunSamples(const ResolvedOptions& options, int64_t first, int64_t n,
                                    float* trajectory);
  int32_t IterationsWithin(const PlanChoice& choice, double max_flops) const;
  absl::Status JudgeSample(int s, const ResolvedOptions& options, Trial* trial);
  double TrueError(int s, int64_t interval) const;
  int64_t Intervals(const PlanChoice& choice) const {
    return (shape_.num_steps - 1) / choice.shooting_interval + 1;
  }

  const Runner& runner_;
  const SystemShape shape_;
  const CalibrationInputs& inputs_;
  const PlannerOptions& options_;
  const int64_t states_;
  int judged_ = 0;
  bool in_time_ = true;
  double spent_flops_ = 0;
  std::vector<float> trajectory_, reference_, outputs_;
  std::vector<SampleReport> reports_;
};

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_PLAN_TRIAL_H_
