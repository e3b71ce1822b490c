// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/loop/block_launch.cuh"

namespace deeppcr::cuda {
namespace {

using BatchArgs = BlockSequentialArgs<DiffusionView>;
using DiffusionCoarseArgs = CoarseArgs<DiffusionView>;
__global__ void __launch_bounds__(kMaxBlockThreads, 1) BatchKernel(const BatchArgs args) {
  DeviceContext context;
  SolveBatchesByTeams(BlockTeam(context), args);
}
__global__ void __launch_bounds__(kMaxBlockThreads, 1) ClusterBatchKernel(const BatchArgs args) {
#if __CUDA_ARCH__ >= 900  // as ClusterSequentialKernel
  ClusterContext context;
  SolveBatchesByTeams(ClusterTeam(context), args);
#endif
}

static_assert(kHeldWidth / kPanelRows == kMaxBlockWarps, "a warp for every panel");
__global__ void __launch_bounds__(kMaxBlockThreads, 1) HeldSequentialKernel(const BatchArgs args) {
  DeviceContext context;
  SolveWithHeldLayers(BlockTeam(context), args);
}
constexpr int kHalfThreads = kHalfWarps * kWarpSize;
template <int kSteps>
__global__ void __launch_bounds__(kHalfThreads, 1)
    HalfCoarseKernel(const DiffusionCoarseArgs args) {
  DeviceContext context;
  GuessWithHalves<kSteps>(BlockTeam(context), args);
}

__global__ void __launch_bounds__(kMaxBlockThreads, 1)
    CoarseKernel(const DiffusionCoarseArgs args) {
  DeviceContext context;
  GuessCoarsely(BlockTeam(context), args);
}
__global__ void __launch_bounds__(kMaxBlockThreads, 1)
    ClusterCoarseKernel(const DiffusionCoarseArgs args) {
#if __CUDA_ARCH__ >= 900  // as ClusterSequentialKernel
  ClusterContext context;
  GuessCoarsely(ClusterTeam(context), args);
#endif
}

}  // namespace

cudaError_t PrepareDiffusion(int shared_bytes) {
  cudaError_t error = PrepareBlocks<DiffusionView>(shared_bytes);
  if (error == cudaSuccess)
    error = AllowShared(shared_bytes, BatchKernel, CoarseKernel, HeldSequentialKernel,
                        HalfCoarseKernel<2>, HalfCoarseKernel<4>, HalfCoarseKernel<8>);
  if (error == cudaSuccess && HasClusters())
    error = AllowClusters(ClusterCoarseKernel, shared_bytes);
  if (error == cudaSuccess && HasClusters())
    error = AllowClusters(ClusterBatchKernel, shared_bytes);
  return error;
}

cudaError_t LaunchBlocks(const BlockSequentialArgs<DiffusionView>& args, int num_samples,
                         cudaStream_t stream) {
  if (args.team.samples == 1 && HoldsLayers(args.process, args.team.num_blocks, kMaxBlockWarps))
    return LaunchSteps(HeldSequentialKernel, args, num_samples, HeldBytes(args.process), stream);
  if (args.team.samples == 1) return LaunchBlockSequential(args, num_samples, stream);
  return LaunchTeams(BatchKernel, ClusterBatchKernel, args, args.team.num_blocks,
                     args.team.teams(num_samples), StepBytes(args.process, args.team.samples),
                     stream);
}
cudaError_t LaunchBlocks(const PropagationArgs<DiffusionView>& args, int num_samples,
                         cudaStream_t stream) {
  return LaunchPropagation(args, num_samples, stream);
}
cudaError_t LaunchBlocks(const ExpansionArgs<DiffusionView>& args, int num_samples,
                         cudaStream_t stream) {
  return LaunchExpansion(args, num_samples, stream);
}
cudaError_t LaunchBlocks(const DiffusionCoarseArgs& args, int num_samples, cudaStream_t stream) {
  const DenoiserView& d = args.process.denoiser;
  if (FitsRegisters(d))
    return WithHalfSteps(d, [&](auto steps) {
      HalfCoarseKernel<steps.value>
          <<<num_samples, kHalfThreads, CoarseBytes(args.process, args.staged_floats), stream>>>(
              args);
      return cudaGetLastError();
    });
  return LaunchTeams(CoarseKernel, ClusterCoarseKernel, args, args.num_blocks, num_samples,
                     CoarseBytes(args.process, args.staged_floats), stream);
}

}  // namespace deeppcr::cuda
