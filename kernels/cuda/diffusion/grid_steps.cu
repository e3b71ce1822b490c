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

}  // namespace

cudaError_t PrepareGridSteps(int shared_bytes) {
  return AllowShared(shared_bytes, GridStepsKernel);
}

cudaError_t LaunchBlocks(const GridStepsArgs& args, cudaStream_t stream) {
  const GridShape shape = {args.sequential.team.num_blocks, args.resident};
  cudaLaunchAttribute cooperative = {};
  cooperative.id = cudaLaunchAttributeCooperative;
  cooperative.val.cooperative = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(shape.blocks));
  config.blockDim = dim3(kGridWarps * kWarpSize);
  config.dynamicSmemBytes = GridBytes(args.sequential.process, shape);
  config.stream = stream;
  config.attrs = &cooperative;
  config.numAttrs = 1;
  void* arguments[] = {const_cast<GridStepsArgs*>(&args)};
  return cudaLaunchKernelExC(&config, HandleOf(GridStepsKernel), arguments);
}

}  // namespace deeppcr::cuda
