// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_STACK_PARAMETER_ADDER_H_
#define DEEPPCR_KERNELS_CUDA_STACK_PARAMETER_ADDER_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend/backend.h"
#include "kernels/cuda/runtime/device.h"
#include "kernels/cuda/runtime/device_buffer.h"

namespace deeppcr::cuda {

// Adds what samples, whose states and deltas are in the host's memory, give to the gradients of a
// dense stack's parameters: System::AddParameterGradients. A few layers and samples at a time are
// gathered in mapped memory, copied, and added up by one launch, in the order of the samples.
// Thread-safe: one call computes at a time, and others wait.
class ParameterAdder {
 public:
  // `device` must outlive the result. Errors: kResourceExhausted.
  static absl::StatusOr<std::unique_ptr<ParameterAdder>> New(Device& device,
                                                             const SystemShape& shape);
  int64_t memory_bytes() const;

  // Errors: kUnavailable if the device has failed.
  absl::Status Add(std::span<const ParameterSample> samples, int64_t begin, int64_t end,
                   const ParameterSums& sums);

 private:
  // Layers of one shape, with their place in the vectors of a sample and in the sums.
  struct Layers {
    int64_t count = 1, rows = 0, cols = 0;
    absl::FunctionRef<const float*(const ParameterSample&)> inputs;  // [count, cols]
    absl::FunctionRef<const float*(const ParameterSample&)> deltas;  // [count, rows]
    float* weights = nullptr;                                        // [count, rows, cols], or null
    float* biases = nullptr;                                         // [count, rows], or null
  };

  ParameterAdder(Device& device, const SystemShape& shape)
      : device_(device),
        shape_(shape),
        inputs_dim_(shape.has_input_layer ? shape.input_dim : 0),
        outputs_dim_(shape.has_output_layer ? shape.output_dim : 0) {}
  absl::Status Allocate();
  void AddLayers(std::span<const ParameterSample> samples, const Layers& layers);
  // Adds a number of samples that the buffers have room for to the sums on the device.
  void AddSamples(std::span<const ParameterSample> samples, const Layers& layers);

  Device& device_;
  const SystemShape shape_;
  const int64_t inputs_dim_, outputs_dim_;  // of the layers around the recurrence; 0: none
  std::mutex mutex_;                        // guards all that follows
  std::unique_ptr<Stream> stream_;
  DeviceBuffer<float> gathered_inputs_, gathered_deltas_;  // mapped
  DeviceBuffer<float> inputs_, deltas_, weights_, biases_;
};

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_STACK_PARAMETER_ADDER_H_
