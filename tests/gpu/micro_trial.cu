// SPDX-License-Identifier: Apache-2.0
// What single instructions and their memories take on a GPU, to stand beside what
// tests/gpu/model/machine.py assumes: lines of JSON by the names that it uses (README.md).
//
//   micro_trial   prints every row; says each before it runs
//
// A latency is that of a chain in which each instruction needs the one before; a rate is that of
// many warps, none of which waits for another. Exit status: 0, 1 if a row failed, 77 if there is no
// GPU.

#include <cooperative_groups.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "tests/gpu/cases.h"

namespace deeppcr::cuda {
namespace {

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
enum class Chain { kFma, kShuffle, kSpecial, kConvert, kDouble, kVote, kRedux, kRegister, kTensor };

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
    if constexpr (C == Cache::kL1) asm volatile("ld.global.ca.u64 %0, [%0];" : "+l"(at));
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
  Write(to, cycles, nodes[0]);
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
        asm volatile("ld.global.ca.v4.f32 {%0,%1,%2,%3}, [%4];"
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

// ---- The host
int failed_rows = 0;

void Print(const std::string& name, const std::string& what, const char* unit, double value) {
  std::printf("{\"name\": \"%s\", \"what\": \"%s\", \"unit\": \"%s\", \"value\": %.4g}\n",
              name.c_str(), what.c_str(), unit, value);
}

class Bench {
 public:
  Bench() : measured_(1) {}

  // A row of cycles a round. One that fails is named, and the others still run.
  template <class Launch>
  void Row(const std::string& name, const std::string& what, int rounds, const Launch& launch,
           const char* unit = "cycles") {
    Begin(name + ", " + what);
    if (!Well(cudaMemset(measured_.data(), 0, sizeof(Measured))) ||
        !Well(launch(measured_.data())) || !Well(cudaDeviceSynchronize()))
      return;
    const Measured measured = measured_.Host()[0];
    if (measured.cycles == 0 || measured.cycles == ~0ULL) {
      std::printf("FAILED: %s: nothing was measured\n", running.c_str());
      ++failed_rows;
      return;
    }
    Print(name, what, unit, static_cast<double>(measured.cycles) / rounds);
  }

  // True if all is well.
  static bool Well(cudaError_t error) {
    if (error == cudaSuccess) error = cudaGetLastError();
    if (error == cudaSuccess) return true;
    std::printf("FAILED: %s: %s\n", running.c_str(), cudaGetErrorString(error));
    cudaGetLastError();
    ++failed_rows;
    return false;
  }
  Measured* measured() const { return measured_.data(); }

 private:
  OnDevice<Measured> measured_;
};

template <Chain C>
void ChainRow(Bench& bench, const char* name, const char* what) {
  bench.Row(name, what, kRounds, [](Measured* to) {
    ChainKernel<C><<<1, 32>>>(to, 0);
    return cudaGetLastError();
  });
}

void ChainRows(Bench& bench) {
  ChainRow<Chain::kFma>(bench, "fma", "FFMA");
  ChainRow<Chain::kShuffle>(bench, "shuffle", "SHFL");
  ChainRow<Chain::kSpecial>(bench, "special", "MUFU.RSQ");
  ChainRow<Chain::kConvert>(bench, "convert", "FRND");
  ChainRow<Chain::kDouble>(bench, "double", "DFMA");
  ChainRow<Chain::kVote>(bench, "vote", "a comparison and VOTE");
  ChainRow<Chain::kRedux>(bench, "redux", "REDUX and the way back to a register");
  ChainRow<Chain::kRegister>(bench, "register", "a comparison and S2R");
  ChainRow<Chain::kTensor>(bench, "tensor", "HMMA.1688 of TF32, by its accumulators");
}

template <Cache C>
void ChaseRow(Bench& bench, const char* name, const char* what, char* nodes, int64_t stride,
              int rounds) {
  bench.Row(name, what, rounds, [&](Measured* to) {
    LinkKernel<<<1, 256>>>(nodes, kNodes, stride);
    ChaseKernel<C><<<1, 32>>>(to, nodes, rounds);
    return cudaGetLastError();
  });
}

void MemoryRows(Bench& bench) {
  constexpr int64_t kNear = 32, kFar = (1 << 15) + 128;  // 8 KiB, and 8 MiB all over the L2
  const OnDevice<char> memory(kNodes * kFar);
  bench.Row("shared", "LDS", kRounds, [](Measured* to) {
    SharedKernel<<<1, 32>>>(to);
    return cudaGetLastError();
  });
  ChaseRow<Cache::kL1>(bench, "l1", "LDG that finds its line in the L1", memory.data(), kNear,
                       kRounds);
  ChaseRow<Cache::kL2>(bench, "l2", "LDG past the L1", memory.data(), kFar, kRounds);
  Begin("pcie");
  void* host = nullptr;
  if (Bench::Well(cudaHostAlloc(&host, kNodes * kNear, cudaHostAllocMapped))) {
    ChaseRow<Cache::kHost>(bench, "pcie", "LDG of mapped memory of the host",
                           static_cast<char*>(host), kNear, kUnrolled);
    cudaFreeHost(host);
  }
  std::vector<unsigned> nodes(kNodes);
  for (int i = 0; i < kNodes; ++i) nodes[i] = 4 * ((i + 33) % kNodes);
  Begin("constant");
  if (Bench::Well(cudaMemcpyToSymbol(constant_nodes, nodes.data(), sizeof(constant_nodes))))
    bench.Row("constant", "LDC with an address that is known late", kRounds, [](Measured* to) {
      ConstantKernel<<<1, 32>>>(to, 0);
      return cudaGetLastError();
    });
}

void BarrierRows(Bench& bench) {
  const OnDevice<unsigned> words(32);
  bench.Row("fence", "a store, MEMBAR.GPU and CCTL.IVALL", kRounds, [&](Measured* to) {
    FenceKernel<true><<<1, 32>>>(to, words.data());
    return cudaGetLastError();
  });
  bench.Row("fence_idle", "MEMBAR.GPU and CCTL.IVALL with nothing on its way", kRounds,
            [&](Measured* to) {
              FenceKernel<false><<<1, 32>>>(to, words.data());
              return cudaGetLastError();
            });
  for (const int warps : {4, 16}) {
    bench.Row("barrier", "BAR.SYNC of " + std::to_string(warps) + " warps", kRounds,
              [&](Measured* to) {
                BarrierKernel<<<1, 32 * warps>>>(to);
                return cudaGetLastError();
              });
  }
}

template <Exchange E>
cudaError_t LaunchCluster(Measured* to, int blocks) {
  const auto kernel = ClusterKernel<E>;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = static_cast<unsigned>(blocks);
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(128);
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, to, blocks);
}
template <Exchange E>
void ClusterRow(Bench& bench, const char* name, const std::string& what, int blocks) {
  bench.Row(name, what + ", " + std::to_string(blocks) + " blocks", kRounds,
            [&](Measured* to) { return LaunchCluster<E>(to, blocks); });
}
void ClusterRows(Bench& bench) {
  for (const int blocks : {16, 8, 2}) {
    ClusterRow<Exchange::kRelaxed>(bench, "cluster", "arrive.relaxed and wait", blocks);
    ClusterRow<Exchange::kSync>(bench, "cluster_sync", "cluster.sync()", blocks);
    ClusterRow<Exchange::kLoad>(bench, "dsmem", "LD of the last block", blocks);
    ClusterRow<Exchange::kPush>(bench, "push", "st.async there and its mbarrier", blocks);
  }
}

template <Load L>
void RateRow(Bench& bench, const char* name, const char* what, const float4* table, int rows) {
  bench.Row(
      name, what, kRounds * kWarps,
      [&](Measured* to) {
        RateKernel<L><<<1, 32 * kWarps>>>(to, table, rows);
        return cudaGetLastError();
      },
      "cycles held");
}
void RateRows(Bench& bench) {
  constexpr int kNearRows = 16, kFarRows = 2048;  // of 512 bytes
  const OnDevice<float4> table(kFarRows * 32);
  Begin("table of the rates");
  if (!Bench::Well(cudaMemset(table.data(), 0, kFarRows * 32 * sizeof(float4)))) return;
  RateRow<Load::kBroadcast>(bench, "lds128_broadcast", "LDS.128, all lanes alike", table.data(),
                            kNearRows);
  RateRow<Load::kL1>(bench, "ldg128_l1", "LDG.128 from the L1", table.data(), kNearRows);
  RateRow<Load::kL2>(bench, "ldg128_l2", "LDG.128 from the L2", table.data(), kFarRows);
  RateRow<Load::kShuffle>(bench, "shuffle_rate", "SHFL", table.data(), kNearRows);
}

void ClockRow(const Bench& bench) {
  constexpr unsigned long long kNanoseconds = 20'000'000;  // long enough for a clock to rise
  Begin("clock");
  for (int i = 0; i < 3; ++i) {
    SpinKernel<<<1, 1>>>(bench.measured(), kNanoseconds);
    if (!Bench::Well(cudaDeviceSynchronize())) return;
  }
  Measured measured = {};
  if (!Bench::Well(
          cudaMemcpy(&measured, bench.measured(), sizeof(measured), cudaMemcpyDeviceToHost)))
    return;
  Print("clock", "cycles of 20 ms", "GHz",
        static_cast<double>(measured.cycles) / static_cast<double>(measured.sink));
}

// Microseconds from one launch to the next of `count` launches.
template <class Launch>
void LaunchRow(const char* name, const char* what, int count, const Launch& launch) {
  Begin(name);
  cudaEvent_t start, end;
  if (!Bench::Well(cudaEventCreate(&start)) || !Bench::Well(cudaEventCreate(&end))) return;
  double least = 1e30;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    cudaError_t error = launch();
    if (error == cudaSuccess) error = cudaEventRecord(start);
    for (int i = 0; i < count && error == cudaSuccess; ++i) error = launch();
    if (error == cudaSuccess) error = cudaEventRecord(end);
    if (error == cudaSuccess) error = cudaEventSynchronize(end);
    float ms = 0;
    if (error == cudaSuccess) error = cudaEventElapsedTime(&ms, start, end);
    if (!Bench::Well(error)) return;
    least = std::min(least, 1e3 * ms / count);
  }
  cudaEventDestroy(start);
  cudaEventDestroy(end);
  Print(name, what, "us", least);
}
void LaunchRows(const Bench& bench) {
  const auto empty = [] {
    EmptyKernel<<<1, 32>>>(nullptr);
    return cudaGetLastError();
  };
  LaunchRow("launch", "an empty kernel behind another", 500, empty);
  LaunchRow("launch_alone", "events around one empty kernel", 1, empty);
  LaunchRow("launch_cluster", "an empty cluster of 8 behind another", 500,
            [&] { return LaunchCluster<Exchange::kNone>(bench.measured(), 8); });
}

int Main() {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // what a hang or a crash leaves is what was printed
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
    std::printf("skipped: there is no GPU\n");
    return 77;
  }
  Bench bench;
  ClockRow(bench);
  ChainRows(bench);
  MemoryRows(bench);
  BarrierRows(bench);
  RateRows(bench);
  LaunchRows(bench);
  ClusterRows(bench);  // last: what waits for another block is what can go wrong
  std::printf("%d rows failed\n", failed_rows);
  return failed_rows > 0 ? 1 : 0;
}

}  // namespace
}  // namespace deeppcr::cuda

int main() { return deeppcr::cuda::Main(); }
