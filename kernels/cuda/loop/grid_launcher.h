// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_LOOP_GRID_LAUNCHER_H_
#define DEEPPCR_KERNELS_CUDA_LOOP_GRID_LAUNCHER_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/loop/grid_args.h"
#include "kernels/cuda/tuning.h"
#include "kernels/cuda/workspace.h"

namespace deeppcr::cuda {

// Makes zeros of the places through which blocks give one another numbered elements: the numbers
// begin anew. Waits for what was launched before.
inline void ClearPlaces(Workspace& work, DeviceBuffer<uint64_t>& places) {
  const std::vector<uint64_t> zeros(static_cast<size_t>(places.size()));
  work.stream->CopyToDevice(places.data(), zeros.data(), zeros.size() * sizeof(uint64_t));
  work.stream->Wait([] {});
}

// Launches the sequential steps of a few samples over the whole GPU, on a workspace that outlives
// this object. One thread at a time.
class GridLauncher {
 public:
  explicit GridLauncher(Workspace& work) : work_(work) {}

  // Takes memory for a plan, before anything else. Errors: kResourceExhausted.
  absl::Status Allocate(const GridPlan& plan) {
    plan_ = plan;
    if (plan.shape.blocks == 0) return absl::OkStatus();
    exchange_ = plan.Exchange();
    DEEPPCR_RETURN_IF_ERROR(work_.Take(&places_, MemoryKind::kDevice, exchange_.num_places()));
    exchange_.places = places_.data();
    exchange_.made = 0xFFFFFFFF;  // no numbers are left: the first launch begins anew
    return absl::OkStatus();
  }

  // True if steps of so many samples are for the whole GPU.
  bool Takes(int32_t num_samples) const {
    return plan_.shape.blocks > 0 && num_samples <= kMostGridSamples;
  }
  // What a step of so many samples, with so many weights, is taken to cost.
  double NanosecondsOf(int32_t num_samples, int64_t weights) const {
    return num_samples * (kExchangeNanoseconds * plan_.exchanges +
                          kGridWeightNanoseconds * static_cast<double>(weights));
  }

  template <class Process>
  void Launch(const BlockSequentialArgs<Process>& sequential) {
    const int64_t exchanges =
        sequential.num_samples * (sequential.end - sequential.begin) * plan_.exchanges;
    if (!exchange_.HasNumbersFor(exchanges)) Clear();
    GridStepsArgs<Process> args = {sequential, exchange_, plan_.shape.resident};
    args.sequential.team = {plan_.shape.blocks, 1};
    work_.stream->Launch(args);
    exchange_.made += static_cast<uint32_t>(exchanges);
  }

 private:
  // Before the first launch, and then once in some hours of load.
  void Clear() {
    ClearPlaces(work_, places_);
    exchange_.made = 0;
  }

  Workspace& work_;
  GridPlan plan_;
  GridExchange exchange_ = {};
  DeviceBuffer<uint64_t> places_;  // device memory
};

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_LOOP_GRID_LAUNCHER_H_
