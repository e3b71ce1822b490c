// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_DIFFUSION_WIDE_PROPAGATION_H_
#define DEEPPCR_KERNELS_CUDA_DIFFUSION_WIDE_PROPAGATION_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/diffusion/model.h"
#include "kernels/cuda/runtime/device_buffer.h"
#include "kernels/iteration/pass.h"

namespace deeppcr::cuda {

// Propagation of the intervals of a wide denoiser (DiffusionModel::is_wide): a step's states in one
// launch, which reads the weights once for many intervals (interval_step_kernel.h); then their
// tangents, layer by layer, as products of large matrices with small launches in between
// (tangent_kernel.h). Goes sample by sample and in parts of a fixed number of intervals: the bits
// do not depend on the batch, and the data of a part stays in the L2 cache.
//
// One thread at a time, on one stream.
class WidePropagation {
 public:
  // Bytes of the device's memory, for samples with up to `intervals` intervals.
  static int64_t Bytes(const DiffusionModel& model, int64_t intervals);
  // Goes before anything else; the model must outlive this object. Errors: kResourceExhausted.
  absl::Status Allocate(Device& device, const DiffusionModel& model, int64_t intervals);

  // Propagates all intervals of one sample of `process`.
  void Launch(Stream& stream, const DiffusionView& process, const IntervalsView& intervals,
              int64_t sample, IterationKind kind) const;

 private:
  class Part;

  const DiffusionModel* model_ = nullptr;
  LaunchLimits limits_;
  DeviceBuffer<float> tape_, states_, hidden_, inner_, products_;
};

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_DIFFUSION_WIDE_PROPAGATION_H_
