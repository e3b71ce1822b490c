// SPDX-License-Identifier: Apache-2.0
#include "server/schedule/wait_prediction.h"

#include <algorithm>

namespace deeppcr {

double SecondsUntilFree(std::span<double> busy, double ahead) {
  std::ranges::sort(busy);
  double level = busy.front();
  for (size_t free = 1; free < busy.size(); ++free) {
    const double until_next = static_cast<double>(free) * (busy[free] - level);
    if (ahead <= until_next) return level + ahead / static_cast<double>(free);
    ahead -= until_next;
    level = busy[free];
  }
  return level + ahead / static_cast<double>(busy.size());
}

}  // namespace deeppcr
