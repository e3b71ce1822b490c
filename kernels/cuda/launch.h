// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_LAUNCH_H_
#define DEEPPCR_KERNELS_CUDA_LAUNCH_H_

// Launches of the kernels. Plain C++ on both sides of nvcc: no abseil here.

#include <cuda_runtime_api.h>

#include "kernels/cuda/newton_kernel.h"
#include "kernels/cuda/sequential_kernel.h"

namespace deeppcr::cuda {

// States padded to `width` (8, 16 or 32). Asynchronous; errors of the launch itself, and
// cudaErrorInvalidValue for another width.
cudaError_t LaunchSequential(const SequentialArgs& args, int width, cudaStream_t stream);

// One cluster of args.tree.num_blocks blocks of `num_warps` warps per sample. Asynchronous; errors
// of the launch itself: cudaErrorInvalidValue for another width or more than 12 warps, 8 for W =
// 32, cudaErrorNotSupported on devices without clusters, and what the driver says where the shared
// memory is not enough.
cudaError_t LaunchNewton(const NewtonArgs& args, int width, int num_samples, int num_warps,
                         cudaStream_t stream);

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_LAUNCH_H_
