// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_CUDA_SPACE_H_
#define DEEPPCR_KERNELS_CUDA_CUDA_SPACE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "kernels/backend/backend.h"
#include "kernels/cuda/dense_chain.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/device_buffer.h"

namespace deeppcr::cuda {

// Samples whose intervals lie in slabs of global memory at a time.
inline constexpr int64_t kSlabGroup = 8;

// Sizes of what all families have in a space.
struct SpaceSizes {
  SystemShape shape;
  int64_t width = 0;       // W
  int64_t group = 1;       // G: samples that are taken together
  int64_t intervals = 0;   // P at most; 0: sequential mode only
  int64_t inputs = 0;      // floats of a sample in mapped memory
  int64_t scratch = 0;     // floats of a sample for dense layers
  int64_t beside = 0;      // floats of a sample that the family has beside these
  int64_t slab_bytes = 0;  // of all that lie in slabs at a time
  int64_t bytes() const;
};

// Samples with trajectories and so many floats more in 64 MiB, at most 256.
int64_t GroupSize(const SystemShape& shape, int64_t floats_beside);

int64_t NumIntervals(const SystemShape& shape, int64_t shooting_interval);

// A space on a GPU, as far as families do not differ: staging, decoding, tokens, waiting.
class CudaSpace : public SolveSpace, public IterationLoop {
 public:
  CudaSpace(Device& device, const SpaceSizes& sizes, const DeviceChain& decode);
  // Before anything else. Errors: kResourceExhausted.
  virtual absl::Status Allocate();

  void Encode(int32_t sample, const SampleInput& input) override;
  void Decode(int32_t sample, float* outputs) override;
  double AmplifyError(int32_t sample, double relative_error, double floor,
                      const float* outputs) override;
  void Restart(int32_t num_samples) override { LaunchEncode(num_samples); }
  int64_t Advance(int32_t num_samples, int64_t begin, int64_t end,
                  float* const* trajectories) override;
  void CopyState(int32_t sample, float* state) const override;
  bool FinalStateFinite(int32_t sample) const override;

  void SetShootingInterval(int64_t steps) override;
  int64_t num_intervals() const override { return intervals_; }
  void GuessConstant(int32_t sample) override;
  void GuessTrajectory(int32_t sample, const float* trajectory) override;
  std::variant<IterationPasses*, IterationLoop*> iteration() override { return this; }
  void Iterate(int32_t num_samples, const StoppingPolicy& policy, float* const* trajectories,
               Progress* progress) override;
  absl::Status status() const override { return stream_->status(); }

 protected:
  // z_0 of samples 0..n-1 into initial_.
  virtual void LaunchEncode(int32_t num_samples) = 0;
  // Steps (begin, end] from initial_ (begin == 0) or current_ to current_, and into trajectories
  // [n, L + 1, D], which may be null; the steps made go to num_dependent_.
  virtual void LaunchSteps(int32_t num_samples, int64_t begin, int64_t end,
                           float* trajectories) = 0;
  // The iterative loop from initial_ and the guess to current_ and outcomes_. May wait in between.
  virtual void RunIterations(int32_t num_samples, const StoppingPolicy& policy, float* trajectories,
                             const Progress& start) = 0;

  // Layers with `inputs`, `outputs` and the space's scratch.
  void LaunchChain(const DeviceChain& chain, DenseChainArgs args, int32_t num_samples);
  // Tells the device whose tokens have fired, and why.
  void LookAtTokens(int32_t num_samples);
  template <class T>
  absl::Status Take(DeviceBuffer<T>* buffer, MemoryKind kind, int64_t size) {
    auto made = DeviceBuffer<T>::New(device_, kind, size);
    if (made.ok()) *buffer = *std::move(made);
    return made.status();
  }

  // Arguments of the Newton kernel for samples first, first + 1, ..., without what is a family's.
  NewtonArgs ArgsOf(int64_t first, const NewtonShape& shape, const StoppingPolicy& policy,
                    const Progress& start) const;

  Device& device_;
  const LaunchLimits limits_;
  const SpaceSizes sizes_;
  const SystemShape& shape_;
  const int width_;
  int64_t interval_ = 1, intervals_ = 0;
  GuessView guess_ = {};
  std::unique_ptr<Stream> stream_;
  // Mapped.
  DeviceBuffer<float> inputs_;                                  // [G, inputs]
  DeviceBuffer<float> outputs_, amplification_, final_states_;  // [G, output_dim], [G], [G, D]
  DeviceBuffer<float> guesses_;                                 // [G, P, W], of the caller
  DeviceBuffer<int32_t> cancel_;                                // [G]
  DeviceBuffer<Progress> outcomes_;                             // [G]
  DeviceBuffer<int64_t> num_dependent_;                         // [1]
  // The device's.
  DeviceBuffer<float> initial_, current_;  // [G, W] each
  DeviceBuffer<float> trajectories_;       // [G, L + 1, D]
  DeviceBuffer<float> scratch_;            // [G, scratch]
  DeviceBuffer<std::byte> slabs_;

 private:
  std::span<const float> FinalState(int32_t sample) const;
  float* Wanted(float* const* trajectories) const {
    return trajectories == nullptr ? nullptr : trajectories_.data();
  }
  void Solve(int32_t num_samples, const StoppingPolicy& policy, float* const* trajectories,
             const Progress& start);
  void LaunchDecode(int32_t num_samples);
  // Once the solve is done: a copy to memory of the caller's keeps the host from everything else.
  void CopyTrajectories(int32_t num_samples, float* const* trajectories);

  const DeviceChain& decode_;
  std::vector<const CancelToken*> tokens_;
  std::vector<int32_t> stopped_;  // before the launch, as cancel_ says it
};

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_CUDA_SPACE_H_
