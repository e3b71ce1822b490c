// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_STACK_STACK_MODEL_H_
#define DEEPPCR_KERNELS_CUDA_STACK_STACK_MODEL_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "kernels/backend/backend.h"
#include "kernels/cuda/loop/guess.h"
#include "kernels/cuda/math/dense_chain.h"
#include "kernels/cuda/runtime/device_buffer.h"
#include "kernels/problem/spec.h"

namespace deeppcr::cuda {

// Width of the widest states that a block of threads takes.
inline constexpr int kMaxStateDim = 256;
// Errors: kUnimplemented, naming an alternative that can run the model.
absl::Status CheckStateDim(int64_t state_dim);

// Rows of `dim` floats as rows of `width`, zeros behind.
std::vector<float> Padded(std::span<const float> rows, int64_t dim, int64_t width);

// Data of all dense stacks in a device's memory, whichever kernels take their steps.
class DenseStackModel {
 public:
  absl::Status SetGuess(Device& device, const AffineGuess& guess);

  const SystemShape& shape() const { return shape_; }
  int width() const { return width_; }
  const DeviceChain& encode() const { return encode_; }
  const DeviceChain& decode() const { return decode_; }
  // The fitted map; its pointer is null if there is no map.
  const GuessView& guess() const { return guess_; }

 protected:
  // Checks the sizes, and uploads the layers around the recurrence. `device` must outlive the
  // model.
  absl::Status UploadChains(Device& device, const DenseStackSpec& spec, int width,
                            const PackingLimits& limits);
  int64_t surrounding_bytes() const {
    return map_.bytes() + encode_.memory_bytes() + decode_.memory_bytes();
  }

 private:
  SystemShape shape_;
  int width_ = 0;
  GuessView guess_ = {};
  DeviceChain encode_, decode_;
  DeviceBuffer<float> map_;
};

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_STACK_STACK_MODEL_H_
