// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_BACKEND_COST_RATES_H_
#define DEEPPCR_KERNELS_BACKEND_COST_RATES_H_

namespace deeppcr {

// What turns counted work into seconds that can be compared. Constants of a backend, never
// measured: two machines, and a machine on two days, come to the same plan by them.
struct CostRates {
  double flops_per_second = 1;
  double seconds_per_stage = 0;  // of a step that waits for the one before
};

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_BACKEND_COST_RATES_H_
