// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/loop/block_launch.cuh"
#include "kernels/cuda/stack/resident_stack_solve.h"

namespace deeppcr::cuda {
namespace {

constexpr int kResidentThreads = kResidentWarps * kWarpSize;

__global__ void __launch_bounds__(kResidentThreads, 1)
    ResidentStackKernel(const __grid_constant__ ResidentStackArgs args) {
  GridContext context;
  SolveResidentStack<kResidentStackWidth>(context, args);
}

}  // namespace

cudaError_t PrepareResidentStack(int shared_bytes) {
  return AllowShared(shared_bytes, ResidentStackKernel);
}

cudaError_t LaunchBlocks(const ResidentStackArgs& args, cudaStream_t stream) {
  return LaunchCooperatively(HandleOf(ResidentStackKernel), args, args.num_blocks(),
                             kResidentThreads, ResidentStackBytes(args), stream);
}

}  // namespace deeppcr::cuda
