// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/diffusion/grid_steps.h"
#include "kernels/cuda/loop/block_launch.cuh"

namespace deeppcr::cuda {
namespace {

__global__ void __launch_bounds__(kGridWarps* kWarpSize, 1)
    GridStepsKernel(const GridStepsArgs<DiffusionView> args) {
  GridContext context;
  SolveOverGrid(context, args);
}

// What asks for as much of a multiprocessor as the steps may.
__global__ void __launch_bounds__(kGridWarps* kWarpSize, 1) GridProbeKernel(int) {}

}  // namespace

cudaError_t PrepareGridSteps(int shared_bytes) {
  return AllowShared(shared_bytes, GridStepsKernel, GridProbeKernel);
}

cudaError_t CountGridBlocks(int multiprocessors, size_t shared_bytes, int* blocks) {
  *blocks = 0;
  const cudaError_t error = LaunchCooperatively(HandleOf(GridProbeKernel), 0, multiprocessors,
                                                kGridWarps * kWarpSize, shared_bytes, nullptr);
  if (error == cudaErrorCooperativeLaunchTooLarge || error == cudaErrorNotSupported) {
    cudaGetLastError();  // clears an error that says nothing about the device
    return cudaSuccess;
  }
  if (error == cudaSuccess) *blocks = multiprocessors;
  return error == cudaSuccess ? cudaStreamSynchronize(nullptr) : error;
}

cudaError_t LaunchBlocks(const GridStepsArgs<DiffusionView>& args, cudaStream_t stream) {
  return LaunchGrid(HandleOf(GridStepsKernel), args, stream);
}

}  // namespace deeppcr::cuda
