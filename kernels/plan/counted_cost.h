// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PLAN_COUNTED_COST_H_
#define DEEPPCR_KERNELS_PLAN_COUNTED_COST_H_

// Cost of a way to solve, from the counts of the loops and constants of the backend. Unlike a
// clock, the cost is the same on every machine, whatever else runs.

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/backend/cost_rates.h"
#include "kernels/problem/spec.h"

namespace deeppcr {

// Counted cost of one sample.
struct CountedCost {
  double flops = 0;
  double stages = 0;

  // Seconds of a request of `samples` samples: flops add up, dependent stages do not.
  double Seconds(const CostRates& rates, double samples) const {
    return stages * rates.seconds_per_stage + samples * flops / rates.flops_per_second;
  }
};

// Flops of the vectors pushed through all steps, and of the products of the tree: 2 D^3 for each of
// P transition matrices of an iteration that forms matrices. The number of such iterations is
// bounded by `iterations` and by the columns, of which each takes D + 1.
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
