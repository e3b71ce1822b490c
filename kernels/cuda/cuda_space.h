// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_CUDA_SPACE_H_
#define DEEPPCR_KERNELS_CUDA_CUDA_SPACE_H_

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend/backend.h"
#include "kernels/cuda/recurrence.h"
#include "kernels/cuda/workspace.h"

namespace deeppcr::cuda {

// A space on a GPU: a workspace, the recurrence of a family that is made for it, and a loop. The
// loop runs on the device (loop/device_loop.h) where ByWarps says so, else on the host
// (loop/pass_loop.h). `device` and the model must outlive the space. Errors: kResourceExhausted;
// kUnimplemented without cuBLAS, where products are needed.
using MakeRecurrence = std::function<std::unique_ptr<Recurrence>(Workspace& work)>;
absl::StatusOr<std::unique_ptr<SolveSpace>> NewCudaSpace(Device& device, const SpaceSizes& sizes,
                                                         const MakeRecurrence& make);

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_CUDA_SPACE_H_
