// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_GPU_MICRO_KERNELS_CUH_
#define DEEPPCR_TESTS_GPU_MICRO_KERNELS_CUH_

// Kernels that do one thing many times and count the cycles. A latency is that of a chain in which
// each instruction needs the one before; a rate is that of many warps, none of which waits for
// another.

#include <cooperative_groups.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/runtime/device_context.h"

namespace deeppcr::cuda {

namespace cg = cooperative_groups;

constexpr int kRounds = 256;   // of a chain
constexpr int kUnrolled = 64;  // of them, so that the loop counts for little
constexpr int kRepeats = 6;    // the first fills the caches
constexpr int kNodes = 256;    // of a chain in memory
constexpr int kWarps = 16;     // that share a unit, four a scheduler

struct Measured {
  unsigned long long cycles;  // of all rounds, the least of the repeats
  unsigned long long sink;    // keeps results alive
};

__device__ __forceinline__ unsigned long long Now() {
  unsigned long long now;
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(now)::"memory");
  return now;
}

// Clocks `round`, which goes on from where it was.
template <class Round>
__device__ __forceinline__ unsigned long long Clock(int rounds, Round&& round) {
  unsigned long long least = ~0ULL;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    const unsigned long long begin = Now();
#pragma unroll 1
    for (int i = 0; i < rounds; i += kUnrolled) {
#pragma unroll
      for (int j = 0; j < kUnrolled; ++j) round();
    }
    const unsigned long long taken = Now() - begin;
    if (taken < least) least = taken;
  }
  return least;
}

__device__ __forceinline__ void Write(Measured* to, unsigned long long cycles,
                                      unsigned long long sink) {
  if (blockIdx.x == 0 && threadIdx.x == 0) *to = {cycles, sink};
}

// ---- Chains of arithmetic
enum class Chain {
  kFma,
  kShuffle,
  kSpecial,
  kConvert,
  kDouble,
  kVote,
  kRedux,
  kRegister,
  kTensor,
  kHalfTensor
};

template <Chain C>
__global__ void ChainKernel(Measured* to, unsigned seed) {
  unsigned x = seed + threadIdx.x;
  float f = 1.0F + static_cast<float>(seed);
  double d = 1.0 + seed;
  float sum[4] = {f, f, f, f};
  const float scale = f;
  const double factor = d;
  const unsigned long long cycles = Clock(kRounds, [&] {
    if constexpr (C == Chain::kFma)
      asm volatile("fma.rn.f32 %0, %0, %1, %1;" : "+f"(f) : "f"(scale));
    if constexpr (C == Chain::kShuffle)
      asm volatile("shfl.sync.bfly.b32 %0, %0, 1, 0x1f, 0xffffffff;" : "+r"(x));
    if constexpr (C == Chain::kSpecial) asm volatile("rsqrt.approx.ftz.f32 %0, %0;" : "+f"(f));
    if constexpr (C == Chain::kConvert) asm volatile("cvt.rni.f32.f32 %0, %0;" : "+f"(f));
    if constexpr (C == Chain::kDouble)
      asm volatile("fma.rn.f64 %0, %0, %1, %1;" : "+d"(d) : "d"(factor));
    if constexpr (C == Chain::kVote) x = __ballot_sync(~0U, x != 0);
    if constexpr (C == Chain::kRedux)
      asm volatile("redux.sync.max.u32 %0, %0, 0xffffffff;" : "+r"(x));
    if constexpr (C == Chain::kRegister)
      asm volatile("{.reg .pred p; setp.ne.u32 p, %0, 0xfffffffe; @p mov.u32 %0, %%smid;}"
                   : "+r"(x));
    if constexpr (C == Chain::kTensor)
      asm volatile(
          "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%4,%4,%4}, "
          "{%4,%4}, {%0,%1,%2,%3};"
          : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
          : "r"(x));
    if constexpr (C == Chain::kHalfTensor)
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%4,%4,%4}, "
          "{%4,%4}, {%0,%1,%2,%3};"
          : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
          : "r"(x));
  });
  const float all = f + static_cast<float>(d) + sum[0] + sum[1] + sum[2] + sum[3];
  Write(to, cycles, x + __float_as_uint(all));
}

// ---- Chains in memory
// Every node holds the address of the next, `stride` bytes on.
enum class Cache { kL1, kL2, kHost };

__global__ void LinkKernel(char* nodes, int count, int64_t stride) {
  for (int i = threadIdx.x; i < count; i += blockDim.x)
    *reinterpret_cast<char**>(nodes + i * stride) = nodes + (i + 1) % count * stride;
}
template <Cache C>
__global__ void ChaseKernel(Measured* to, char* nodes, int rounds) {
  unsigned long long at = reinterpret_cast<unsigned long long>(nodes);
  const unsigned long long cycles = Clock(rounds, [&] {
    if constexpr (C == Cache::kL1) asm volatile("ld.global.u64 %0, [%0];" : "+l"(at));
    if constexpr (C == Cache::kL2) asm volatile("ld.global.cg.u64 %0, [%0];" : "+l"(at));
    if constexpr (C == Cache::kHost) asm volatile("ld.volatile.global.u64 %0, [%0];" : "+l"(at));
  });
  Write(to, cycles, at);
}

