// SPDX-License-Identifier: Apache-2.0
#include "client/latency.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace deeppcr {

double Percentile(std::span<const double> sorted, double percent) {
  if (sorted.empty()) return 0;
  const double count = static_cast<double>(sorted.size());
  // The subtrahend keeps 99.9 % of 1000, which is 999.0000000000001 in binary, at rank 999.
  const double rank = std::ceil(percent * count / 100 - 1e-9);
  const double index = std::clamp(rank - 1, 0.0, count - 1);
  return sorted[static_cast<size_t>(index)];
}

LatencySummary Summarize(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  return {.count = static_cast<int64_t>(values.size()),
          .mean = sum / static_cast<double>(values.size()),
          .min = values.front(),
          .p50 = Percentile(values, 50),
          .p90 = Percentile(values, 90),
          .p99 = Percentile(values, 99),
          .p999 = Percentile(values, 99.9),
          .max = values.back()};
}

}  // namespace deeppcr
