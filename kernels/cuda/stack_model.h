// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_STACK_MODEL_H_
#define DEEPPCR_KERNELS_CUDA_STACK_MODEL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend/backend.h"
#include "kernels/backend/system_spec.h"
#include "kernels/cuda/dense_chain.h"
#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/stack_step.h"

namespace deeppcr::cuda {

// A dense stack in a device's memory, padded to the width of a kernel.
class StackModel {
 public:
  // `device` must outlive the result. Errors: kUnimplemented where D is larger than kMaxStateDim,
  // with what can run the model instead; else as Backend::NewSystem.
  static absl::StatusOr<StackModel> Upload(Device& device, const DenseStackSpec& spec,
                                           const PackingLimits& limits);
  absl::Status SetGuess(Device& device, const AffineGuess& guess);

  const SystemShape& shape() const { return shape_; }
  int width() const { return width_; }
  int64_t memory_bytes() const;
  const StackView& view() const { return view_; }
  const DeviceChain& encode() const { return encode_; }
  const DeviceChain& decode() const { return decode_; }
  // The fitted map; its pointer is null if there is none.
  const GuessView& guess() const { return guess_; }

 private:
  absl::Status UploadLayers(Device& device, const DenseStackSpec& spec);

  SystemShape shape_;
  int width_ = 0;
  StackView view_ = {};
  GuessView guess_ = {};
  DeviceChain encode_, decode_;
  DeviceBuffer<float> weights_, biases_, map_;
};

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_STACK_MODEL_H_
