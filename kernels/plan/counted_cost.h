// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PLAN_COUNTED_COST_H_
#define DEEPPCR_KERNELS_PLAN_COUNTED_COST_H_

// What a way to solve costs, from what the loops counted and constants of the backend: the same on
// every machine and whatever else runs, which no clock is.

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/backend/cost_rates.h"
#include "kernels/problem/spec.h"

namespace deeppcr {

// One sample's, as counted.
struct CountedCost {
  double flops = 0;
  double stages = 0;

  // Of a request of so many samples: the work adds up, what waits for one another does not.
  double Seconds(const CostRates& rates, double samples) const {
    return stages * rates.seconds_per_stage + samples * flops / rates.flops_per_second;
  }
};

// Vectors pushed through all steps, and the products of the tree: 2 D^3 for each of P transition
// matrices of an iteration that forms them, of which there are no more than iterations and than
// columns have room for.
inline double CountedFlops(const SystemShape& shape, int64_t num_intervals, double columns,
                           double iterations) {
  const auto steps = static_cast<double>(shape.num_steps);
  const auto weights = static_cast<double>(shape.step_weights);
  const auto width = static_cast<double>(shape.state_dim);
  const double passes = std::min(iterations, std::floor(columns / (width + 1)));
  return 2 * columns * steps * weights +
         2 * passes * static_cast<double>(num_intervals) * width * width * width;
}

inline CountedCost SequentialCost(const SystemShape& shape) {
  return {.flops = CountedFlops({.num_steps = shape.num_steps, .step_weights = shape.step_weights},
                                0, 1, 0),
          .stages = static_cast<double>(shape.num_steps)};
}

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_PLAN_COUNTED_COST_H_
