// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_SOLVER_RUN_ITEM_H_
#define DEEPPCR_KERNELS_SOLVER_RUN_ITEM_H_

#include <span>

#include "kernels/base/cancel_token.h"
#include "kernels/solver/progress.h"
#include "kernels/solver/report.h"
#include "kernels/solver/sample_inputs.h"

namespace deeppcr {

// One request within a batch. Every span is the caller's memory and outlives the call.
struct RunItem {
  SampleInputs samples;                  // n of them
  std::span<float> outputs;              // [n, output_dim]
  std::span<float> final_states;         // [n, D]: z_L, or empty if not wanted
  std::span<float> trajectory;           // [n, L + 1, D], or empty if not wanted
  std::span<SampleReport> reports;       // [n]
  const CancelToken* token = nullptr;    // may be null
  ProgressListener* listener = nullptr;  // may be null
};

// Stages of one Run, as seconds summed over the threads that worked on it, and the wall time of the
// whole.
struct RunTimings {
  double encode_seconds = 0;
  double solve_seconds = 0;
  double decode_seconds = 0;
  double wall_seconds = 0;
};

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_SOLVER_RUN_ITEM_H_
