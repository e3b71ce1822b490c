// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/diffusion/grid_steps.h"
#include "kernels/cuda/loop/block_launch.cuh"

namespace deeppcr::cuda {
namespace {

__global__ void __launch_bounds__(kGridWarps* kWarpSize, 1)
    GridStepsKernel(const GridStepsArgs args) {
  GridContext context;
  SolveOverGrid(context, args);
}

// What asks for as much of a multiprocessor as the steps may.
__global__ void __launch_bounds__(kGridWarps* kWarpSize, 1) GridProbeKernel(int) {}

// The launch of a kernel of one argument.
template <class Args>
cudaError_t LaunchCooperatively(void (*kernel)(Args), const Args& args, int blocks,
                                size_t shared_bytes, cudaStream_t stream) {
  cudaLaunchAttribute cooperative = {};
  cooperative.id = cudaLaunchAttributeCooperative;
  cooperative.val.cooperative = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(kGridWarps * kWarpSize);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &cooperative;
  config.numAttrs = 1;
  void* arguments[] = {const_cast<Args*>(&args)};
  return cudaLaunchKernelExC(&config, HandleOf(kernel), arguments);
}

}  // namespace

cudaError_t PrepareGridSteps(int shared_bytes) {
  return AllowShared(shared_bytes, GridStepsKernel, GridProbeKernel);
}

cudaError_t CountGridBlocks(int multiprocessors, size_t shared_bytes, int* blocks) {
  *blocks = 0;
  const cudaError_t error =
      LaunchCooperatively(GridProbeKernel, 0, multiprocessors, shared_bytes, nullptr);
  if (error == cudaErrorCooperativeLaunchTooLarge || error == cudaErrorNotSupported) {
    cudaGetLastError();  // clears an error that says nothing about the device
    return cudaSuccess;
  }
  if (error == cudaSuccess) *blocks = multiprocessors;
  return error == cudaSuccess ? cudaStreamSynchronize(nullptr) : error;
}

cudaError_t LaunchBlocks(const GridStepsArgs& args, cudaStream_t stream) {
  const GridShape shape = {args.sequential.team.num_blocks, args.resident};
  return LaunchCooperatively(GridStepsKernel, args, shape.blocks,
                             GridBytes(args.sequential.process, shape), stream);
}

}  // namespace deeppcr::cuda
