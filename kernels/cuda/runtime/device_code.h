// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_RUNTIME_DEVICE_CODE_H_
#define DEEPPCR_KERNELS_CUDA_RUNTIME_DEVICE_CODE_H_

// Kernel bodies are templates over an execution context: DeviceContext on a GPU, a fiber of the
// SIMT executor (tests/testing/simt) on a CPU. The same source is compiled by nvcc and by the
// host's compiler; the macros below are the only difference. DEEPPCR_DEVICE_CALL is for large
// functions that many places call: a call takes less than their code in each of these places.

#if defined(__CUDACC__)
#define DEEPPCR_DEVICE __device__ __forceinline__
#define DEEPPCR_DEVICE_CALL inline __device__ __noinline__
#define DEEPPCR_UNROLL _Pragma("unroll")
#define DEEPPCR_AS_WRITTEN _Pragma("unroll 1")
#else
#define DEEPPCR_DEVICE inline
#define DEEPPCR_DEVICE_CALL inline
#define DEEPPCR_UNROLL
#define DEEPPCR_AS_WRITTEN
#endif

namespace deeppcr::cuda {

inline constexpr int kWarpSize = 32;

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_RUNTIME_DEVICE_CODE_H_
