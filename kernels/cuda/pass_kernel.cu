// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/block_shape.h"
#include "kernels/cuda/device_context.h"
#include "kernels/cuda/launch.h"

namespace deeppcr::cuda {
namespace {

constexpr int kMaxThreads = kMaxPassWarps * kWarpSize;

__global__ void __launch_bounds__(kMaxThreads, 1) StartKernel(const StartArgs args) {
  DeviceContext context;
  StartPasses(context, args);
}
__global__ void __launch_bounds__(kMaxThreads, 1) LevelKernel(const LevelArgs args) {
  DeviceContext context;
  SweepLevel(context, args);
}
__global__ void __launch_bounds__(kMaxThreads, 1) UpdateKernel(const UpdateArgs args) {
  DeviceContext context;
  UpdateStates(context, args);
}
__global__ void __launch_bounds__(kWarpSize) CollectKernel(const CollectArgs args) {
  DeviceContext context;
  CollectNorms(context, args);
}

template <class Args>
cudaError_t Launch(void (*kernel)(Args), const Args& args, int num_samples, cudaStream_t stream) {
  const int warps = PassWarps(args.pass.width, kMaxPassWarps);
  kernel<<<static_cast<unsigned>(BlocksOf(args, num_samples)), warps * kWarpSize,
           UpdateBytes(warps), stream>>>(args);
  return cudaGetLastError();
}

}  // namespace

cudaError_t LaunchPass(const StartArgs& args, int num_samples, cudaStream_t stream) {
  return Launch(StartKernel, args, num_samples, stream);
}
cudaError_t LaunchPass(const LevelArgs& args, int num_members, cudaStream_t stream) {
  return Launch(LevelKernel, args, num_members, stream);
}
cudaError_t LaunchPass(const UpdateArgs& args, int num_members, cudaStream_t stream) {
  return Launch(UpdateKernel, args, num_members, stream);
}
cudaError_t LaunchPass(const CollectArgs& args, int num_members, cudaStream_t stream) {
  CollectKernel<<<static_cast<unsigned>(num_members), kWarpSize, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace deeppcr::cuda
