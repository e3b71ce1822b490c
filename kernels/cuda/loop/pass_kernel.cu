// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/loop/block_shape.h"
#include "kernels/cuda/runtime/cluster_launch.h"
#include "kernels/cuda/runtime/device_context.h"
#include "kernels/cuda/runtime/launch.h"

namespace deeppcr::cuda {
namespace {

constexpr int kPassThreads = kPassWarps * kWarpSize, kStartThreads = kStartWarps * kWarpSize;

__global__ void __launch_bounds__(kStartThreads) StartKernel(const StartArgs args) {
  DeviceContext context;
  StartPasses(context, args);
}
__global__ void __launch_bounds__(kPassThreads, 1) LevelKernel(const LevelArgs args) {
  DeviceContext context;
  SweepLevel(context, args);
}
__global__ void __launch_bounds__(kPassThreads, 1) UpdateKernel(const UpdateArgs args) {
  DeviceContext context;
  UpdateStates(context, args);
}
__global__ void __launch_bounds__(kPassThreads, 1) CollectKernel(const CollectArgs args) {
  DeviceContext context;
  CollectNorms(context, args);
}
__global__ void __launch_bounds__(kPassThreads, 1) TreeKernel(const TreeArgs args) {
  DeviceContext context;
  SolveTree(BlockTeam(context), args);
}
__global__ void __launch_bounds__(kPassThreads, 1) ClusterTreeKernel(const TreeArgs args) {
#if __CUDA_ARCH__ >= 900  // as ClusterSequentialKernel
  ClusterContext context;
  SolveTree(ClusterTeam(context), args);
#endif
}

template <class Args>
cudaError_t Launch(void (*kernel)(Args), const Args& args, int64_t blocks, int threads,
                   cudaStream_t stream) {
  kernel<<<static_cast<unsigned>(blocks), threads, CollectBytes(kPassWarps), stream>>>(args);
  return cudaGetLastError();
}

}  // namespace

cudaError_t PreparePasses(int shared_bytes) {
  return HasClusters() ? AllowClusters(ClusterTreeKernel, shared_bytes) : cudaSuccess;
}

cudaError_t LaunchPass(const StartArgs& args, int num_samples, cudaStream_t stream) {
  return Launch(StartKernel, args, BlocksOf(args, num_samples), kStartThreads, stream);
}
cudaError_t LaunchPass(const LevelArgs& args, int num_members, cudaStream_t stream) {
  return Launch(LevelKernel, args, BlocksOf(args, num_members, kPassWarps), kPassThreads, stream);
}
cudaError_t LaunchPass(const UpdateArgs& args, int num_members, cudaStream_t stream) {
  return Launch(UpdateKernel, args, BlocksOf(args, num_members, kPassWarps), kPassThreads, stream);
}
cudaError_t LaunchPass(const CollectArgs& args, int num_members, cudaStream_t stream) {
  return Launch(CollectKernel, args, num_members, kPassThreads, stream);
}
cudaError_t LaunchPass(const TreeArgs& args, int num_members, cudaStream_t stream) {
  if (args.shape.num_blocks == 1)
    return Launch(TreeKernel, args, num_members, kPassThreads, stream);
  const ClusterLauncher launcher({0, num_members, args.shape.num_blocks, kPassWarps},
                                 CollectBytes(kPassWarps), stream);
  return cudaLaunchKernelEx(&launcher.config, ClusterTreeKernel, args);
}

}  // namespace deeppcr::cuda
