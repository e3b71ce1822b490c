// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PLAN_CLOCK_H_
#define DEEPPCR_KERNELS_PLAN_CLOCK_H_

// What measurements of plans share.

#include <algorithm>
#include <chrono>
#include <vector>

namespace deeppcr {

using PlanClock = std::chrono::steady_clock;

inline double SecondsSince(PlanClock::time_point start) {
  return std::chrono::duration<double>(PlanClock::now() - start).count();
}

// The median; 0 of no values.
inline double MedianOf(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_PLAN_CLOCK_H_
