// SPDX-License-Identifier: Apache-2.0
// What single instructions and their memories take on a GPU, to stand beside what
// tests/gpu/model/machine.py assumes: lines of JSON by the names that it uses (README.md).
//
//   micro_trial   prints every row; says each before it runs
//
// Exit status: 0, 1 if a row failed, 77 if there is no GPU.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "tests/gpu/cases.h"
#include "tests/gpu/micro_kernels.cuh"

namespace deeppcr::cuda {
namespace {

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
  ChainRow<Chain::kHalfTensor>(bench, "tensor_of_halves",
                               "HMMA.16816 of halves, by its accumulators");
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
  static const cudaError_t allowed =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  if (allowed != cudaSuccess) return allowed;
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

void ExchangeRow(Bench& bench) {
  int blocks = 0;
  Begin("exchange");
  if (!Bench::Well(cudaDeviceGetAttribute(&blocks, cudaDevAttrMultiProcessorCount, 0))) return;
  const OnDevice<uint64_t> places(std::vector<uint64_t>(2 * kExchanged * blocks, 0));
  bench.Row("exchange", "elements of all blocks, " + std::to_string(blocks) + " blocks", kRounds,
            [&](Measured* to) {
              uint64_t* at = places.data();
              void* arguments[] = {&to, &at};
              return cudaLaunchCooperativeKernel(ExchangeKernel, dim3(blocks),
                                                 dim3(kExchangeThreads), arguments);
            });
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

// Microseconds from one kernel to the next of `count` launches of `kernels` each.
template <class Launch>
void LaunchRow(const char* name, const char* what, int count, int kernels, const Launch& launch) {
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
    least = std::min(least, 1e3 * ms / (count * kernels));
  }
  cudaEventDestroy(start);
  cudaEventDestroy(end);
  Print(name, what, "us", least);
}
// Launches that the host has handed over together, so that it is the GPU alone that takes the time.
void GraphRow() {
  constexpr int kKernels = 200;
  Begin("launch_graph");
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t ready = nullptr;
  cudaError_t error = cudaStreamCreate(&stream);
  if (error == cudaSuccess)
    error = cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
  for (int i = 0; i < kKernels && error == cudaSuccess; ++i) {
    EmptyKernel<<<1, 32, 0, stream>>>(nullptr);
    error = cudaGetLastError();
  }
  if (error == cudaSuccess) error = cudaStreamEndCapture(stream, &graph);
  if (error == cudaSuccess) error = cudaGraphInstantiate(&ready, graph, 0);
  if (!Bench::Well(error)) return;
  LaunchRow("launch_graph", "an empty kernel behind another of a graph", 1, kKernels,
            [&] { return cudaGraphLaunch(ready, nullptr); });
  cudaGraphExecDestroy(ready);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}
void LaunchRows() {
  const auto empty = [] {
    EmptyKernel<<<1, 32>>>(nullptr);
    return cudaGetLastError();
  };
  LaunchRow("launch", "an empty kernel behind another", 500, 1, empty);
  LaunchRow("launch_alone", "events around one empty kernel", 1, 1, empty);
  LaunchRow("launch_cluster", "an empty cluster of 8 behind another", 500, 1,
            [] { return LaunchCluster<Exchange::kNone>(nullptr, 8); });
  GraphRow();
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
  LaunchRows();
  ClusterRows(bench);  // late: what waits for another block is what can go wrong
  ExchangeRow(bench);
  std::printf("%d rows failed\n", failed_rows);
  return failed_rows > 0 ? 1 : 0;
}

}  // namespace
}  // namespace deeppcr::cuda

int main() { return deeppcr::cuda::Main(); }
