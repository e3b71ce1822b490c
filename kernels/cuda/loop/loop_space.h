// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_LOOP_LOOP_SPACE_H_
#define DEEPPCR_KERNELS_CUDA_LOOP_LOOP_SPACE_H_

#include <cstdint>
#include <variant>
#include <vector>

#include "kernels/cuda/cuda_space.h"
#include "kernels/cuda/loop/newton_shape.h"

namespace deeppcr::cuda {

// A space whose iterative loop runs on the device: newton_kernel.h.
class LoopSpace : public CudaSpace, public IterationLoop {
 public:
  LoopSpace(Device& device, const SpaceSizes& sizes, const DeviceChain& decode);
  absl::Status Allocate() override;

  void Encode(int32_t sample, const SampleInput& input) override;
  std::variant<IterationPasses*, IterationLoop*> iteration() override { return this; }
  void Iterate(int32_t num_samples, const StoppingPolicy& policy, float* const* trajectories,
               Progress* progress) override;

 protected:
  // Runs the iterative loop from initial_ and the guess to current_ and outcomes_. May wait in
  // between.
  virtual void RunIterations(int32_t num_samples, const StoppingPolicy& policy, float* trajectories,
                             const Progress& start) = 0;

  // Tells the device which samples' tokens have fired, and why.
  void LookAtTokens(int32_t num_samples);
  // Arguments of the Newton kernel for samples first, first + 1, ..., without those of a family.
  NewtonArgs ArgsOf(int64_t first, const NewtonShape& shape, const StoppingPolicy& policy,
                    const Progress& start) const;

  // Mapped memory, [G] each.
  DeviceBuffer<int32_t> cancel_;
  DeviceBuffer<Progress> outcomes_;

 private:
  void Solve(int32_t num_samples, const StoppingPolicy& policy, float* const* trajectories,
             const Progress& start);

  std::vector<const CancelToken*> tokens_;
  std::vector<int32_t> stopped_;  // values of cancel_ before the launch
};

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_LOOP_LOOP_SPACE_H_
