// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/device_context.h"
#include "kernels/cuda/launch.h"

namespace deeppcr::cuda {
namespace {

// A thread holds a column of a matrix and a row: the wider, the more registers.
template <int W>
constexpr int kMaxThreads = W <= 8    ? 512
                            : W <= 16 ? 384
                                      : 256;
constexpr int kPortableBlocks = 8;  // of a cluster; more have to be asked for

template <int W>
__global__ void __launch_bounds__(kMaxThreads<W>) NewtonKernel(const NewtonArgs args) {
#if __CUDA_ARCH__ >= 900  // the first with clusters; LaunchNewton refuses the others
  ClusterContext context;
  SolveNewton<W>(context, args);
#endif
}

bool HasClusters() {
  int device = 0, has = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return false;
  return cudaDeviceGetAttribute(&has, cudaDevAttrClusterLaunch, device) == cudaSuccess && has == 1;
}

template <int W>
cudaError_t Allow(const NewtonArgs& args, size_t shared_bytes) {
  cudaError_t error = cudaFuncSetAttribute(
      NewtonKernel<W>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
  if (error != cudaSuccess || args.tree.num_blocks <= kPortableBlocks) return error;
  return cudaFuncSetAttribute(NewtonKernel<W>, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
}

template <int W>
cudaError_t Launch(const NewtonArgs& args, int num_samples, int num_warps, cudaStream_t stream) {
  if (num_warps * kWarpSize > kMaxThreads<W>) return cudaErrorInvalidValue;
  const size_t shared_bytes = BlockMemory<W>::Bytes(args.tree);
  if (const cudaError_t error = Allow<W>(args, shared_bytes); error != cudaSuccess) return error;
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(args.tree.num_blocks), 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(num_samples) * args.tree.num_blocks);
  config.blockDim = dim3(static_cast<unsigned>(num_warps) * kWarpSize);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, NewtonKernel<W>, args);
}

}  // namespace

cudaError_t LaunchNewton(const NewtonArgs& args, int width, int num_samples, int num_warps,
                         cudaStream_t stream) {
  if (!HasClusters()) return cudaErrorNotSupported;
  switch (width) {
    case 8:
      return Launch<8>(args, num_samples, num_warps, stream);
    case 16:
      return Launch<16>(args, num_samples, num_warps, stream);
    case 32:
      return Launch<32>(args, num_samples, num_warps, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace deeppcr::cuda
