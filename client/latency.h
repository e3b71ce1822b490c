// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_CLIENT_LATENCY_H_
#define DEEPPCR_CLIENT_LATENCY_H_

#include <cstdint>
#include <span>
#include <vector>

namespace deeppcr {

// The nearest-rank percentile: the smallest value that at least `percent` % of all values do not
// exceed. `sorted` ascending; percent in [0, 100]. 0 for no values.
double Percentile(std::span<const double> sorted, double percent);

// Statistics in seconds. Summarize takes the values in any order.
struct LatencySummary {
  int64_t count = 0;
  double mean = 0;
  double min = 0;
  double p50 = 0;
  double p90 = 0;
  double p99 = 0;
  double p999 = 0;
  double max = 0;
};
LatencySummary Summarize(std::vector<double> values);

}  // namespace deeppcr

#endif  // DEEPPCR_CLIENT_LATENCY_H_
