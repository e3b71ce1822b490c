// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_BACKEND_COST_RATES_H_
#define DEEPPCR_KERNELS_BACKEND_COST_RATES_H_

namespace deeppcr {

// Rates that turn counted work into seconds that can be compared. Rates are constants of a backend,
// never measured, so that two machines, and a machine on two days, come to the same plan.
struct CostRates {
  double flops_per_second = 1;
  double seconds_per_stage = 0;  // seconds of a step that waits for the one before
};

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_BACKEND_COST_RATES_H_
