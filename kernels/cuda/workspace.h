// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_WORKSPACE_H_
#define DEEPPCR_KERNELS_CUDA_WORKSPACE_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "kernels/backend/backend.h"
#include "kernels/cuda/loop/guess.h"
#include "kernels/cuda/math/dense_chain.h"
#include "kernels/cuda/runtime/device.h"
#include "kernels/cuda/runtime/device_buffer.h"
#include "kernels/cuda/tuning.h"

namespace deeppcr::cuda {

// Sizes of the parts of a space that all families have.
struct SpaceSizes {
  SystemShape shape;
  int64_t width = 0;            // W
  int64_t group = 1;            // G: samples that are taken together
  int64_t iterative = 1;        // samples that are taken together in iterative mode, <= G
  int64_t intervals = 0;        // P at most; 0: sequential mode only
  int64_t inputs = 0;           // floats of a sample in mapped memory
  int64_t scratch = 0;          // floats of a sample for dense layers
  int64_t beside = 0;           // floats of a sample that the family has beside the above
  int64_t workspace_bytes = 0;  // of all samples that are solved in it at a time
  int64_t loop_bytes = 0;       // memory that the loops have beside the above
  bool solves_at_once = false;  // one launch may make solves of states that no warp holds
  int64_t product_bytes = 0;    // cuBLAS's workspace, where the loop multiplies matrices
  // Saturates instead of overflowing.
  int64_t bytes() const;
};

// Samples with trajectories and `floats_beside` floats more that fit kGroupBytes, at most
// kMaxGroup.
int64_t GroupSize(const SystemShape& shape, int64_t floats_beside);

int64_t NumIntervals(const SystemShape& shape, int64_t shooting_interval);

// The memory of one group of samples on a GPU, and the stream on which everything is launched: the
// space owns it, its loop and its family's recurrence work on it.
struct Workspace {
  Workspace(Device& on, const SpaceSizes& of);
  Workspace(const Workspace&) = delete;
  // Allocates the memory; goes before anything else. Errors: kResourceExhausted.
  absl::Status Allocate();
  template <class T>
  absl::Status Take(DeviceBuffer<T>* buffer, MemoryKind kind, int64_t size) {
    auto made = DeviceBuffer<T>::New(device, kind, size);
    if (made.ok()) *buffer = *std::move(made);
    return made.status();
  }

  // Applies layers, with `inputs` and `outputs` of args and the scratch here.
  void LaunchChain(const DeviceChain& chain, DenseChainArgs args, int32_t num_samples);
  // Computes the answers from the current states, and the final states beside them.
  void LaunchDecode(const DeviceChain& decode, int32_t num_samples);
  // Place for the trajectories of a solve; null if nobody wants them.
  float* Wanted(float* const* callers) const {
    return callers == nullptr ? nullptr : trajectories.data();
  }
  // Copies once the solve is done, as a copy to the caller's memory keeps the host from other work.
  void CopyTrajectories(int32_t num_samples, float* const* callers);

  Device& device;
  const LaunchLimits limits;
  const SpaceSizes sizes;
  const SystemShape& shape;  // of sizes
  const int width;
  int64_t interval = 1, intervals = 0;
  GuessView guess = {};
  DeviceBuffer<std::byte> for_products;  // device memory; outlives the stream, which uses it
  std::unique_ptr<Stream> stream;
  // Mapped memory.
  DeviceBuffer<float> inputs;                                // [G, inputs]
  DeviceBuffer<float> outputs, amplification, final_states;  // [G, output_dim], [G], [G, D]
  DeviceBuffer<float> guesses;                               // [iterative, P, W], the caller's
  DeviceBuffer<int64_t> num_dependent;                       // [1]
  // Device memory.
  DeviceBuffer<float> initial, current;  // [G, W] each
  DeviceBuffer<float> trajectories;      // [G, L + 1, D]
  DeviceBuffer<float> scratch;           // [G, scratch]
  DeviceBuffer<std::byte> block_memory;
};

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_WORKSPACE_H_
