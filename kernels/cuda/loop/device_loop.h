// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_LOOP_DEVICE_LOOP_H_
#define DEEPPCR_KERNELS_CUDA_LOOP_DEVICE_LOOP_H_

#include <cstdint>
#include <vector>

#include "kernels/cuda/loop/newton_shape.h"
#include "kernels/cuda/recurrence.h"
#include "kernels/cuda/workspace.h"

namespace deeppcr::cuda {

// The iterative loop on the device: newton_kernel.h, as one launch for families that it steps
// through itself, or in parts, between which the recurrence propagates.
class DeviceLoop : public IterationLoop {
 public:
  // Both outlive the loop.
  DeviceLoop(Workspace& work, Recurrence& recurrence);
  // Errors: kResourceExhausted.
  absl::Status Allocate();

  // Takes the token of a sample, which may be null.
  void Watch(int32_t sample, const CancelToken* token) { tokens_[sample] = token; }
  void Iterate(int32_t num_samples, const StoppingPolicy& policy, float* const* trajectories,
               Progress* progress) override;

 private:
  void Solve(int32_t num_samples, const StoppingPolicy& policy, float* const* trajectories,
             const Progress& start);
  void SolveAtOnce(const StackView& stack, int32_t num_samples, const StoppingPolicy& policy,
                   float* trajectories, const Progress& start);
  void SolveOverGrid(const IntervalTree& tree, int32_t num_samples, const StoppingPolicy& policy,
                     float* trajectories, const Progress& start);
  void SolveInParts(int32_t first, int32_t count, int32_t num_samples, const StoppingPolicy& policy,
                    const Progress& start);
  void PassOneByOne(int32_t first, int32_t count, int32_t num_samples, const NewtonArgs& args,
                    const NewtonShape& shape, const Progress& start);
  bool AllStopped(int32_t first, int32_t count) const;
  // Tells the device which samples' tokens have fired, and why.
  void PollTokens(int32_t num_samples);
  // Arguments of the Newton kernel for samples first, first + 1, ..., without those of a family.
  NewtonArgs ArgsOf(int64_t first, const NewtonShape& shape, const StoppingPolicy& policy,
                    const Progress& start) const;
  NewtonShape ShapeInParts(int32_t count) const;
  IntervalsView IntervalsInParts(int32_t count) const;

  Workspace& work_;
  Recurrence& recurrence_;
  std::vector<const CancelToken*> tokens_;
  std::vector<int32_t> stopped_;  // values of cancel_ before the launch
  // Mapped memory, [G] each.
  DeviceBuffer<int32_t> cancel_;
  DeviceBuffer<Progress> outcomes_;
  DeviceBuffer<Progress> progress_;  // device memory, [kWorkspaceGroup]: of a solve in parts
};

// Bytes that the loop has where a space has another loop too.
int64_t DeviceLoopBytes(const SpaceSizes& sizes);
// Workspace of a sample: of a solve at once, 0 where the shared memory of a cluster is
// enough; of a solve in parts, for the largest of the clusters that a launch may have.
int64_t WorkspaceBytesAtOnce(const LaunchLimits& device, const SpaceSizes& sizes);
int64_t WorkspaceBytesInParts(const LaunchLimits& device, const SpaceSizes& sizes);

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_LOOP_DEVICE_LOOP_H_
