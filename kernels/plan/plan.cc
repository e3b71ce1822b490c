// SPDX-License-Identifier: Apache-2.0
#include "kernels/plan/plan.h"

#include <algorithm>
#include <array>

namespace deeppcr {

std::string_view ToString(PlanSource source) {
  constexpr std::array<std::string_view, 4> kNames = {"measured", "cache", "file", "serving"};
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
