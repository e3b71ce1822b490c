// SPDX-License-Identifier: Apache-2.0
#include "kernels/plan/plan.h"

#include <algorithm>
#include <array>

#include "kernels/base/strings.h"

namespace deeppcr {

std::string Describe(const PlanChoice& choice) {
  return StrCat(choice.solver, ", C = ", choice.shooting_interval, ", ",
                ToString(choice.initial_guess), " guess, ", choice.warm_sweeps,
                " warm sweeps, Jacobians ", ToString(choice.jacobian_refresh));
}

std::string_view ToString(PlanSource source) {
  constexpr std::array<std::string_view, 5> kNames = {"measured", "cache", "file", "serving",
                                                      "nearest"};
  return kNames[static_cast<size_t>(source)];
}

const PlanEntry& Plan::Lookup(int64_t num_samples) const {
  for (const PlanEntry& entry : entries) {
    if (num_samples <= entry.max_samples) return entry;
  }
  return entries.back();
}

const PlanChoice* Plan::ChoiceOf(std::string_view solver) const {
  const auto choice = std::find_if(choices.begin(), choices.end(),
                                   [&](const PlanChoice& c) { return c.solver == solver; });
  return choice == choices.end() ? nullptr : &*choice;
}

}  // namespace deeppcr
