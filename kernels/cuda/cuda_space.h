// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_CUDA_SPACE_H_
#define DEEPPCR_KERNELS_CUDA_CUDA_SPACE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend/backend.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/loop/block_memory.h"
#include "kernels/cuda/math/dense_chain.h"
#include "kernels/cuda/runtime/device.h"
#include "kernels/cuda/runtime/device_buffer.h"

namespace deeppcr::cuda {

// Sizes of the parts of a space that all families have.
struct SpaceSizes {
  SystemShape shape;
  int64_t width = 0;          // W
  int64_t group = 1;          // G: samples that are taken together
  int64_t iterative = 1;      // samples that are taken together in iterative mode, <= G
  int64_t intervals = 0;      // P at most; 0: sequential mode only
  int64_t inputs = 0;         // floats of a sample in mapped memory
  int64_t scratch = 0;        // floats of a sample for dense layers
  int64_t beside = 0;         // floats of a sample that the family has beside the above
  int64_t slab_bytes = 0;     // slabs of all samples that lie in slabs at a time
  int64_t loop_bytes = 0;     // memory that the loop has beside the above
  int64_t product_bytes = 0;  // cuBLAS's workspace, where the loop multiplies matrices
  // Saturates instead of overflowing.
  int64_t bytes() const;
};

// Workspace of cuBLAS in the device's memory: for products of the matrices of a tree, which are
// small, and for products with whole layers, as NVIDIA recommends for the largest GPUs.
inline constexpr int64_t kTreeProductBytes = int64_t{4} << 20;
inline constexpr int64_t kLayerProductBytes = int64_t{32} << 20;

// Samples with trajectories and `floats_beside` floats more that fit 64 MiB, at most 256.
int64_t GroupSize(const SystemShape& shape, int64_t floats_beside);

int64_t NumIntervals(const SystemShape& shape, int64_t shooting_interval);

// A space on a GPU, the part that all families and loops share: staging, sequential mode, guesses,
// decoding.
class CudaSpace : public SolveSpace {
 public:
  CudaSpace(Device& device, const SpaceSizes& sizes, const DeviceChain& decode);
  // Allocates the memory; goes before anything else. Errors: kResourceExhausted.
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
  absl::Status status() const override { return stream_->status(); }

 protected:
  // Computes z_0 of samples 0..n-1 into initial_.
  virtual void LaunchEncode(int32_t num_samples) = 0;
  // Makes steps (begin, end] from initial_ (begin == 0) or current_ to current_, and into
  // trajectories [n, L + 1, D], which may be null; the number of steps made goes to num_dependent_.
  virtual void LaunchSteps(int32_t num_samples, int64_t begin, int64_t end,
                           float* trajectories) = 0;
  // Computes the data of guess_ from initial_.
  virtual void LaunchGuess(int32_t) {}

  // Applies layers, with `inputs`, `outputs` and the space's scratch.
  void LaunchChain(const DeviceChain& chain, DenseChainArgs args, int32_t num_samples);
  // Computes the answers, and the final states beside them.
  void LaunchDecode(int32_t num_samples);
  // Copies once the solve is done, as a copy to the caller's memory keeps the host from other work.
  void CopyTrajectories(int32_t num_samples, float* const* trajectories);
  float* Wanted(float* const* trajectories) const {
    return trajectories == nullptr ? nullptr : trajectories_.data();
  }
  template <class T>
  absl::Status Take(DeviceBuffer<T>* buffer, MemoryKind kind, int64_t size) {
    auto made = DeviceBuffer<T>::New(device_, kind, size);
    if (made.ok()) *buffer = *std::move(made);
    return made.status();
  }

  Device& device_;
  const LaunchLimits limits_;
  const SpaceSizes sizes_;
  const SystemShape& shape_;
  const int width_;
  int64_t interval_ = 1, intervals_ = 0;
  GuessView guess_ = {};
  DeviceBuffer<std::byte> for_products_;  // device memory; outlives the stream, which uses it
  std::unique_ptr<Stream> stream_;
  // Mapped memory.
  DeviceBuffer<float> inputs_;                                  // [G, inputs]
  DeviceBuffer<float> outputs_, amplification_, final_states_;  // [G, output_dim], [G], [G, D]
  DeviceBuffer<float> guesses_;                                 // [iterative, P, W], the caller's
  DeviceBuffer<int64_t> num_dependent_;                         // [1]
  // Device memory.
  DeviceBuffer<float> initial_, current_;  // [G, W] each
  DeviceBuffer<float> trajectories_;       // [G, L + 1, D]
  DeviceBuffer<float> scratch_;            // [G, scratch]
  DeviceBuffer<std::byte> slabs_;

 private:
  std::span<const float> FinalState(int32_t sample) const;

  const DeviceChain& decode_;
};

// A space of this kind, with its memory.
template <class Space, class Model>
absl::StatusOr<std::unique_ptr<SolveSpace>> MakeSpace(Device& device, const Model& model,
                                                      const SpaceSizes& sizes) {
  auto space = std::make_unique<Space>(device, model, sizes);
  DEEPPCR_RETURN_IF_ERROR(space->Allocate());
  return std::unique_ptr<SolveSpace>(std::move(space));
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_CUDA_SPACE_H_
