// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_PROGRAM_BACKWARD_SPACE_H_
#define DEEPPCR_KERNELS_CUDA_PROGRAM_BACKWARD_SPACE_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend/backend.h"
#include "kernels/cuda/program/model.h"

namespace deeppcr::cuda {

// Best sizes of a space of this model on a GPU.
BackwardGrouping BackwardGroupingOf(const ProgramModel& model);

// Memory of a space, on the GPU and mapped. Saturates at INT64_MAX.
int64_t BackwardSpaceBytes(const Device& device, const ProgramModel& model,
                           const BackwardLimits& limits);

// The backward pass of recurrences whose step is a program, for models that were uploaded with it.
// A call is a copy of the states to the device, what the samples have for themselves (noise,
// conditions), the outer layers, the way back step by step or by intervals (backward_kernel.h), and
// one wait. `device` and `model` must outlive the space. Errors: kResourceExhausted; kUnimplemented
// for a model that was loaded without its backward pass.
absl::StatusOr<std::unique_ptr<BackwardSpace>> NewBackwardSpace(Device& device,
                                                                const ProgramModel& model,
                                                                const BackwardLimits& limits);

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_PROGRAM_BACKWARD_SPACE_H_
