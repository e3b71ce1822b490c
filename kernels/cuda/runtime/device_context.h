// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_RUNTIME_DEVICE_CONTEXT_H_
#define DEEPPCR_KERNELS_CUDA_RUNTIME_DEVICE_CONTEXT_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/runtime/device_code.h"

namespace deeppcr::cuda {

// The execution context of one thread of a one-dimensional launch. The SIMT executor,
// tests/testing/simt/executor.h, documents the members. The numbers of barrier calls are for the
// executor.
class DeviceContext {
 public:
  __device__ __forceinline__ int lane() const { return threadIdx.x % kWarpSize; }
  __device__ __forceinline__ int warp() const { return threadIdx.x / kWarpSize; }
  // An integer that is the same in all lanes, by all of them: branches on it do not part lanes, as
  // far as the compiler can see.
  __device__ __forceinline__ int Uniform(int x) const { return __shfl_sync(0xFFFFFFFFU, x, 0); }
  __device__ __forceinline__ int thread() const { return threadIdx.x; }
  __device__ __forceinline__ int num_threads() const { return blockDim.x; }
  // In a launch without clusters every block is a cluster.
  __device__ __forceinline__ int cluster() const { return blockIdx.x; }
  __device__ __forceinline__ int num_clusters() const { return gridDim.x; }

  __device__ __forceinline__ std::byte* shared() const {
    extern __shared__ __align__(16) unsigned char shared_memory[];
    return reinterpret_cast<std::byte*>(shared_memory);
  }

  __device__ __forceinline__ void SyncWarp(int) const { __syncwarp(); }
  __device__ __forceinline__ void SyncBlock(int) const { __syncthreads(); }

  template <int N>
  __device__ __forceinline__ void LoadConstants(const float* from, float (&to)[N]) const {
    if constexpr (N % 4 == 0) {
#pragma unroll
      for (int i = 0; i < N; i += 4) {
        const float4 four = __ldg(reinterpret_cast<const float4*>(from + i));
        to[i] = four.x;
        to[i + 1] = four.y;
        to[i + 2] = four.z;
        to[i + 3] = four.w;
      }
    } else if constexpr (N % 2 == 0) {
#pragma unroll
      for (int i = 0; i < N; i += 2) {
        const float2 two = __ldg(reinterpret_cast<const float2*>(from + i));
        to[i] = two.x;
        to[i + 1] = two.y;
      }
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i) to[i] = __ldg(from + i);
    }
  }

  __device__ __forceinline__ void LoadFour(const float* from, float (&to)[4]) const {
    const float4 four = *reinterpret_cast<const float4*>(from);
    to[0] = four.x;
    to[1] = four.y;
    to[2] = four.z;
    to[3] = four.w;
  }
  __device__ __forceinline__ void StoreFour(const float (&from)[4], float* to) const {
    *reinterpret_cast<float4*>(to) = make_float4(from[0], from[1], from[2], from[3]);
  }
  __device__ __forceinline__ void LoadTwo(const float* from, float (&to)[2]) const {
    const float2 two = *reinterpret_cast<const float2*>(from);
    to[0] = two.x;
    to[1] = two.y;
  }
  __device__ __forceinline__ void LoadHalves(const uint16_t* from, uint32_t (&to)[4]) const {
    const uint4 four = *reinterpret_cast<const uint4*>(from);
    to[0] = four.x;
    to[1] = four.y;
    to[2] = four.z;
    to[3] = four.w;
  }
  template <int N>
  __device__ __forceinline__ void CopyAsync(const float* from, float* to) const {
    static_assert(N == 1 || N == 2 || N == 4, "a copy of the machine");
    const auto place = static_cast<unsigned>(__cvta_generic_to_shared(to));
    if constexpr (N == 4)
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(place), "l"(from) : "memory");
    else
      asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(place), "l"(from),
                   "n"(N * sizeof(float))
                   : "memory");
  }
  __device__ __forceinline__ void CommitCopies() const { asm volatile("cp.async.commit_group;"); }
  template <int N>
  __device__ __forceinline__ void WaitForCopies() const {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
  }
  __device__ __forceinline__ void Prefetch(const float* from) const {
    asm volatile("prefetch.global.L1 [%0];" ::"l"(__cvta_generic_to_global(from)));
  }
  __device__ __forceinline__ int32_t LoadVolatile(const int32_t* from) const {
    return *static_cast<const volatile int32_t*>(from);
  }

  template <class T>
  __device__ __forceinline__ T Shuffle(T value, int source) const {
    return __shfl_sync(0xFFFFFFFFU, value, source);
  }
  template <class T>
  __device__ __forceinline__ T ShuffleXor(T value, int mask) const {
    return __shfl_xor_sync(0xFFFFFFFFU, value, mask);
  }
  // The bits of floats that are not negative are in the order of the floats.
  __device__ __forceinline__ float LargestOfWarp(float x) const {
    return __uint_as_float(__reduce_max_sync(0xFFFFFFFFU, __float_as_uint(x)));
  }
  __device__ __forceinline__ bool AllOfWarp(bool x) const {
    return __all_sync(0xFFFFFFFFU, x ? 1 : 0) != 0;
  }

  static __device__ __forceinline__ float ApproximateRoot(float x) {
    float root;
    asm("sqrt.approx.f32 %0, %1;" : "=f"(root) : "f"(x));
    return root;
  }
  static __device__ __forceinline__ float RoundToTf32(float x) {
    return __uint_as_float((__float_as_uint(x) + 0x1000U) & 0xFFFFE000U);
  }
  static __device__ __forceinline__ float CutToTf32(float x) {
    return __uint_as_float(__float_as_uint(x) & 0xFFFFE000U);
  }
  static __device__ __forceinline__ uint16_t ToHalf(float x) {
    uint16_t half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(x));
    return half;
  }
  static __device__ __forceinline__ float OfHalf(uint16_t half) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(half));
    return x;
  }
  __device__ __forceinline__ void AddProduct(const float (&a)[4], const float (&b)[2],
                                             float (&d)[4]) const {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])),
          "r"(__float_as_uint(a[3])), "r"(__float_as_uint(b[0])), "r"(__float_as_uint(b[1])));
  }
  __device__ __forceinline__ void AddHalfProduct(const uint32_t (&a)[4], const uint32_t (&b)[2],
                                                 float (&d)[4]) const {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
};

