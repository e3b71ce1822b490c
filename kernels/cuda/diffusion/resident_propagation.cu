// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/diffusion/resident_propagation.h"
#include "kernels/cuda/loop/block_launch.cuh"

namespace deeppcr::cuda {
namespace {

constexpr int kResidentThreads = kResidentWarps * kWarpSize;

template <int kStateTiles, int kHiddenTiles>
__global__ void __launch_bounds__(kResidentThreads, 1) ResidentKernel(const ResidentArgs args) {
  DeviceContext context;
  PropagateResident<kStateTiles, kHiddenTiles>(context, args);
}

}  // namespace

cudaError_t PrepareResident(int shared_bytes) {
  return AllowShared(shared_bytes, ResidentKernel<2, 4>, ResidentKernel<2, 8>,
                     ResidentKernel<2, 16>, ResidentKernel<4, 4>, ResidentKernel<4, 8>,
                     ResidentKernel<4, 16>);
}

cudaError_t LaunchBlocks(const ResidentArgs& args, int num_members, cudaStream_t stream) {
  const DiffusionView& process = args.propagation.process;
  const auto blocks = static_cast<unsigned>(BlocksOf(args, num_members));
  const size_t bytes = ResidentBytes(process, args.together);
  return WithResidentTiles(process.denoiser, [&](auto state, auto hidden) {
    ResidentKernel<state.value, hidden.value><<<blocks, kResidentThreads, bytes, stream>>>(args);
    return cudaGetLastError();
  });
}

}  // namespace deeppcr::cuda
