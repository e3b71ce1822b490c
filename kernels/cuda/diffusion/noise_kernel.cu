// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/runtime/device_context.h"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/cuda/tuning.h"

namespace deeppcr::cuda {
namespace {

__global__ void __launch_bounds__(kNoiseThreads) NoiseKernel(const NoiseArgs args) {
  DeviceContext context;
  DrawNoise(context, args);
}
__global__ void __launch_bounds__(kModulationThreads) ModulationKernel(const ModulationArgs args) {
  DeviceContext context;
  ModulateSteps(context, args);
}

}  // namespace

cudaError_t PrepareModulation(int shared_bytes) {
  return cudaFuncSetAttribute(ModulationKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              shared_bytes);
}

cudaError_t LaunchNoise(const NoiseArgs& args, cudaStream_t stream) {
  const int64_t blocks = (NoiseThreads(args) - 1) / kNoiseThreads + 1;
  const int64_t most = 1 << 20;
  NoiseKernel<<<static_cast<unsigned>(blocks < most ? blocks : most), kNoiseThreads, 0, stream>>>(
      args);
  return cudaGetLastError();
}

cudaError_t LaunchModulation(const ModulationArgs& args, int64_t num_tables, cudaStream_t stream) {
  const size_t bytes = static_cast<size_t>(args.hidden_dim) * sizeof(float);
  ModulationKernel<<<static_cast<unsigned>(num_tables * args.num_steps), kModulationThreads, bytes,
                     stream>>>(args);
  return cudaGetLastError();
}

}  // namespace deeppcr::cuda
