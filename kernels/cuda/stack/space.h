// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_STACK_SPACE_H_
#define DEEPPCR_KERNELS_CUDA_STACK_SPACE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda/cuda_space.h"
#include "kernels/cuda/stack/warp_stack_model.h"

namespace deeppcr::cuda {

SpaceSizes SizesOf(const LaunchLimits& device, const StackModel& model, const SpaceLimits& limits);
SpaceSizes SizesOf(const LaunchLimits& device, const PanelStackModel& model,
                   const SpaceLimits& limits);

// `device` and `model` must outlive the space. Errors: kResourceExhausted.
absl::StatusOr<std::unique_ptr<SolveSpace>> NewSpace(Device& device, const StackModel& model,
                                                     const SpaceSizes& sizes);
absl::StatusOr<std::unique_ptr<SolveSpace>> NewSpace(Device& device, const PanelStackModel& model,
                                                     const SpaceSizes& sizes);

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_STACK_SPACE_H_
