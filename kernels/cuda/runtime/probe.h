// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_RUNTIME_PROBE_H_
#define DEEPPCR_KERNELS_CUDA_RUNTIME_PROBE_H_

// Plain C++ on both sides of nvcc: no abseil here.

#include <cuda_runtime_api.h>

#include "kernels/cuda/loop/newton_shape.h"

namespace deeppcr::cuda {

struct DeviceInfo {
  char name[256];
  int major;  // compute capability
  int minor;
  int multiprocessors;
  size_t shared_bytes;     // most that a block may ask for
  int max_cluster_blocks;  // largest cluster of the Newton kernel, a power of two; 0: no clusters
  ClusterCounts clusters;
  int grid_blocks;  // LaunchLimits::grid_blocks
};

// Number of devices that the driver offers.
cudaError_t CountDevices(int* count);

// Lets every kernel use all the shared memory that a block of the current device may ask for. Goes
// before the first launch of any kernel.
cudaError_t PrepareKernels();

// Properties of a device, its kernels prepared, after a kernel has run on it and answered: a driver
// that cannot run this build's code is found here and not at the first request. Synchronises.
cudaError_t ProbeDevice(int device, DeviceInfo* info);

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_RUNTIME_PROBE_H_
