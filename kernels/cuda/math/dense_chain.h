// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_MATH_DENSE_CHAIN_H_
#define DEEPPCR_KERNELS_CUDA_MATH_DENSE_CHAIN_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cuda/runtime/device_buffer.h"
#include "kernels/problem/spec.h"

namespace deeppcr::cuda {

// Dense layers, one after the other, in a device's memory. Immutable.
class DeviceChain {
 public:
  // Layers with rows == 0 are left out; there may be none. `device` must outlive the result.
  static absl::StatusOr<DeviceChain> Upload(Device& device, int64_t input_dim,
                                            std::span<const DenseSpec> layers);

  int64_t memory_bytes() const;
  int64_t output_dim() const { return args_.output_dim; }
  // Floats of scratch per sample that a block's shared memory has no room for.
  int64_t ScratchFloats(const LaunchLimits& limits) const;
  // The layer of a chain of one; the identity, of no rows, where there is none.
  DenseView OnlyLayer() const {
    return views_.empty() ? DenseView{.cols = args_.input_dim} : views_.front();
  }
  // The layers, in order; their pointers are to device memory.
  std::span<const DenseView> views() const { return views_; }
  // Arguments of a launch, without inputs and outputs.
  const DenseChainArgs& args() const { return args_; }

 private:
  absl::Status Add(Device& device, const DenseSpec& layer);

  std::vector<DenseView> views_;
  std::vector<DeviceBuffer<float>> weights_, biases_;
  DeviceBuffer<DenseView> layers_;
  DenseChainArgs args_ = {};
};

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_MATH_DENSE_CHAIN_H_
