// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_SOLVER_INTERVAL_SCAN_H_
#define DEEPPCR_KERNELS_SOLVER_INTERVAL_SCAN_H_

#include <cstdint>
#include <span>

#include "kernels/backend/backend.h"

namespace deeppcr {

// Solves  d_p = A_p d_{p-1} + r_p,  d_0 = 0,  for all intervals p at once: an exclusive scan of the
// affine maps (A_p, r_p) over the fixed tree of kernels/iteration/scan_tree.h. Composition is (A_2
// A_1, A_2 r_1 + r_2): no pivot, no inverse. The up-sweep multiplies matrices (only on refresh; the
// products are kept for later right-hand sides), the down-sweep is matrix-vector throughout
// (Blelloch; BPPSA, Wang et al., MLSys 2020). Afterwards the passes hold d_{p-1} for every
// interval. Returns the dependent stages, counted as the levels run: 2 ceil(log2 P) - 1 of them for
// P >= 2.
int64_t ScanIntervals(IterationPasses& passes, int64_t num_intervals,
                      std::span<const int32_t> samples, IterationKind kind);

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_SOLVER_INTERVAL_SCAN_H_
