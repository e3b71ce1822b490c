// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_LOOP_PASS_SPACE_H_
#define DEEPPCR_KERNELS_CUDA_LOOP_PASS_SPACE_H_

#include <cstdint>
#include <span>
#include <variant>

#include "kernels/cuda/cuda_space.h"
#include "kernels/cuda/loop/block_recurrence.h"
#include "kernels/cuda/loop/pass_kernel.h"

namespace deeppcr::cuda {

// A space whose iterative loop runs on the host, which waits for each pass and then launches the
// next: for states beyond newton_kernel.h and for GPUs without clusters. A pass takes so long that
// the wait costs little; in return no launch is in vain, and matrices are formed for those samples
// alone that want them.
class PassSpace : public CudaSpace, public IterationPasses {
 public:
  using CudaSpace::CudaSpace;
  absl::Status Allocate() override;

  std::variant<IterationPasses*, IterationLoop*> iteration() override { return this; }
  void Begin(int32_t num_samples) override;
  PassCount Propagate(std::span<const int32_t> samples, IterationKind kind) override;
  bool interrupted(int32_t) const override { return false; }
  void ReduceLevel(std::span<const int32_t> samples, int level, IterationKind kind) override;
  void DistributeLevel(std::span<const int32_t> samples, int level, IterationKind kind) override;
  void Update(std::span<const int32_t> samples, IterationKind kind, double floor,
              std::span<UpdateNorms> norms) override;
  void Finish(int32_t num_samples, float* const* trajectories) override;

 protected:
  // Launches the propagation of all intervals of `num_members` members.
  virtual void LaunchPropagation(const IntervalsView& intervals, int32_t num_members,
                                 IterationKind kind) = 0;
  // Launches the computation of all states of samples 0..n-1.
  virtual void LaunchExpansion(const IntervalsView& intervals, int32_t num_samples,
                               float* trajectories) = 0;

 private:
  IntervalTree Tree() const { return {static_cast<int32_t>(intervals_), 1}; }
  IntervalsView Intervals(std::span<const int32_t> samples) const;
  PassView View(std::span<const int32_t> samples) const;
  TreeShape Shape(std::span<const int32_t> samples, IterationKind kind) const;
  TreeArgs ArgsOf(std::span<const int32_t> samples, IterationKind kind, double floor) const;

  DeviceBuffer<UpdateNorms> outcomes_;  // mapped, [iterative]
  DeviceBuffer<IntervalNorms> norms_;   // device memory, [iterative, P, W / kPassRows]
};

// PassSpace for a Process of block_recurrence.h.
template <class Process>
class PassSpaceOf : public PassSpace {
 public:
  using PassSpace::PassSpace;

 protected:
  virtual Process ProcessOf() const = 0;
  // Rows that a block takes through a step together.
  virtual int RowsPerStep() const = 0;

  void LaunchPropagation(const IntervalsView& intervals, int32_t num_members,
                         IterationKind kind) override {
    stream_->Launch(PropagationArgs<Process>{.process = ProcessOf(),
                                             .intervals = intervals,
                                             .rows = RowsPerStep(),
                                             .progress = nullptr,
                                             .linearization = kind.linearization,
                                             .kind = kind},
                    num_members);
  }

 private:
  void LaunchExpansion(const IntervalsView& intervals, int32_t num_samples,
                       float* trajectories) final {
    stream_->Launch(
        ExpansionArgs<Process>{
            .process = ProcessOf(), .intervals = intervals, .trajectories = trajectories},
        num_samples);
  }
};

// Samples that pass together: as many as have room, with shooting intervals of one step.
int64_t PassGroup(const SpaceSizes& sizes);
// Bytes of the slabs of the intervals of `sizes`, and bytes that the loop has beside the slabs.
int64_t PassSlabBytes(const SpaceSizes& sizes);
int64_t PassLoopBytes(const SpaceSizes& sizes);

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_LOOP_PASS_SPACE_H_
