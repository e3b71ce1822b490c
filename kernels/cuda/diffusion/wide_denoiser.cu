// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/loop/block_launch.cuh"

namespace deeppcr::cuda {
namespace {

__global__ void __launch_bounds__(kMaxBlockThreads, 1)
    IntervalStepKernel(const IntervalStepArgs args) {
  DeviceContext context;
  StepIntervals(BlockTeam(context), args);
}
__global__ void __launch_bounds__(kMaxBlockThreads, 1)
    ClusterIntervalStepKernel(const IntervalStepArgs args) {
#if __CUDA_ARCH__ >= 900  // as ClusterSequentialKernel
  ClusterContext context;
  StepIntervals(ClusterTeam(context), args);
#endif
}
__global__ void __launch_bounds__(kTangentWarps* kWarpSize, 2)
    TangentKernel(const TangentArgs args) {
  DeviceContext context;
  StepTangents(context, args);
}

}  // namespace

cudaError_t PrepareWideDenoiser(int shared_bytes) {
  const cudaError_t error = AllowShared(shared_bytes, IntervalStepKernel);
  if (error != cudaSuccess || !HasClusters()) return error;
  return AllowClusters(ClusterIntervalStepKernel, shared_bytes);
}

cudaError_t LaunchBlocks(const IntervalStepArgs& args, cudaStream_t stream) {
  return LaunchTeams(IntervalStepKernel, ClusterIntervalStepKernel, args, args.team.num_blocks,
                     args.team.teams(args.range.count), StepBytes(args.process, args.team.samples),
                     stream);
}
cudaError_t LaunchTangents(const TangentArgs& args, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(BlocksOf(args));
  TangentKernel<<<blocks, kTangentWarps * kWarpSize, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace deeppcr::cuda
