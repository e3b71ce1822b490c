// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/device_context.h"
#include "kernels/cuda/launch.h"

namespace deeppcr::cuda {
namespace {

__global__ void __launch_bounds__(kDenseChainThreads) DenseChainKernel(const DenseChainArgs args) {
  DeviceContext context;
  ApplyDenseChain(context, args);
}

}  // namespace

cudaError_t LaunchDenseChain(const DenseChainArgs& args, int num_samples, cudaStream_t stream) {
  const size_t shared_bytes =
      args.scratch == nullptr ? static_cast<size_t>(DenseChainFloats(args.widest)) * sizeof(float)
                              : 0;
  const cudaError_t error =
      cudaFuncSetAttribute(DenseChainKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>(shared_bytes));
  if (error != cudaSuccess) return error;
  DenseChainKernel<<<num_samples, kDenseChainThreads, shared_bytes, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace deeppcr::cuda
