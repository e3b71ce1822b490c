// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_STACK_BACKWARD_SPACE_H_
#define DEEPPCR_KERNELS_CUDA_STACK_BACKWARD_SPACE_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend/backend.h"
#include "kernels/cuda/stack/warp_stack_model.h"

namespace deeppcr::cuda {

// Best sizes of a space of this model on a GPU.
BackwardGrouping BackwardGroupingOf(const StackModel& model);

// Memory of a space, on the GPU and mapped. Saturates at INT64_MAX.
int64_t BackwardSpaceBytes(const Device& device, const StackModel& model,
                           const BackwardLimits& limits);

// The backward pass of dense stacks of D <= kMaxWarpStateDim on GPUs with clusters. A call is a
// copy of the states to the device, three launches (the output layer, all steps or the scan, the
// input layer), and one wait. `device` and `model` must outlive the space. Errors:
// kResourceExhausted.
absl::StatusOr<std::unique_ptr<BackwardSpace>> NewBackwardSpace(Device& device,
                                                                const StackModel& model,
                                                                const BackwardLimits& limits);

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_STACK_BACKWARD_SPACE_H_