__global__ void SharedKernel(Measured* to) {
  __shared__ unsigned nodes[kNodes];
  const unsigned base = static_cast<unsigned>(__cvta_generic_to_shared(nodes));
  for (int i = threadIdx.x; i < kNodes; i += blockDim.x) nodes[i] = base + 4 * ((i + 33) % kNodes);
  __syncthreads();
  unsigned at = base;
  const unsigned long long cycles = Clock(kRounds, [&] {
    asm volatile("ld.shared.u32 %0, [%0];" : "+r"(at));
  });
  Write(to, cycles, at);
}

__constant__ unsigned constant_nodes[kNodes];
// `zero`: so that the compiler does not see that all lanes ask for the same word.
__global__ void ConstantKernel(Measured* to, unsigned zero) {
  unsigned at = threadIdx.x * zero;
  const unsigned long long cycles = Clock(kRounds, [&] {
    at = *reinterpret_cast<const unsigned*>(reinterpret_cast<const char*>(constant_nodes) + at);
  });
  Write(to, cycles, at);
}

// ---- Fences and barriers
template <bool kStore>
__global__ void FenceKernel(Measured* to, unsigned* word) {
  const auto address = reinterpret_cast<unsigned long long>(word) + threadIdx.x;
  const unsigned long long cycles = Clock(kRounds, [&] {
    if (kStore) asm volatile("st.global.cg.u8 [%0], %1;" ::"l"(address), "r"(1U) : "memory");
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
  });
  Write(to, cycles, 0);
}
__global__ void BarrierKernel(Measured* to) {
  const unsigned long long cycles = Clock(kRounds, [&] {
    asm volatile("bar.sync 0;" ::: "memory");
  });
  Write(to, cycles, 0);
}

// ---- Clusters: the last block of a cluster is the other side
enum class Exchange { kNone, kRelaxed, kSync, kLoad, kPush };

#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ unsigned RemoteShared(const void* mine, unsigned rank) {
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(mine));
  unsigned remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
  return remote;
}

// The first block chases through nodes that lie in the last one, by loads that do not know where
// they lead, as those of the kernels.
__device__ unsigned long long ChaseRemote(unsigned long long* nodes, unsigned last) {
  cg::cluster_group cluster = cg::this_cluster();
  const bool chases = cluster.block_rank() == 0;
  unsigned long long* const remote = cluster.map_shared_rank(nodes, last);
  for (int i = threadIdx.x; chases && i < kNodes; i += blockDim.x)
    remote[i] = reinterpret_cast<unsigned long long>(remote + (i + 17) % kNodes);
  cluster.sync();
  unsigned long long least = 0;
  if (chases) {
    unsigned long long at = reinterpret_cast<unsigned long long>(remote);
    least = Clock(kRounds, [&] { asm volatile("ld.u64 %0, [%0];" : "+l"(at)); });
    if (at == 0) least = 0;
  }
  cluster.sync();
  return least;
}

// Waits for a phase of a barrier in shared memory, but not for ever.
__device__ __forceinline__ bool AwaitPhase(unsigned barrier, unsigned parity) {
  constexpr int kMostTries = 1 << 16;
  for (int i = 0; i < kMostTries; ++i) {
    unsigned done;
    asm volatile(
        "{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; "
        "selp.u32 %0, 1, 0, p;}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
    if (done != 0) return true;
  }
  return false;
}

// A word goes to and fro between two blocks; the cycles are those of `rounds` ways there.
__device__ unsigned long long PushToAndFro(unsigned long long* memory, unsigned last, int rounds) {
  cg::cluster_group cluster = cg::this_cluster();
  const unsigned rank = cluster.block_rank();
  const bool plays = (rank == 0 || rank == last) && threadIdx.x == 0;
  const auto barrier = static_cast<unsigned>(__cvta_generic_to_shared(memory));
  if (plays) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  cluster.sync();
  unsigned long long taken = 0;
  if (plays) {
    const unsigned other = rank == 0 ? last : 0;
    const unsigned there = RemoteShared(memory, other), word = RemoteShared(memory + 1, other);
    const unsigned long long begin = Now();
    bool well = true;
    for (int i = 0; i < rounds / 2 && well; ++i) {
      const unsigned parity = static_cast<unsigned>(i) & 1U;
      const auto push = [&] {
        asm volatile(
            "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" ::"r"(word),
            "r"(parity), "r"(there)
            : "memory");
      };
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 4;" ::"r"(barrier)
                   : "memory");
      if (rank == 0) push();
      well = AwaitPhase(barrier, parity);
      if (rank != 0) push();
    }
    taken = well ? Now() - begin : 0;
  }
  cluster.sync();
  return taken;
}
#endif

