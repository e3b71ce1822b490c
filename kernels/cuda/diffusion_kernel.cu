// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/block_launch.cuh"

namespace deeppcr::cuda {
namespace {

__global__ void __launch_bounds__(kMaxBlockThreads, 1) CoarseKernel(const CoarseArgs args) {
  DeviceContext context;
  GuessCoarsely(BlockTeam(context), args);
}
__global__ void __launch_bounds__(kMaxBlockThreads, 1) ClusterCoarseKernel(const CoarseArgs args) {
#if __CUDA_ARCH__ >= 900  // as ClusterSequentialKernel
  ClusterContext context;
  GuessCoarsely(ClusterTeam(context), args);
#endif
}

}  // namespace

cudaError_t PrepareDiffusion(int shared_bytes) {
  cudaError_t error = PrepareBlocks<DiffusionView>(shared_bytes);
  if (error == cudaSuccess) error = AllowShared(shared_bytes, CoarseKernel);
  if (error == cudaSuccess && HasClusters())
    error = AllowClusters(ClusterCoarseKernel, shared_bytes);
  return error;
}

cudaError_t LaunchBlocks(const BlockSequentialArgs<DiffusionView>& args, int num_samples,
                         cudaStream_t stream) {
  return LaunchBlockSequential(args, num_samples, stream);
}
cudaError_t LaunchBlocks(const PropagationArgs<DiffusionView>& args, int num_samples,
                         cudaStream_t stream) {
  return LaunchPropagation(args, num_samples, stream);
}
cudaError_t LaunchBlocks(const ExpansionArgs<DiffusionView>& args, int num_samples,
                         cudaStream_t stream) {
  return LaunchExpansion(args, num_samples, stream);
}
cudaError_t LaunchBlocks(const CoarseArgs& args, int num_samples, cudaStream_t stream) {
  return LaunchTeams(CoarseKernel, ClusterCoarseKernel, args, num_samples,
                     CoarseBytes(args.process), stream);
}

}  // namespace deeppcr::cuda
