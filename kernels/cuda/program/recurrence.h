// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_PROGRAM_RECURRENCE_H_
#define DEEPPCR_KERNELS_CUDA_PROGRAM_RECURRENCE_H_

#include <memory>

#include "kernels/cuda/program/model.h"
#include "kernels/cuda/recurrence.h"

namespace deeppcr::cuda {

SpaceSizes SizesOf(const LaunchLimits& device, const ProgramModel& model,
                   const SpaceLimits& limits);

// The steps of a program. Workspace and model outlive the result.
std::unique_ptr<BlockRecurrence<ProgramView>> NewRecurrence(Workspace& work,
                                                            const ProgramModel& model);
// The same, of which all blocks of the GPU make none.
std::unique_ptr<BlockRecurrence<ProgramView>> NewRecurrenceOfBlocks(Workspace& work,
                                                                    const ProgramModel& model);

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_PROGRAM_RECURRENCE_H_