template <Exchange E>
__global__ void ClusterKernel(Measured* to, int blocks) {
#if __CUDA_ARCH__ >= 900
  __shared__ unsigned long long nodes[kNodes];
  unsigned long long cycles = 0;
  if constexpr (E == Exchange::kRelaxed)
    cycles = Clock(kRounds, [&] {
      asm volatile("barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.aligned;" ::
                       : "memory");
    });
  if constexpr (E == Exchange::kSync) cycles = Clock(kRounds, [&] { cg::this_cluster().sync(); });
  if constexpr (E == Exchange::kLoad) cycles = ChaseRemote(nodes, blocks - 1);
  if constexpr (E == Exchange::kPush) cycles = PushToAndFro(nodes, blocks - 1, kRounds);
  if constexpr (E != Exchange::kNone) Write(to, cycles, nodes[0]);
#endif
}

// ---- Rates: loads of 16 bytes a lane, and shuffles, of kWarps warps of one block. `rows` of the
// table, of 512 bytes, are a power of two.
enum class Load { kBroadcast, kL1, kL2, kShuffle };

template <Load L>
__global__ void __launch_bounds__(kWarps * 32)
    RateKernel(Measured* to, const float4* table, int rows) {
  __shared__ float4 shared[kNodes];
  for (int i = threadIdx.x; i < kNodes; i += blockDim.x) shared[i] = table[i];
  const auto base = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float4 sum = {0, 0, 0, 0};
  unsigned words[4] = {threadIdx.x, 1, 2, 3};
  unsigned long long least = ~0ULL;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    __syncthreads();
    const unsigned long long begin = Now();
#pragma unroll 16
    for (int i = 0; i < kRounds; ++i) {
      float4 v = {0, 0, 0, 0};
      const float4* const row = table + ((i + warp * 16) & (rows - 1)) * 32 + lane;
      if constexpr (L == Load::kBroadcast)
        asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];"
                     : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                     : "r"(base + 16 * ((i + warp) % kNodes)));
      if constexpr (L == Load::kL1)
        asm volatile("ld.global.v4.f32 {%0,%1,%2,%3}, [%4];"
                     : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                     : "l"(row));
      if constexpr (L == Load::kL2)
        asm volatile("ld.global.cg.v4.f32 {%0,%1,%2,%3}, [%4];"
                     : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                     : "l"(row));
      if constexpr (L == Load::kShuffle)
        asm volatile("shfl.sync.bfly.b32 %0, %0, 1, 0x1f, 0xffffffff;" : "+r"(words[i % 4]));
      sum.x += v.x;
      sum.y += v.y;
      sum.z += v.z;
      sum.w += v.w;
    }
    __syncthreads();
    const unsigned long long taken = Now() - begin;
    if (taken < least) least = taken;
  }
  const unsigned sink = __float_as_uint(sum.x + sum.y + sum.z + sum.w);
  Write(to, least, sink + words[0] + words[1] + words[2] + words[3]);
}

// ---- The clock, and launches
// ---- All blocks of a cooperative launch hand on a vector of which each has made eight elements,
// as math/grid_team.h does. `places`: two sets, zero before.
constexpr int kExchangeThreads = 512, kExchanged = 8;
__global__ void __launch_bounds__(kExchangeThreads, 1)
    ExchangeKernel(Measured* to, uint64_t* places) {
  const GridContext context;
  const int count = kExchanged * static_cast<int>(gridDim.x);
  const auto thread = static_cast<int>(threadIdx.x);
  uint32_t number = 0;
  float sum = 0;
  const unsigned long long cycles = Clock(kRounds, [&] {
    uint64_t* const set = places + ++number % 2 * count;
    if (thread < kExchanged)
      context.StoreNumbered(set + kExchanged * blockIdx.x + thread, sum, number);
    __syncthreads();
    for (int k = 2 * thread; k < count; k += 2 * kExchangeThreads) {
      float pair[2];
      context.AwaitNumbered(set + k, number, pair, 0);
      sum = pair[0] + pair[1];
    }
    __syncthreads();
  });
  Write(to, cycles, __float_as_uint(sum));
}

__global__ void SpinKernel(Measured* to, unsigned long long nanoseconds) {
  unsigned long long first, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(first));
  const unsigned long long begin = Now();
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - first < nanoseconds);
  *to = {Now() - begin, now - first};
}
__global__ void EmptyKernel(Measured* to) {
  if (to == nullptr) return;
  to->sink = 1;
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_TESTS_GPU_MICRO_KERNELS_CUH_
