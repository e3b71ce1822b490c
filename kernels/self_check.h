// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_SELF_CHECK_H_
#define DEEPPCR_KERNELS_SELF_CHECK_H_

// Check of one system on the very device that is to serve it, against the same system on another
// backend. A plan's measurement is no such check: it judges a device by the device's own answers.
//
//  - Every step by itself: from each state of the device's own trajectory the oracle takes one step
//    (or, where its workspace allows no less, a few, with what they make of rounding). A chaotic
//    model separates trajectories, but not steps. z_0 and the outputs are compared as well.
//  - Every solver that the model takes, against the device's own sequential states: what it
//    certifies is right, it is causal, bit for bit, after one and two iterations, and it converges
//    if the plan has a choice for it. (A planner that measures a broken solver leaves it out.)
//  - Single updates of every solver, from states that are disturbed, the most in another interval
//    and element each time: none is larger than the solver says, as certificates rest on that, and
//    one of them, of matrices, tree and vectors, is the oracle's. So are, by a factor, the rounding
//    that newton counts with and the error that it gives for the outputs, neither of which may be
//    too small. What the oracle would take too long for, it does not do.
//  - An interval that leaves a short last one, where the plan's does not: a request may ask for it.
//  - Bits: a sample's are the same, and so is what is reported of it, alone, at two places of
//    batches of 2, 3 and the largest size, and in twenty runs of the same batch, as far as these
//    are affordable.
//  - Time: no run takes longer than it may.
//
// A plan that was made for another number of steps is judged by one sample, without single
// updates and short intervals, and its choices need not converge.
//
// The backward pass has a check of its own (kernels/gradient_check.h).
//
// What it cannot see: faults that are rarer than that, or that come with load; values that no
// calibration input leads to; a guess or a confirmation that is wrong, as it changes which answers
// are certified but none that are certified here; matrices that are off by less than a fiftieth.

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/backend/backend.h"
#include "kernels/plan/calibration.h"
#include "kernels/plan/plan.h"
#include "kernels/resolve.h"
#include "kernels/solver/runner.h"

namespace deeppcr {

struct SelfCheck {
  const Runner& runner;  // of the system under check
  const System& oracle;  // the same system on another backend, whose loop runs on the host
  const Plan& plan;
  const ResolveContext& resolve;
  const CalibrationInputs& inputs;
  int64_t max_batch_size = 1;
  double seconds_per_run = 10;                    // and sample
  int64_t max_oracle_bytes = int64_t{256} << 20;  // of the oracle's workspace
  const CancelToken* token = nullptr;             // may be null
};

// Errors: kDataLoss, saying what was wrong; kCancelled; kUnavailable if the device has failed;
// kResourceExhausted if the oracle finds no workspace.
absl::Status RunSelfCheck(const SelfCheck& check);

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_SELF_CHECK_H_
