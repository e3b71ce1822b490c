// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_RUNTIME_CLUSTER_LAUNCH_H_
#define DEEPPCR_KERNELS_CUDA_RUNTIME_CLUSTER_LAUNCH_H_

// Launches of one cluster of blocks per sample.

#include <cuda_runtime_api.h>

#include <cstddef>

#include "kernels/cuda/loop/newton_shape.h"
#include "kernels/cuda/runtime/device_code.h"

namespace deeppcr::cuda {

// True if the current device knows clusters.
inline bool HasClusters() {
  int device = 0, has = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return false;
  return cudaDeviceGetAttribute(&has, cudaDevAttrClusterLaunch, device) == cudaSuccess && has == 1;
}

template <class Args>
cudaError_t AllowClusters(void (*kernel)(Args), int shared_bytes) {
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (error != cudaSuccess) return error;
  // Allows more blocks than all devices are sure to take.
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
}

// A launch of one shape: `config` points into it.
struct ClusterLauncher {
  cudaLaunchAttribute cluster = {};
  cudaLaunchConfig_t config = {};

  ClusterLauncher(const NewtonShape& shape, size_t shared_bytes, cudaStream_t stream) {
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {static_cast<unsigned>(shape.num_blocks), 1, 1};
    config.gridDim = dim3(static_cast<unsigned>(shape.num_samples) * shape.num_blocks);
    config.blockDim = dim3(static_cast<unsigned>(shape.num_warps) * kWarpSize);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    config.attrs = &cluster;
    config.numAttrs = 1;
  }
  ClusterLauncher(const ClusterLauncher&) = delete;
};

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_RUNTIME_CLUSTER_LAUNCH_H_
