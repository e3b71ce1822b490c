// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_ORACLE_PASS_H_
#define DEEPPCR_KERNELS_ORACLE_PASS_H_

// One pass of the iterative loop on the host, for comparisons with the same pass on a device: what
// its matrices, its tree and its probes make of states that the caller chooses.

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend/backend.h"
#include "kernels/iteration/pass.h"

namespace deeppcr {

struct OraclePass {
  std::vector<float> trajectory;  // [L + 1, D]: the states after the pass, at the ends of intervals
  UpdateNorms norms;              // with the rounding that probes have picked up
};

// Takes sample 0, which `space` has encoded, from the states `guess` [L + 1, D] through one update
// with C steps per interval. Errors: kCancelled if the sample's token fired.
absl::StatusOr<OraclePass> RunOraclePass(SolveSpace& space, IterationPasses& passes,
                                         const std::vector<float>& guess, int64_t shooting_interval,
                                         Linearization linearization, double floor);

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_ORACLE_PASS_H_
