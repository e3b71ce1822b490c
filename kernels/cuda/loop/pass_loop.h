// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_LOOP_PASS_LOOP_H_
#define DEEPPCR_KERNELS_CUDA_LOOP_PASS_LOOP_H_

#include <cstdint>
#include <span>

#include "kernels/cuda/loop/pass_kernel.h"
#include "kernels/cuda/recurrence.h"
#include "kernels/cuda/workspace.h"

namespace deeppcr::cuda {

// The iterative loop pass by pass, for a host that waits for each pass and then launches the next:
// for states beyond newton_kernel.h and for GPUs without clusters. A pass takes so long that the
// wait costs little; in return no launch is in vain, and matrices are formed for those samples
// alone that want them.
class PassLoop : public IterationPasses {
 public:
  // Both outlive the loop.
  PassLoop(Workspace& work, Recurrence& recurrence) : work_(work), recurrence_(recurrence) {}
  // Errors: kResourceExhausted.
  absl::Status Allocate();

  void Begin(int32_t num_samples) override;
  PassCount Propagate(std::span<const int32_t> samples, IterationKind kind) override;
  bool interrupted(int32_t) const override { return false; }
  void UpSweep(std::span<const int32_t> samples, int level, IterationKind kind) override;
  void DownSweep(std::span<const int32_t> samples, int level, IterationKind kind) override;
  void Update(std::span<const int32_t> samples, IterationKind kind, double floor,
              std::span<UpdateNorms> norms) override;
  void Finish(int32_t num_samples, float* const* trajectories) override;

 private:
  IntervalTree Tree() const { return {static_cast<int32_t>(work_.intervals), 1}; }
  IntervalsView Intervals(std::span<const int32_t> samples) const;
  PassView View(std::span<const int32_t> samples) const;
  TreeShape Shape(std::span<const int32_t> samples, IterationKind kind) const;
  TreeArgs ArgsOf(std::span<const int32_t> samples, IterationKind kind, double floor) const;

  Workspace& work_;
  Recurrence& recurrence_;
  DeviceBuffer<UpdateNorms> outcomes_;  // mapped, [iterative]
  DeviceBuffer<IntervalNorms> norms_;   // device memory, [iterative, P, W / kPassRows]
};

// Samples that pass together: as many as have room, with shooting intervals of one step.
int64_t PassGroup(const SpaceSizes& sizes);
// Workspace of the intervals of `sizes`, and bytes that the loop has beside it.
int64_t PassWorkspaceBytes(const SpaceSizes& sizes);
int64_t PassLoopBytes(const SpaceSizes& sizes);

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_LOOP_PASS_LOOP_H_
