// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/runtime/device_context.h"
#include "kernels/cuda/runtime/launch.h"

namespace deeppcr::cuda {
namespace {

__global__ void __launch_bounds__(kDenseChainThreads) DenseChainKernel(const DenseChainArgs args) {
  DeviceContext context;
  ApplyDenseChain(context, args);
}

__global__ void __launch_bounds__(kDenseChainThreads) DenseBackKernel(const DenseBackArgs args) {
  DeviceContext context;
  GoBackThroughLayer(context, args);
}

}  // namespace

cudaError_t PrepareDenseChain(int shared_bytes) {
  return cudaFuncSetAttribute(DenseChainKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              shared_bytes);
}

cudaError_t LaunchDenseChain(const DenseChainArgs& args, int num_samples, cudaStream_t stream) {
  const size_t shared_bytes =
      args.scratch == nullptr ? static_cast<size_t>(DenseChainFloats(args.widest)) * sizeof(float)
                              : 0;
  DenseChainKernel<<<num_samples, kDenseChainThreads, shared_bytes, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t LaunchDenseBack(const DenseBackArgs& args, int num_samples, cudaStream_t stream) {
  DenseBackKernel<<<num_samples, kDenseChainThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace deeppcr::cuda
