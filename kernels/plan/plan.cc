// SPDX-License-Identifier: Apache-2.0
#include "kernels/plan/plan.h"

#include <algorithm>

namespace deeppcr {

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
