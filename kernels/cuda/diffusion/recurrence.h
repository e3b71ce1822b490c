// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_DIFFUSION_RECURRENCE_H_
#define DEEPPCR_KERNELS_CUDA_DIFFUSION_RECURRENCE_H_

#include <memory>

#include "kernels/cuda/diffusion/model.h"
#include "kernels/cuda/recurrence.h"

namespace deeppcr::cuda {

SpaceSizes SizesOf(const LaunchLimits& device, const DiffusionModel& model,
                   const SpaceLimits& limits);

bool SolvesAtOnce(const LaunchLimits& device, const DiffusionModel& model,
                  int64_t shooting_interval);

// The reverse process of a diffusion model. Workspace and model outlive the result.
std::unique_ptr<Recurrence> NewRecurrence(Workspace& work, const DiffusionModel& model);

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_DIFFUSION_RECURRENCE_H_
