// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_LOOP_SOLVE_PLACES_H_
#define DEEPPCR_KERNELS_CUDA_LOOP_SOLVE_PLACES_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/loop/grid_launcher.h"
#include "kernels/cuda/loop/grid_places.h"
#include "kernels/cuda/tuning.h"
#include "kernels/cuda/workspace.h"
#include "kernels/iteration/stopping.h"

namespace deeppcr::cuda {

// Limits of a solve of one launch: what a launch has numbers for, as each iteration may be followed
// by a correction and the confirmations that a claim takes at most.
inline constexpr int32_t kMostGridIterations = kMostGridPasses / 16;
// True if one launch may make a solve with this policy.
constexpr bool MaySolveOverGrid(const StoppingPolicy& policy, int64_t shooting_interval) {
  return policy.linearization == Linearization::kFull && policy.warm_sweeps == 0 &&
         policy.max_iterations <= kMostGridIterations &&
         policy.max_iterations * shooting_interval <= kMostGridSteps;
}

// The places of solves over a whole GPU (grid_solve.h), on a workspace that outlives this object.
// One thread at a time.
class SolvePlaces {
 public:
  explicit SolvePlaces(Workspace& work) : work_(work) {}

  // Takes memory for so many places. Errors: kResourceExhausted.
  absl::Status Allocate(int64_t count) {
    DEEPPCR_RETURN_IF_ERROR(work_.Take(&places_, MemoryKind::kDevice, count));
    if (count > 0) Clear();
    return absl::OkStatus();
  }
  // The places of the next solve, with numbers of its own.
  GridPlaces Next() {
    if (!(GridPlaces{nullptr, made_}.HasNumbers())) Clear();
    const GridPlaces next = {places_.data(), made_};
    made_ += kMostGridPasses;
    return next;
  }

 private:
  // Before the first solve, and again once in some minutes of load.
  void Clear() {
    ClearPlaces(work_, places_);
    made_ = 0;
  }

  Workspace& work_;
  DeviceBuffer<uint64_t> places_;
  uint32_t made_ = 0;
};

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_LOOP_SOLVE_PLACES_H_