// The execution context in a cooperative launch: all blocks run side by side, and are numbered as
// those of one cluster.
class GridContext : public DeviceContext {
 public:
  __device__ __forceinline__ int block() const { return blockIdx.x; }
  __device__ __forceinline__ int num_blocks() const { return gridDim.x; }
  __device__ __forceinline__ int cluster() const { return 0; }
  __device__ __forceinline__ int num_clusters() const { return 1; }

  __device__ __forceinline__ bool IsShared(const float* at) const { return __isShared(at) != 0; }

  __device__ __forceinline__ void StoreNumbered(uint64_t* to, float value, uint32_t number) const {
    const uint64_t both = static_cast<uint64_t>(number) << 32 | __float_as_uint(value);
    asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(to), "l"(both) : "memory");
  }
  // The elements of a vector load are loads of their own, each of which is done as a whole.
  __device__ __forceinline__ void AwaitNumbered(const uint64_t* from, uint32_t number,
                                                float (&to)[2], int) const {
    uint64_t pair[2];
    do {
      asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];"
                   : "=l"(pair[0]), "=l"(pair[1])
                   : "l"(from)
                   : "memory");
    } while (pair[0] >> 32 != number || pair[1] >> 32 != number);
    to[0] = __uint_as_float(static_cast<uint32_t>(pair[0]));
    to[1] = __uint_as_float(static_cast<uint32_t>(pair[1]));
  }
  template <int N>
  __device__ __forceinline__ void AwaitAllNumbered(const uint64_t* const (&from)[N],
                                                   uint32_t number, float (&to)[N][2], int) const {
    uint64_t pairs[N][2];
    bool all;
    do {
      all = true;
#pragma unroll
      for (int i = 0; i < N; ++i)
        asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];"
                     : "=l"(pairs[i][0]), "=l"(pairs[i][1])
                     : "l"(from[i])
                     : "memory");
#pragma unroll
      for (int i = 0; i < N; ++i)
        all = all && pairs[i][0] >> 32 == number && pairs[i][1] >> 32 == number;
    } while (!all);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      to[i][0] = __uint_as_float(static_cast<uint32_t>(pairs[i][0]));
      to[i][1] = __uint_as_float(static_cast<uint32_t>(pairs[i][1]));
    }
  }
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// The execution context in a launch of clusters: blocks are numbered within their cluster.
class ClusterContext : public DeviceContext {
 public:
  __device__ __forceinline__ int block() const { return __clusterRelativeBlockRank(); }
  __device__ __forceinline__ int num_blocks() const { return __clusterSizeInBlocks(); }
  __device__ __forceinline__ int cluster() const { return __clusterIdx().x; }
  __device__ __forceinline__ int num_clusters() const { return __clusterGridDimInClusters().x; }

  template <class T>
  __device__ __forceinline__ T* Remote(T* local, int block) const {
    return static_cast<T*>(__cluster_map_shared_rank(local, block));
  }
  __device__ __forceinline__ void AnnounceBlock() const { __cluster_barrier_arrive_relaxed(); }
  __device__ __forceinline__ void AwaitBlocks(int) const { __cluster_barrier_wait(); }
  __device__ __forceinline__ void SyncCluster(int) const {
    __cluster_barrier_arrive();
    __cluster_barrier_wait();
  }
};

#endif

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_RUNTIME_DEVICE_CONTEXT_H_
