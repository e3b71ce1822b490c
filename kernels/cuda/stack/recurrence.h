// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_STACK_RECURRENCE_H_
#define DEEPPCR_KERNELS_CUDA_STACK_RECURRENCE_H_

#include <memory>

#include "kernels/cuda/recurrence.h"
#include "kernels/cuda/stack/warp_stack_model.h"

namespace deeppcr::cuda {

SpaceSizes SizesOf(const LaunchLimits& device, const StackModel& model, const SpaceLimits& limits);
SpaceSizes SizesOf(const LaunchLimits& device, const PanelStackModel& model,
                   const SpaceLimits& limits);

bool SolvesAtOnce(const LaunchLimits& device, const PanelStackModel& model,
                  int64_t shooting_interval);

// Recurrences of dense stacks: by warps, whose whole solve is one launch, and by blocks. Workspace
// and model outlive the result.
std::unique_ptr<Recurrence> NewRecurrence(Workspace& work, const StackModel& model);
std::unique_ptr<Recurrence> NewRecurrence(Workspace& work, const PanelStackModel& model);

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_STACK_RECURRENCE_H_
