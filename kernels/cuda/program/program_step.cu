// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/loop/block_launch.cuh"
#include "kernels/cuda/program/kernel.h"

namespace deeppcr::cuda {
namespace {

using ProgramCoarseArgs = CoarseArgs<ProgramView>;
__global__ void __launch_bounds__(kMaxBlockThreads, 1)
    ProgramCoarseKernel(const ProgramCoarseArgs args) {
  DeviceContext context;
  GuessCoarsely(BlockTeam(context), args);
}
__global__ void __launch_bounds__(kMaxBlockThreads, 1)
    ClusterProgramCoarseKernel(const ProgramCoarseArgs args) {
#if __CUDA_ARCH__ >= 900  // as ClusterSequentialKernel
  ClusterContext context;
  GuessCoarsely(ClusterTeam(context), args);
#endif
}
__global__ void __launch_bounds__(kGridWarps* kWarpSize, 1)
    GridProgramKernel(const GridStepsArgs<ProgramView> args) {
  GridContext context;
  SolveProgramOverGrid(context, args);
}
__global__ void __launch_bounds__(kMaxBlockThreads, 1) ConditionKernel(const ConditionArgs args) {
  DeviceContext context;
  GiveCondition(context, args);
}

// The kernels that were compiled for a program, or else those that interpret it.
ProgramKernels KernelsOf(const ProgramView& process, int rows) {
  if (process.kernels != nullptr) return *process.kernels;
  const void* const propagation = WithStepRows(
      rows, [](auto most) { return HandleOf(PropagationKernel<most.value, ProgramView>); });
  return {HandleOf(BlockSequentialKernel<ProgramView>),
          HandleOf(ClusterSequentialKernel<ProgramView>),
          HandleOf(GridProgramKernel),
          propagation,
          HandleOf(ExpansionKernel<ProgramView>),
          HandleOf(ProgramCoarseKernel),
          HandleOf(ClusterProgramCoarseKernel)};
}
ProgramKernels KernelsOf(const ProgramView& process) { return KernelsOf(process, kMostStepRows); }

}  // namespace

cudaError_t PrepareProgram(int shared_bytes) {
  cudaError_t error = PrepareBlocks<ProgramView>(shared_bytes);
  if (error == cudaSuccess)
    error = AllowShared(shared_bytes, ProgramCoarseKernel, GridProgramKernel, ConditionKernel);
  if (error == cudaSuccess && HasClusters())
    error = AllowClusters(ClusterProgramCoarseKernel, shared_bytes);
  return error;
}

cudaError_t LaunchBlocks(const BlockSequentialArgs<ProgramView>& args, int num_samples,
                         cudaStream_t stream) {
  const ProgramKernels kernels = KernelsOf(args.process);
  return LaunchTeams(kernels.sequential, kernels.cluster_sequential, args, args.team.num_blocks,
                     num_samples, StepBytes(args.process, 1), stream);
}
cudaError_t LaunchBlocks(const GridStepsArgs<ProgramView>& args, cudaStream_t stream) {
  return LaunchGrid(KernelsOf(args.sequential.process).grid_sequential, args, stream);
}
cudaError_t LaunchBlocks(const PropagationArgs<ProgramView>& args, int num_samples,
                         cudaStream_t stream) {
  return LaunchSteps(KernelsOf(args.process, args.rows).propagation, args,
                     BlocksOf(args, num_samples), StepBytes(args.process, args.rows), stream);
}
cudaError_t LaunchBlocks(const ExpansionArgs<ProgramView>& args, int num_samples,
                         cudaStream_t stream) {
  return LaunchSteps(KernelsOf(args.process).expansion, args, BlocksOf(args, num_samples),
                     StepBytes(args.process, 1), stream);
}
cudaError_t LaunchBlocks(const ProgramCoarseArgs& args, int num_samples, cudaStream_t stream) {
  const ProgramKernels kernels = KernelsOf(args.process);
  return LaunchTeams(kernels.coarse, kernels.cluster_coarse, args, args.num_blocks, num_samples,
                     CoarseBytes(args.process, args.staged_floats), stream);
}
cudaError_t LaunchCondition(const ConditionArgs& args, int num_samples, cudaStream_t stream) {
  const int threads = WarpsOf(args.section.widest, 1, kMaxBlockWarps) * kWarpSize;
  ConditionKernel<<<static_cast<unsigned>(BlocksOf(args, num_samples)), threads,
                    ConditionBytes(args), stream>>>(args);
  return cudaGetLastError();
}

}  // namespace deeppcr::cuda
