// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_MATH_DENSE_BACK_H_
#define DEEPPCR_KERNELS_CUDA_MATH_DENSE_BACK_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kernels/cuda/math/dense_chain.h"
#include "kernels/cuda/runtime/device.h"
#include "kernels/cuda/runtime/device_buffer.h"

namespace deeppcr::cuda {

// The way back through dense layers before or after the recurrence. Launches on a stream and waits
// for nothing.
class DenseBack {
 public:
  // `chain` must outlive this object.
  explicit DenseBack(const DeviceChain& chain) : chain_(chain) {}

  // Memory for n samples with m cotangents each.
  static int64_t Floats(const DeviceChain& chain, const LaunchLimits& limits, int64_t samples,
                        int64_t columns);
  // Errors: kResourceExhausted.
  absl::Status Allocate(Device& device, int64_t samples, int64_t columns);

  // Pointers are to memory of the device, or mapped.
  struct Vectors {
    const float* inputs;  // of the first layer [n, input_stride]
    int64_t input_stride;
    const float* of_outputs;  // cotangents [n, m, output_dim]
    int64_t of_outputs_stride;
    const float* beside;  // added to the cotangents of the inputs [n, m, beside_dim], or null
    int32_t beside_dim;   // may be more than input_dim: of what no layer reads
    float* of_inputs;     // [n, m, of_inputs_stride], zero beyond input_dim and beside_dim
    int64_t of_inputs_stride;
  };
  void Launch(Stream& stream, int32_t num_samples, int32_t columns, const Vectors& vectors) const;
  // The cotangents of the last layer's pre-activations [n, m, rows], in the device's memory; null
  // where there is no layer.
  const float* deltas() const { return last_deltas_.data(); }

 private:
  const DeviceChain& chain_;
  // Between two layers: the values [n, cols], and their cotangents [n, m, cols].
  std::vector<DeviceBuffer<float>> values_, cotangents_;
  std::vector<DeviceBuffer<float>> deltas_;  // by layer but the last: [n, m, rows]
  DeviceBuffer<float> last_deltas_;
  DeviceBuffer<float> scratch_;  // [n, ScratchFloats]
};

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_MATH_DENSE_BACK_H_
