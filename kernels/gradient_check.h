// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_GRADIENT_CHECK_H_
#define DEEPPCR_KERNELS_GRADIENT_CHECK_H_

// The part of a load's self-check (kernels/self_check.h) that is about the backward pass of a
// device, against the same pass on another backend, at the device's own sequential states:
//
//  - Both ways, the parallel one with the interval that a request gets and with one that leaves a
//    short last interval, give the other backend's gradients, and of a dense stack its deltas.
//    Where rounding has put a unit at a kink on the other side, they may differ; so they have to do
//    it for every sample.
//  - What samples give to the gradients of parameters is the other backend's sum.
//  - A sample has the same bits alone, among others, and once more.
//
// What it cannot see: faults of values that no calibration input leads to, and of numbers of
// columns that it does not try.

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/backend/backend.h"
#include "kernels/base/thread_pool.h"
#include "kernels/plan/calibration.h"
#include "kernels/solver/backward_runner.h"
#include "kernels/solver/runner.h"

namespace deeppcr {

struct GradientCheck {
  const System& system;  // under check, with its runners
  const Runner& runner;
  const BackwardRunner& backward;
  const System& oracle;  // the same system on another backend, packed with its backward pass
  const SystemShape& shape;
  const CalibrationInputs& inputs;
  ThreadPool* pool;
  int64_t max_oracle_bytes = int64_t{256} << 20;  // of the oracle's workspace
  const CancelToken* token = nullptr;             // may be null
};

// Errors: kDataLoss, saying what was wrong; kCancelled; kUnavailable if the device has failed;
// kResourceExhausted if the oracle finds no workspace.
absl::Status RunGradientCheck(const GradientCheck& check);

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_GRADIENT_CHECK_H_
