// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PLAN_RESCALED_PLAN_H_
#define DEEPPCR_KERNELS_PLAN_RESCALED_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/plan/plan.h"

namespace deeppcr {

// Index of the number of steps whose ratio to num_steps is nearest to 1; of two equally near, the
// larger number's. `planned` must not be empty; every number is at least 1.
size_t NearestSteps(std::span<const int64_t> planned, int64_t num_steps);

// Plan of a system of to_steps steps that nothing was measured for: the choices of a plan of
// from_steps steps of the same model, with C in the same ratio to the number of steps, as far as
// min_shooting_interval and the solver allow. `auto` takes the sequential solver where the parallel
// one took more dependent stages than there are steps now. The plan has no times and no id; its
// least_rtol is that of the other plan. Samples are certified as ever: a plan decides how fast an
// answer comes, and never whether it is right.
Plan RescaledPlan(const Plan& plan, int64_t from_steps, int64_t to_steps,
                  int64_t min_shooting_interval);

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_PLAN_RESCALED_PLAN_H_
