// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_CUDA_SPACE_H_
#define DEEPPCR_KERNELS_CUDA_CUDA_SPACE_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend/backend.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/stack_model.h"

namespace deeppcr::cuda {

// Samples that a space of this model takes together: as many as have trajectories in 64 MiB, at
// most 256.
int32_t GroupSize(const StackModel& model);

// Memory of a space, the device's and the mapped host's. INT64_MAX for an iterative one on a device
// without clusters.
int64_t CudaSpaceBytes(const LaunchLimits& device, const StackModel& model,
                       const SpaceLimits& limits);

// `device` and `model` must outlive the space. Errors: kResourceExhausted.
absl::StatusOr<std::unique_ptr<SolveSpace>> NewCudaSpace(Device& device, const StackModel& model,
                                                         const SpaceLimits& limits);

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_CUDA_SPACE_H_
