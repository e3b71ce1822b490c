// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_LOOP_BLOCK_LAUNCH_CUH_
#define DEEPPCR_KERNELS_CUDA_LOOP_BLOCK_LAUNCH_CUH_

// Launches of block_recurrence.h, for any Process.

#include "kernels/cuda/loop/block_shape.h"
#include "kernels/cuda/loop/grid_args.h"
#include "kernels/cuda/runtime/cluster_launch.h"
#include "kernels/cuda/runtime/device_context.h"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/cuda/tuning.h"

namespace deeppcr::cuda {

inline constexpr int kMaxBlockThreads = kMaxBlockWarps * kWarpSize;

template <class Process>
__global__ void __launch_bounds__(kMaxBlockThreads, 1)
    BlockSequentialKernel(const BlockSequentialArgs<Process> args) {
  DeviceContext context;
  SolveByTeams(BlockTeam(context), args);
}
template <class Process>
__global__ void __launch_bounds__(kMaxBlockThreads, 1)
    ClusterSequentialKernel(const BlockSequentialArgs<Process> args) {
#if __CUDA_ARCH__ >= 900  // first with clusters; on older GPUs a team is one block
  ClusterContext context;
  SolveByTeams(ClusterTeam(context), args);
#endif
}
template <int S, class Process>
__global__ void __launch_bounds__(kMaxBlockThreads, 1)
    PropagationKernel(const PropagationArgs<Process> args) {
  DeviceContext context;
  PropagateIntervals<S>(context, args);
}
template <class Process>
__global__ void __launch_bounds__(kMaxBlockThreads, 1)
    ExpansionKernel(const ExpansionArgs<Process> args) {
  DeviceContext context;
  ExpandIntervals(context, args);
}

// Handle of a kernel of one argument.
template <class Args>
const void* HandleOf(void (*kernel)(Args)) {
  return reinterpret_cast<const void*>(kernel);
}

// Kernels, of one argument, by their handles.
template <class Args>
cudaError_t LaunchSteps(const void* kernel, const Args& args, int64_t blocks, size_t shared_bytes,
                        cudaStream_t stream) {
  const int threads = BlockWarps(args.process, 1, kMaxBlockWarps) * kWarpSize;
  void* arguments[] = {const_cast<Args*>(&args)};
  return cudaLaunchKernel(kernel, dim3(static_cast<unsigned>(blocks)), dim3(threads), arguments,
                          shared_bytes, stream);
}

// Launches `teams` teams: by the kernel `block` if a team is one block, else by `cluster`.
template <class Args>
cudaError_t LaunchTeams(const void* block, const void* cluster, const Args& args, int num_blocks,
                        int teams, size_t shared_bytes, cudaStream_t stream) {
  if (num_blocks == 1) return LaunchSteps(block, args, teams, shared_bytes, stream);
  const int warps = BlockWarps(args.process, num_blocks, kMaxBlockWarps);
  const ClusterLauncher launcher({0, teams, num_blocks, warps}, shared_bytes, stream);
  void* arguments[] = {const_cast<Args*>(&args)};
  return cudaLaunchKernelExC(&launcher.config, cluster, arguments);
}

// Launches blocks that may wait for one another.
template <class Args>
cudaError_t LaunchCooperatively(const void* kernel, const Args& args, int blocks, int threads,
                                size_t shared_bytes, cudaStream_t stream) {
  cudaLaunchAttribute cooperative = {};
  cooperative.id = cudaLaunchAttributeCooperative;
  cooperative.val.cooperative = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &cooperative;
  config.numAttrs = 1;
  void* arguments[] = {const_cast<Args*>(&args)};
  return cudaLaunchKernelExC(&config, kernel, arguments);
}
template <class Process>
cudaError_t LaunchGrid(const void* kernel, const GridStepsArgs<Process>& args,
                       cudaStream_t stream) {
  return LaunchCooperatively(kernel, args, args.shape().blocks, kGridWarps * kWarpSize,
                             GridBytes(args.sequential.process, args.shape()), stream);
}

template <class Args>
cudaError_t LaunchSteps(void (*kernel)(Args), const Args& args, int64_t blocks, size_t shared_bytes,
                        cudaStream_t stream) {
  return LaunchSteps(HandleOf(kernel), args, blocks, shared_bytes, stream);
}
template <class Args>
cudaError_t LaunchTeams(void (*block)(Args), void (*cluster)(Args), const Args& args,
                        int num_blocks, int teams, size_t shared_bytes, cudaStream_t stream) {
  return LaunchTeams(HandleOf(block), HandleOf(cluster), args, num_blocks, teams, shared_bytes,
                     stream);
}

template <class... Args>
cudaError_t AllowShared(int shared_bytes, void (*... kernels)(Args)) {
  cudaError_t error = cudaSuccess;
  const auto allow = [&](auto kernel) {
    if (error == cudaSuccess)
      error =
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  };
  (allow(kernels), ...);
  return error;
}

template <class Process>
cudaError_t PrepareBlocks(int shared_bytes) {
  cudaError_t error = cudaSuccess;
  if (HasClusters()) error = AllowClusters(ClusterSequentialKernel<Process>, shared_bytes);
  if (error != cudaSuccess) return error;
  return AllowShared(shared_bytes, BlockSequentialKernel<Process>, ExpansionKernel<Process>,
                     PropagationKernel<13, Process>, PropagationKernel<21, Process>,
                     PropagationKernel<kMostStepRows, Process>);
}

template <class Process>
cudaError_t LaunchBlockSequential(const BlockSequentialArgs<Process>& args, int num_samples,
                                  cudaStream_t stream) {
  return LaunchTeams(BlockSequentialKernel<Process>, ClusterSequentialKernel<Process>, args,
                     args.team.num_blocks, num_samples, StepBytes(args.process, 1), stream);
}
template <class Process>
cudaError_t LaunchPropagation(const PropagationArgs<Process>& args, int num_samples,
                              cudaStream_t stream) {
  return WithStepRows(args.rows, [&](auto rows) {
    return LaunchSteps(PropagationKernel<rows.value, Process>, args, BlocksOf(args, num_samples),
                       StepBytes(args.process, args.rows), stream);
  });
}
template <class Process>
cudaError_t LaunchExpansion(const ExpansionArgs<Process>& args, int num_samples,
                            cudaStream_t stream) {
  return LaunchSteps(ExpansionKernel<Process>, args, BlocksOf(args, num_samples),
                     StepBytes(args.process, 1), stream);
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_LOOP_BLOCK_LAUNCH_CUH_
