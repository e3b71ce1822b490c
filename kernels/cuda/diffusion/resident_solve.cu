// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/diffusion/resident_solve.h"
#include "kernels/cuda/loop/block_launch.cuh"

namespace deeppcr::cuda {
namespace {

constexpr int kResidentThreads = kResidentWarps * kWarpSize;

template <int W, int kHiddenTiles>
__global__ void __launch_bounds__(kResidentThreads, 1)
    ResidentSolveKernel(const __grid_constant__ ResidentSolveArgs args) {
  GridContext context;
  SolveResident<W, kHiddenTiles>(context, args);
}

}  // namespace

cudaError_t PrepareResidentSolve(int shared_bytes) {
  return AllowShared(shared_bytes, ResidentSolveKernel<8, 4>, ResidentSolveKernel<8, 8>,
                     ResidentSolveKernel<8, 16>, ResidentSolveKernel<16, 4>,
                     ResidentSolveKernel<16, 8>, ResidentSolveKernel<16, 16>);
}

cudaError_t LaunchBlocks(const ResidentSolveArgs& args, cudaStream_t stream) {
  const DiffusionView& process = args.resident.propagation.process;
  const size_t bytes = ResidentSolveBytes(process, args.solve.newton.tree);
  return WithResidentSolve(process, [&](auto width, auto hidden) {
    return LaunchCooperatively(HandleOf(ResidentSolveKernel<width.value, hidden.value>), args,
                               args.num_blocks(), kResidentThreads, bytes, stream);
  });
}

}  // namespace deeppcr::cuda
