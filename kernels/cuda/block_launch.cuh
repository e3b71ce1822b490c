// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_BLOCK_LAUNCH_CUH_
#define DEEPPCR_KERNELS_CUDA_BLOCK_LAUNCH_CUH_

// Launches of block_recurrence.h, for any Process.

#include "kernels/cuda/block_shape.h"
#include "kernels/cuda/device_context.h"
#include "kernels/cuda/launch.h"

namespace deeppcr::cuda {

inline constexpr int kMaxBlockThreads = kMaxBlockWarps * kWarpSize;

template <class Process>
__global__ void __launch_bounds__(kMaxBlockThreads, 1)
    BlockSequentialKernel(const BlockSequentialArgs<Process> args) {
  DeviceContext context;
  SolveByBlocks(context, args);
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

template <class Args>
cudaError_t LaunchSteps(void (*kernel)(Args), const Args& args, int64_t blocks, size_t shared_bytes,
                        cudaStream_t stream) {
  const int threads = BlockWarps(args.process, kMaxBlockWarps) * kWarpSize;
  kernel<<<static_cast<unsigned>(blocks), threads, shared_bytes, stream>>>(args);
  return cudaGetLastError();
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

// The rows of a step that kernels are made for: with columns of 8, 16, or more.
inline constexpr int kFewRows = 13, kSomeRows = 21;

template <class Process>
cudaError_t PrepareBlocks(int shared_bytes) {
  return AllowShared(shared_bytes, BlockSequentialKernel<Process>, ExpansionKernel<Process>,
                     PropagationKernel<kFewRows, Process>, PropagationKernel<kSomeRows, Process>,
                     PropagationKernel<kMostStepRows, Process>);
}

template <class Process>
cudaError_t LaunchBlockSequential(const BlockSequentialArgs<Process>& args, int num_samples,
                                  cudaStream_t stream) {
  return LaunchSteps(BlockSequentialKernel<Process>, args, num_samples, StepBytes(args.process, 1),
                     stream);
}
template <class Process>
cudaError_t LaunchPropagation(const PropagationArgs<Process>& args, int num_samples,
                              cudaStream_t stream) {
  const int64_t blocks = int64_t{num_samples} * args.intervals.tree.num_intervals;
  const auto kernel = args.rows <= kFewRows    ? PropagationKernel<kFewRows, Process>
                      : args.rows <= kSomeRows ? PropagationKernel<kSomeRows, Process>
                                               : PropagationKernel<kMostStepRows, Process>;
  return LaunchSteps(kernel, args, blocks, StepBytes(args.process, args.rows), stream);
}
template <class Process>
cudaError_t LaunchExpansion(const ExpansionArgs<Process>& args, int num_samples,
                            cudaStream_t stream) {
  const int64_t blocks = int64_t{num_samples} * args.intervals.tree.num_intervals;
  return LaunchSteps(ExpansionKernel<Process>, args, blocks, StepBytes(args.process, 1), stream);
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_BLOCK_LAUNCH_CUH_
