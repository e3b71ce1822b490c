// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_TRAINING_SCHEDULE_H_
#define DEEPPCR_KERNELS_TRAINING_SCHEDULE_H_

#include <cmath>
#include <cstdint>
#include <numbers>

namespace deeppcr::training {

// The learning rate over a run: it rises in a line to `peak` within the first steps, and then stays
// there or falls along half a cosine, to `floor` times the peak where a step after the last would
// be.
struct Schedule {
  double peak = 1e-3;
  int64_t warmup_steps = 0;
  bool cosine = true;
  double floor = 0;  // in [0, 1]
};

// The rate of step 0 <= step < num_steps.
inline double LearningRate(const Schedule& schedule, int64_t step, int64_t num_steps) {
  if (step < schedule.warmup_steps)
    return schedule.peak * static_cast<double>(step + 1) /
           static_cast<double>(schedule.warmup_steps);
  if (!schedule.cosine) return schedule.peak;
  const auto after = static_cast<double>(step - schedule.warmup_steps);
  const auto falling = static_cast<double>(num_steps - schedule.warmup_steps);
  const double fall = 0.5 * (1 + std::cos(std::numbers::pi * after / falling));
  return schedule.peak * (schedule.floor + (1 - schedule.floor) * fall);
}

}  // namespace deeppcr::training

#endif  // DEEPPCR_KERNELS_TRAINING_SCHEDULE_H_
