// SPDX-License-Identifier: Apache-2.0
#include "kernels/plan/rescaled_plan.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/strings.h"
#include "kernels/solver/registry.h"

namespace deeppcr {
namespace {

// C in the same ratio to the number of steps, within [min_interval, to_steps] and what the solver
// takes.
int32_t RescaledInterval(const PlanChoice& choice, int64_t from_steps, int64_t to_steps,
                         int64_t min_interval) {
  const double ratio = static_cast<double>(to_steps) / static_cast<double>(from_steps);
  const int64_t interval = std::llround(choice.shooting_interval * ratio);
  int64_t most = to_steps;
  const SolverRow* row = FindSolver(choice.solver);
  if (row != nullptr && row->max_shooting_interval > 0)
    most = std::min(most, row->max_shooting_interval);
  return static_cast<int32_t>(std::min(std::max(interval, min_interval), most));
}

}  // namespace

size_t NearestSteps(std::span<const int64_t> planned, int64_t num_steps) {
  const auto distance = [=](int64_t steps) {
    return static_cast<double>(std::max(steps, num_steps)) /
           static_cast<double>(std::min(steps, num_steps));
  };
  size_t nearest = 0;
  for (size_t i = 1; i < planned.size(); ++i) {
    const double d = distance(planned[i]), best = distance(planned[nearest]);
    if (d < best || (d == best && planned[i] > planned[nearest])) nearest = i;
  }
  return nearest;
}

Plan RescaledPlan(const Plan& plan, int64_t from_steps, int64_t to_steps,
                  int64_t min_shooting_interval) {
  Plan rescaled = plan;
  rescaled.id.clear();
  rescaled.source = PlanSource::kNearest;
  rescaled.measured_seconds = 0;
  rescaled.candidates = {StrCat("none tried: the choices of the plan for ", from_steps, " steps")};
  const auto rescale = [&](PlanChoice& choice) {
    choice.shooting_interval =
        RescaledInterval(choice, from_steps, to_steps, min_shooting_interval);
  };
  std::ranges::for_each(rescaled.choices, rescale);
  for (PlanEntry& entry : rescaled.entries) {
    entry.sequential_seconds = entry.parallel_seconds = 0;
    if (entry.ways.has_value()) entry.ways->sequential_seconds = entry.ways->parallel_seconds = 0;
    if (!entry.has_parallel()) continue;
    rescale(entry.parallel);
    if (entry.parallel_stages > to_steps && to_steps < from_steps) entry.solver = "sequential";
  }
  return rescaled;
}

}  // namespace deeppcr
